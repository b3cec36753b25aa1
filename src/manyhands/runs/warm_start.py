"""The start of a run with another run's agent: its weights, and the input statistics that belong to them."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from manyhands.algos.returns import unpack_moments
from manyhands.config.settings import NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import UsageError
from manyhands.core.networks import MEAN, SCALE, Conv, Dense, NetSpec
from manyhands.core.weights import Weights
from manyhands.runs import store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.plan import Plan
from manyhands.runs.store import Run

Moments = tuple[float, Array, Array]
"""The number of observations, their mean, and the sum of their squared deviations."""
EPSILON = 1e-6
"""The number added to a variance before its root is taken; see `TorchNet.set_input_moments`."""


@dataclass(frozen=True)
class Start:
    """The state that a new run begins with instead of random weights."""

    weights: Weights
    moments: Moments | None = None  # of the observations, where the network is normalised

    def give(self, learner: Any) -> None:
        """Let a learner go on counting observations, else its first update would forget all earlier ones."""
        if self.moments is not None and hasattr(learner, "obs_moments"):
            learner.obs_moments = self.moments


def warm_start(text: str, plan: Plan) -> Start:
    """Return the agent of `RUN` or `RUN:which`, for a run with the same network; its version is 0 again."""
    run, which = _find(text)
    source = run.checkpoint(which)
    _check_same(run, source, plan)
    first, found = plan.first_weights(), source.weights
    statistics = {name: found.beside[name] for name, _ in plan.spec.statistics}
    first = replace(first, vector=found.vector.copy(), beside={**first.beside, **statistics})
    return Start(first, _moments(run, source))


def _find(text: str) -> tuple[Run, str | None]:
    """Return a run by name or path, and perhaps which of its checkpoints: its name may hold a colon, too."""
    try:
        return store.find(text), None
    except UsageError:
        name, colon, which = text.rpartition(":")
        if not colon:
            raise
    return store.find(name), which


def _moments(run: Run, source: Checkpoint) -> Moments | None:
    """Return mean and deviation, from beside the weights, and their count, from the last checkpoint."""
    if not source.spec.normalise:
        return None
    mean, scale = (source.weights.beside[name].astype(np.float64) for name in (MEAN, SCALE))
    count = _count(run, source)
    variance = np.maximum(scale**-2.0 - EPSILON, 0.0)
    return count, mean, variance * count


def _count(run: Run, source: Checkpoint) -> float:
    for checkpoint in (source, run.checkpoint(store.LAST)):
        if "obs_moments" in checkpoint.learner:
            return max(1.0, unpack_moments(checkpoint.learner["obs_moments"])[0])
    return max(1.0, float(run.status().get("steps", 0)))  # a parent's run: of all its children's


def _check_same(run: Run, source: Checkpoint, plan: Plan) -> None:
    theirs, ours = describe(source.spec, source.action), describe(plan.spec, plan.spaces.action)
    if theirs != ours:
        raise UsageError(
            f"--start-from {run.path} needs the same network: its agent has {theirs}, and this run {ours}"
            f"{_try(run, source, plan)}"
        )


def describe(spec: NetSpec, action: ActionSpec) -> str:
    """Describe what two networks must have alike, so that the numbers of one mean the same in the other."""
    parts = [f"{head.name} {_layers(head.hidden, head.size)}" for head in spec.heads]
    if spec.trunk:
        parts.insert(0, f"trunk {_layers(spec.trunk)}")
    inner = [*spec.trunk, *(layer for head in spec.heads for layer in head.hidden)]
    kinds: list[str] = [*dict.fromkeys(layer.activation for layer in inner), action.kind]
    kinds += ["squashed"] * action.squash + ["dueling"] * action.dueling + ["normalised"] * spec.normalise
    shape = "x".join(map(str, spec.input_shape))
    return f"{shape} inputs, {', '.join(parts)} ({', '.join(kinds)})"


def _layers(layers: tuple[Dense | Conv, ...], *sizes: int) -> str:
    words = [
        f"{layer.channels}@{layer.kernel}/{layer.stride}" if isinstance(layer, Conv) else str(layer.size)
        for layer in layers
    ]
    return "-".join([*words, *map(str, sizes)])


def _try(run: Run, source: Checkpoint, plan: Plan) -> str:
    """Return the network settings that differ, as they are typed, where they are all that differs."""

    def outputs(spec: NetSpec) -> list[tuple[str, int]]:
        return [(head.name, head.size) for head in spec.heads]

    if source.spec.input_shape != plan.spec.input_shape or outputs(source.spec) != outputs(plan.spec):
        return ""
    try:
        theirs = run.config().net
    except UsageError:  # its algorithm is not here
        return ""
    ours, words = plan.config.net, []
    for field in fields(NetConfig):
        wanted = getattr(theirs, field.name)
        if field.name not in ("log_std", "initial_std") and wanted != getattr(ours, field.name):
            value = list(wanted) if isinstance(wanted, tuple) else wanted
            words.append(f"--set net.{field.name}={json.dumps(value, separators=(',', ':')).strip(chr(34))}")
    return f"; try {' '.join(words)}" if words else ""
