"""Networks that act: how their outputs become actions, and which columns of them are recorded."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from manyhands.config import algorithms
from manyhands.core import decoding
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import OwnCodeError, RunError, WireError
from manyhands.core.networks import NetSpec
from manyhands.core.own_code import failure
from manyhands.core.roles import Actor
from manyhands.core.weights import Weights
from manyhands.nets.build import actor

Outputs = dict[str, Float32]
"""The outputs of a network's heads, by name, each [..., n]."""
NO_OBS = np.zeros(0, np.float32)
"""The observation for free heads, which look at none."""


class Policy(Protocol):
    """Acts with a network."""

    actor: Actor
    sizes: dict[str, int]  # of the heads that `outputs` has

    def load(self, weights: Weights, lanes: slice | None = None) -> None:
        """Act with these weights from now on: exploring as these lanes of the run do, or to be judged."""

    def outputs(self, obs: Float32) -> Outputs:
        """Return the network's outputs for observations [B, ...]; the next call reuses their memory."""

    def choose(self, outputs: Outputs, noise: Float32 | None) -> Array:
        """Choose actions [B, ...] as they are stored; without noise the best ones."""

    def notes(self, outputs: Outputs, action: Array, columns: tuple[str, ...]) -> Mapping[str, Array]:
        """Return the columns [...] that a learner wants of outputs [..., n] and the actions chosen."""


def open_policy(spec: NetSpec, action: ActionSpec, random_lanes: int = 0) -> Policy:
    """Open a policy that acts as `action` says; the first `random_lanes` of a group ignore the network."""
    if action.algo:
        return OwnPolicy(spec, action)
    return DescribedPolicy(spec, action, random_lanes)


class DescribedPolicy:
    """Acts in one of the ways that `ActionSpec` describes, by a head that is called policy."""

    def __init__(self, spec: NetSpec, action: ActionSpec, random_lanes: int = 0) -> None:
        self.actor, self.action, self.random_lanes = actor(spec), action, random_lanes
        self.sizes = {"policy": action.outputs}
        self.exploration = np.zeros(1, np.float32)

    def load(self, weights: Weights, lanes: slice | None = None) -> None:
        self.actor.load(weights.vector, weights.beside)
        if self.action.kind == "gaussian":
            self.exploration = self.actor.forward(NO_OBS, "log_std")
        elif self.action.kind == "values" and lanes is not None:
            self.exploration = weights.beside["epsilon"][lanes].copy()
            self.exploration[: self.random_lanes] = 1.0
        elif self.action.kind == "values":
            self.exploration = np.full(1, self.action.epsilon, np.float32)

    def outputs(self, obs: Float32) -> Outputs:
        outputs = self.actor.forward(obs, "policy")
        if self.random_lanes and self.action.kind != "values":
            outputs[: self.random_lanes] = 0.0
        return {"policy": outputs}

    def choose(self, outputs: Outputs, noise: Float32 | None) -> Array:
        return self.action.choose(outputs["policy"], self.exploration, noise)

    def notes(self, outputs: Outputs, action: Array, columns: tuple[str, ...]) -> Mapping[str, Array]:
        found: dict[str, Array] = {}
        if "logp" in columns:
            found["logp"] = self.action.log_prob(outputs["policy"], self.exploration, action)
        if "q_taken" in columns:
            values = self.action.values(outputs["policy"])
            found["q_taken"] = np.take_along_axis(values, action[..., None], -1)[..., 0]
            found["q_max"] = values.max(-1)
        return found


class OwnPolicy:
    """Acts as an algorithm of the user's own says."""

    def __init__(self, spec: NetSpec, action: ActionSpec) -> None:
        self.actor, self.action = actor(spec), action
        kind = algorithms.find(action.algo)
        try:
            settings = decoding.decode(kind.config, json.loads(action.settings), "the algorithm's settings")
        except (ValueError, WireError) as error:
            raise RunError(f"the settings of {action.algo} cannot be read: {error}") from error
        self.algorithm = kind(settings)
        self.sizes = {head.name: head.size for head in spec.heads if not head.free}
        self.free = [head.name for head in spec.heads if head.free]

    def load(self, weights: Weights, lanes: slice | None = None) -> None:
        self.actor.load(weights.vector, weights.beside)

    def outputs(self, obs: Float32) -> Outputs:
        return {name: self.actor.forward(obs, name) for name in self.sizes}

    def choose(self, outputs: Outputs, noise: Float32 | None) -> Array:
        count = len(next(iter(outputs.values())))
        chosen = self._ask("act", self._with_free(outputs), noise)
        action = np.asarray(chosen)
        whole = self.action.kind == "gaussian" or action.dtype.kind in "iu"
        if action.shape != (count, *self.action.shape) or not whole:
            raise OwnCodeError(
                f"{self.action.algo}.act returned {action.dtype} of shape {action.shape}; it must return one "
                f"action of {self.action.space} for each of {count} rows: {self.action.dtype} of shape "
                f"{(count, *self.action.shape)}"
            )
        if self.action.kind == "categorical" and ((action < 0) | (action >= self.action.limits)).any():
            raise OwnCodeError(f"{self.action.algo}.act returned an action not in {self.action.space}")
        return action.astype(self.action.dtype, copy=False)

    def notes(self, outputs: Outputs, action: Array, columns: tuple[str, ...]) -> Mapping[str, Array]:
        wanted = [name for name in columns if name in self.algorithm.columns]
        if not wanted:
            return {}
        found = self._ask("note", self._with_free(outputs), action)
        if not isinstance(found, Mapping):
            raise OwnCodeError(
                f"{self.action.algo}.note returned {type(found).__name__}; it must return an array for each "
                f"of {', '.join(wanted)}, by name"
            )
        for name in wanted:
            shape = np.shape(found.get(name, ()))
            if shape != action.shape[:2]:
                raise OwnCodeError(
                    f"{self.action.algo}.note returned {name} of shape {shape}, not {action.shape[:2]}"
                )
        return {name: np.asarray(found[name], np.float32) for name in wanted}

    def _with_free(self, outputs: Outputs) -> Outputs:
        return {**outputs, **{name: self.actor.forward(NO_OBS, name) for name in self.free}}

    def _ask(self, method: str, *given: Any) -> Any:
        """Call a method of the algorithm; an error of it ends the run, because it would come again."""
        try:
            return getattr(self.algorithm, method)(*given)
        except Exception as error:
            raise failure(f"{self.action.algo}.{method}", error) from error
