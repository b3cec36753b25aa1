"""The answer of a parent to a child that joins: the task, and the weights to begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.averaging.maths import LARGEST_START, LARGEST_STATISTIC, largest_statistic, root_mean_square
from manyhands.averaging.protocol import AveragingConfig, number, text
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.arrays import Array
from manyhands.core.decoding import check_plain, decode
from manyhands.core.errors import ManyhandsError, WireError
from manyhands.core.networks import NetSpec
from manyhands.core.texts import one_line
from manyhands.core.weights import Weights

SHOWN = 300
"""Most characters of a parent's text that are shown."""
MAX_SETTINGS = 10_000
"""Most values in a parent's settings, arguments of the environment included."""
MAX_ID = 200
"""Most characters of an environment's name."""


@dataclass(frozen=True)
class Welcome:
    """The answer of a parent to a child that joins."""

    config: Config
    spec: NetSpec
    averaging: AveragingConfig
    weights: Weights

    @classmethod
    def from_message(cls, message: wire.Message, allowed: Sequence[str] = ()) -> "Welcome":
        """Decode a welcome; raise WireError, in one printable line, for anything that no parent would send.

        The settings may name an algorithm of the user's own that is `allowed` here.
        """
        try:
            spec = NetSpec.from_json(text(message.meta, "spec", wire.MAX_HEADER))
            if message.schema != spec.schema:
                raise WireError("its structure is not the one that its header names")
            return cls(
                _read_config(message.meta.get("config"), allowed),
                spec,
                decode(AveragingConfig, message.meta.get("averaging"), "averaging"),
                _read_first(message.arrays, spec, int(number(message.meta, "version"))),
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, ManyhandsError) as error:
            why = one_line(error, SHOWN)
            raise WireError(f"the parent's welcome cannot be read: {why}") from error


def _read_config(plain: Any, allowed: Sequence[str]) -> Config:
    """Decode a parent's settings. What is said of them later may be printed as it is."""
    if not isinstance(plain, dict):
        raise WireError(f"settings that are {type(plain).__name__}")
    check_plain(plain, "the settings", MAX_SETTINGS)
    config = Config.from_plain(plain, allowed)
    if one_line(config.env.id, MAX_ID) != config.env.id:
        raise WireError(f"env.id is {one_line(config.env.id, MAX_ID)}, which is no name of an environment")
    return config


def _read_first(arrays: Mapping[str, Array], spec: NetSpec, version: int) -> Weights:
    """Decode first weights that a network can learn from."""
    vector = arrays["vector"]
    if vector.dtype != np.float32 or vector.shape != (spec.size,) or not np.isfinite(vector).all():
        raise WireError(f"weights that are not {spec.size} finite numbers")
    beside = payloads.read_beside(arrays, spec.statistics, ("vector",))
    size = root_mean_square(vector)
    if size > LARGEST_START or largest_statistic(beside) > LARGEST_STATISTIC:
        raise WireError(f"weights that no network can learn from (root mean square {size:.2g})")
    copies = {name: array.copy() for name, array in beside.items()}
    return Weights(version, vector.copy(), spec.schema, copies)
