"""The processes of a run: the executor, the worker, the worker daemon of a machine, the broker's node.

The executor knows neither its channel nor its algorithm.
"""
