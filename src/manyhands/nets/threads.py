"""How the threads of a learner share a machine with others. Without torch, which must not be loaded yet."""

import os
import sys

SPIN = 3000
"""Turns of a loop, some ten microseconds, for which a thread without work waits before it sleeps.

By default torch's threads spin for a millisecond, and then one busy neighbour on two cores takes nearly all
of a learner's speed: DQN on Breakout fell from 88 steps/s to less than 15. So it falls from 67 to 53."""


def share_cores() -> None:
    """Lets threads that wait give way, unless the user has said how they wait; before torch is loaded."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN))
