"""Plain data that travels and is saved, the wire format, seeding, and the roles (`roles.py`).

Knows NumPy and nothing else: no environment, no torch, no network library, no file of a run.
"""

from manyhands.core.action_spaces import Box, Discrete, MultiDiscrete

__all__ = ["Box", "Discrete", "MultiDiscrete"]
