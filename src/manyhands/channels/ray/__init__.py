"""The channel over a Ray cluster: `channel.py` is the executor's half, `player.py` the worker's."""
