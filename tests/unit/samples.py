"""Specs, layouts and trajectories that several tests share."""

import math

import numpy as np

from manyhands.core.actions import ActionSpec
from manyhands.core.networks import SCALE, Dense, Head, NetSpec
from manyhands.core.trajectories import Layout, Trajectory

DISCRETE = ActionSpec("categorical", (3,))
MULTI = ActionSpec("categorical", (2, 4, 3))
GAUSSIAN = ActionSpec("gaussian", (2,), (-1.0, -math.inf), (1.0, math.inf))


def small_spec(inputs: int = 4, action: ActionSpec = DISCRETE, normalise: bool = False) -> NetSpec:
    hidden = (Dense(5),)
    heads = [Head("policy", action.outputs, hidden, gain=0.01), Head("value", 1, hidden)]
    if action.kind == "gaussian":
        heads.append(Head("log_std", action.outputs, gain=-0.5, free=True))
    return NetSpec((inputs,), tuple(heads), normalise=normalise)


def random_vector(spec: NetSpec, seed: int = 0) -> np.ndarray:
    """Weights far from their start, so that biases and free heads matter as well."""
    return np.random.default_rng(seed).normal(0.0, 0.5, spec.size).astype(np.float32)


def random_statistics(spec: NetSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Statistics of inputs far from their start, where the network has any."""
    rng = np.random.default_rng((seed, 1))
    sizes = dict(spec.statistics)
    found = {name: rng.normal(0.0, 0.5, size).astype(np.float32) for name, size in sizes.items()}
    return {
        name: np.abs(array) + np.float32(0.1) if name == SCALE else array for name, array in found.items()
    }


def random_trajectory(
    layout: Layout, seed: int, sequence: int = 0, first_episode: int | np.ndarray = 0
) -> Trajectory:
    """A trajectory that could have been played: flags, final observations and episodes fit together."""
    rng = np.random.default_rng(seed)
    arrays = layout.allocate()
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            array[...] = rng.normal(size=array.shape)
        elif array.dtype.kind == "b":
            array[...] = rng.random(array.shape) < 0.2
        else:
            array[...] = rng.integers(0, 100, array.shape)
        if name == "action" and layout.action.kind != "gaussian":
            sizes = layout.action.sizes if layout.action.shape else layout.action.sizes[0]
            array[...] = rng.integers(0, sizes, array.shape)
    arrays["truncated"] &= ~arrays["terminated"]
    done = arrays["terminated"] | arrays["truncated"]
    cuts = np.argwhere(arrays["truncated"])
    arrays["final_at"][: len(cuts)] = cuts
    arrays["episode"][...] = first_episode + done.sum(axis=0)
    return Trajectory.from_arrays(
        arrays,
        layout.columns,
        len(cuts),
        int(done.sum()),
        shard=int(rng.integers(0, 9)),
        sequence=sequence,
        version=int(rng.integers(0, 2**40)),
        maker="worker-ü",
        seconds=float(rng.random()),
    )
