"""Many small machines that train by themselves and average their weights with a parent over WebSockets."""
