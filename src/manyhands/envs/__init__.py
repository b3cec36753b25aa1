"""Environments: making any Gymnasium one, describing its spaces, and translating observations and actions.

Knows nothing of networks, algorithms or where it runs.
"""
