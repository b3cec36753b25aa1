"""Learn to optimise: a function of x and c, where the agent moves x and has to live with c.

Every variable runs over [-1, 1] for the agent and over the function's own bounds for the function. The state
is (x, c), an action replaces x, the reward is f before minus f after, and an episode is a few such moves.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, UsageError, did_you_mean
from manyhands.core.seeding import hash_seed
from manyhands.envs.importing import imported
from manyhands.envs.lto_functions import KNOWN

ENV_ID = "manyhands/Lto-v0"
STRATEGIES = ("random", "latin", "uncertainty")
TRIES = 3
"""How often a function of the user's is tried at one point."""
VARIANT = 17
"""The purpose of the random stream of a variant's deviations."""


@dataclass(frozen=True)
class Problem:
    """What is to be optimised, as plain data: it travels to workers as an environment's arguments.

    Its members are functions, or variants of one that differ a little, as prototypes of a device do.
    """

    functions: tuple[str, ...]
    x: int = 1
    c: int = 1
    bounds: tuple[tuple[float, float], ...] = ()
    horizon: int = 2
    starts: tuple[str, ...] = ("random",)
    variants: int = 1
    jitter: float = 0.0
    intervals: int = 20
    candidates: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", tuple(self.functions))
        object.__setattr__(self, "starts", tuple(self.starts))
        object.__setattr__(self, "bounds", tuple((float(low), float(high)) for low, high in self.bounds))
        if not self.functions:
            raise UsageError("no function is given")
        if self.jitter and self.imports:
            raise UsageError(
                "--jitter would leave the bounds of your own function; write variants as functions"
            )
        for name in self.functions:
            if name not in KNOWN and ":" not in name:
                raise UsageError(
                    f"there is no function {name!r}{did_you_mean(name, KNOWN)}; known are "
                    f"{', '.join(KNOWN)}, and your own as module:function"
                )
            if ":" in name and not self.bounds:
                raise UsageError(f"{name} needs --bounds=LOW:HIGH, for all variables or for each")
        for what, value, least, most in (
            ("--x", self.x, 1, 1000),
            ("--c", self.c, 0, 1000),
            ("--horizon", self.horizon, 1, 10_000),
            ("--variants", self.variants, 1, 100_000),
            ("--intervals", self.intervals, 1, 1_000_000),
            ("--candidates", self.candidates, 1, 100_000),
        ):
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{what} is {value!r}; it must be a whole number from {least} to {most}")
        if self.size < 2 and "rosenbrock" in self.functions:
            raise UsageError("rosenbrock has two variables or more; add one with --x or --c")
        if len(self.bounds) not in (0, 1, self.size):
            raise UsageError(f"--bounds has {len(self.bounds)} pairs for {self.size} variables")
        for low, high in self.bounds:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise UsageError(f"bounds {low:g}:{high:g} are not a low and a higher number")
        if not 0 <= self.jitter < 1:
            raise UsageError(f"--jitter is {self.jitter!r}; it must be between 0 and 1")
        for name in self.starts:
            if name not in STRATEGIES:
                raise UsageError(
                    f"there is no start {name!r}{did_you_mean(name, STRATEGIES)}; "
                    f"there are {', '.join(STRATEGIES)} and heterogeneous"
                )

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Problem":
        """Return the problem that an environment's arguments describe."""
        plain = {name: value for name, value in arguments.items() if name not in ("member", "render_mode")}
        try:
            return cls(**{"functions": ("sphere",), **plain})
        except (TypeError, ValueError) as error:
            raise UsageError(f"not a problem to optimise: {error}") from error

    @property
    def size(self) -> int:
        return self.x + self.c

    @property
    def members(self) -> int:
        return len(self.functions) * self.variants

    @property
    def imports(self) -> tuple[str, ...]:
        """The functions that are code of the user's."""
        return tuple(name for name in self.functions if ":" in name)

    @cached_property
    def limits(self) -> tuple[Array, Array]:
        """The lowest and highest value of every variable, in the functions' own units."""
        bounds = self.bounds or tuple((-KNOWN[name][1], KNOWN[name][1]) for name in self.functions[:1])
        low, high = np.array(bounds if len(bounds) > 1 else bounds * self.size).T
        return low, high

    def to_units(self, unit: Array, first: int = 0) -> Array:
        """Convert from [-1, 1] to the functions' own units; `first` is the variable of the first column."""
        low, high = (limit[first : first + unit.shape[-1]] for limit in self.limits)
        own: Array = low + (unit.astype(np.float64) + 1) / 2 * (high - low)
        return own

    def from_units(self, own: Array, first: int = 0) -> Array:
        low, high = (limit[first : first + own.shape[-1]] for limit in self.limits)
        unit: Array = 2 * (own - low) / (high - low) - 1
        return unit

    def to_plain(self) -> dict[str, Any]:
        plain = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()} | {
            "bounds": [list(pair) for pair in self.bounds]
        }

    def fresh_variants(self, count: int) -> "Problem":
        """Return a problem with `count` further variants, the next ones, which no training has seen."""
        return replace(self, variants=self.variants + count)

    def deviation(self, member: int) -> tuple[Array, float]:
        """Return how far a variant is shifted in every variable, and by what its values are multiplied."""
        rng = np.random.default_rng(hash_seed(VARIANT, member // len(self.functions)))
        shift: Array = self.jitter * rng.uniform(-1, 1, self.size)
        return shift, 1 + self.jitter * float(rng.uniform(-1, 1))

    def name(self, member: int) -> str:
        return self.functions[member % len(self.functions)]

    def evaluate(
        self,
        unit: Array,
        member: int = 0,
        beat: Callable[[], None] = lambda: None,
        failed: Callable[[str], None] = lambda text: None,
    ) -> Array:
        """Return f at points [N, x + c] of the cube, in float64; `failed` hears of tries that raised."""
        points, gain, name = unit.astype(np.float64), 1.0, self.name(member)
        if self.jitter:
            shift, gain = self.deviation(member)
            points += shift
        own = self._to_units_of(name, points)
        if name in KNOWN:
            beat()
            return gain * KNOWN[name][0](own)
        function = function_of(name)
        values = np.empty(len(own))
        for i, point in enumerate(own):
            beat()
            values[i] = _number(_asked(function, name, point, failed), name, point)
        return gain * values

    def _to_units_of(self, name: str, points: Array) -> Array:
        """Convert to a function's units: known ones have domains of their own, unless bounds are given."""
        if self.bounds or name not in KNOWN:
            return self.to_units(points)
        return points * KNOWN[name][1]


def _asked(function: Callable[[Array], Any], name: str, point: Array, failed: Callable[[str], None]) -> Any:
    """Call a function, and again where it raised: a measurement may fail now and then."""
    for _ in range(TRIES - 1):
        try:
            return function(point)
        except Exception:
            failed(traceback.format_exc())
    try:
        return function(point)
    except Exception as error:
        raise EnvError(f"{name} raised {type(error).__name__}: {error}") from error


@cache
def function_of(path: str) -> Callable[[Array], Any]:
    return imported(path, "function")


def _number(value: Any, name: str, point: Array) -> float:
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    where = f"at {np.array2string(point, precision=4, separator=', ')}"
    if not isinstance(value, Real):
        raise EnvError(
            f"{name} returned {type(value).__name__} {value!r:.40} {where}; it must return a number"
        )
    raise EnvError(f"{name} returned {value} {where}; it must return a finite number")


class LtoEnv(gymnasium.Env[Array, Array]):
    """A problem as an environment of one lane, for anyone's library. `member` picks the function or variant.

    A start is uniform in the cube, or what `reset(options={"start": point})` says.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's)
    checks_arguments = True  # which `Problem` names and checks

    def __init__(self, member: int = 0, render_mode: str | None = None, **problem: Any) -> None:
        self.problem = Problem.of(problem)
        self.member, self.render_mode = member, render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (self.problem.size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (self.problem.x,), np.float32)
        self.point = np.zeros(self.problem.size, np.float32)
        self.value, self.moves = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        start = (options or {}).get("start")
        if start is None:
            start = self.np_random.uniform(-1, 1, self.problem.size)
        self.point = np.clip(np.asarray(start, np.float32).reshape(self.problem.size), -1, 1)
        self.value, self.moves = self._f(), 0
        return self.point.copy(), {"f": self.value}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.point[: self.problem.x] = np.clip(action, -1, 1)
        before, self.value = self.value, self._f()
        self.moves += 1
        over = self.moves >= self.problem.horizon
        return self.point.copy(), before - self.value, over, False, {"f": self.value}

    def _f(self) -> float:
        return float(self.problem.evaluate(self.point[None], self.member)[0])


if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, "manyhands.envs.lto:LtoEnv", kwargs={"functions": ("sphere",)})
