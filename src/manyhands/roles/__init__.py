"""The processes of a run: the executor, the worker, the worker daemon of a machine, the broker's node.

The executor depends on no particular channel and no particular algorithm.
"""
