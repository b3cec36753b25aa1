"""The channel over RabbitMQ: the executor's half, the worker's half, and their messages."""
