"""Cores of one machine that learn together on shared memory without a lock, and without torch.

Knows nothing of channels: those map the memory and start the processes.
"""
