"""How the threads of a learner share a machine with others. Without torch, which must not be loaded yet."""

import os
import sys
from collections.abc import Callable

SPIN = 500
"""Turns of a loop, a few microseconds, for which a thread without work waits before it sleeps.

By default torch's threads spin for a millisecond, and then one busy neighbour on two cores takes nearly all
of a learner's speed. An update of DQN on Breakout takes, alone and beside a neighbour: without spinning 16.7
and 27.4 ms, with 1000 turns 14.5 and 28.6, with 3000 14.5 and 33, with 100,000 109 beside a neighbour."""
COUNT, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Environment variables by which a user says how threads wait."""
TOO_LATE = (
    "torch was imported before the training began, so its threads keep cores busy while they wait; "
    f"set {COUNT}={SPIN} (or {POLICY}=passive) before that if others use this machine, too"
)


def share_cores(said: Callable[[str], None]) -> None:
    """Lets threads that wait give way, unless the user has said how they wait; before torch is loaded.

    Once it is, nothing can be done about it but say so, once.
    """
    if COUNT in os.environ or POLICY in os.environ:
        return
    os.environ[COUNT] = str(SPIN)  # in any case for processes that are started from here
    if "torch" in sys.modules:
        said(TOO_LATE)
