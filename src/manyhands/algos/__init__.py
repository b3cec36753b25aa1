"""Algorithms, one file each: settings, loss, update. What several share is in the other files.

Knows nothing of processes, channels or files of a run. A file named after an algorithm imports no torch,
because command lines and workers ask it questions; what learns is imported by its `learner`.
"""

from manyhands.algos.algorithm import Algorithm, LearnerSetup
from manyhands.algos.on_policy import Minibatch, OnPolicy, OnPolicyConfig

__all__ = ["Algorithm", "LearnerSetup", "Minibatch", "OnPolicy", "OnPolicyConfig"]
