"""Tests import torch before they train, which is said once in a process; here by nobody."""

import os

from manyhands.system.threads import COUNT, SPIN

os.environ.setdefault(COUNT, str(SPIN))
