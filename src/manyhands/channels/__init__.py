"""Channels between an executor and its workers: inline, worker processes, a broker, a Ray cluster.

Knows nothing of algorithms. Every channel passes the same suite, `tests/channels/test_contract.py`.
"""
