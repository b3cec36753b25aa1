"""Every setting and its default; an algorithm's own are in its file. Checked when made, then trusted.

A setting is addressed as `section.name`, in recipes, in `config.yaml` and with `--set algo.gamma=0.99`.
"""

import contextlib
import dataclasses
import json
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin

from manyhands.config import algorithms
from manyhands.core.checks import not_negative, positive, require, unit
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError, did_you_mean
from manyhands.core.orders import MAX_EPISODES

T = TypeVar("T")
MAX_SHARDS, MAX_LANES, MAX_ROLLOUT = 4096, 65_536, 1_000_000
"""Limits: more environments than a machine can hold, and longer rollouts than anyone learns from."""
MAX_LAYERS = 64
Mode = Literal["sync", "pipelined", "async"]


@dataclass(frozen=True)
class NetConfig:
    """The network. Policy and value are separate unless `shared`."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers (after the convolutions, for images)."""
    filters: Literal["large", "small"] = "large"
    """Convolutions for screens: 32, 64, 64 of Mnih et al. 2015, or 16, 32 of Mnih et al. 2013, which cost a
    third."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh bounds the features; Andrychowicz et al. 2021 find it better than relu for on-policy learning."""
    shared: bool = False
    """One trunk for policy and value (always so for the convolutions)."""
    normalise: bool = False
    """Shift and scale observations by their running mean and deviation."""
    log_std: float = 0.0
    """Where a gaussian policy's log standard deviation starts."""
    squash: bool = False
    """Bounded continuous actions through tanh instead of clipping."""
    state_std: bool = False
    """Let a gaussian policy's spread depend on the state, not only on time."""
    initial_std: float = 0.0
    """Weights and biases start normally distributed with this deviation; 0: weights orthogonal, biases 0."""

    def __post_init__(self) -> None:
        ok = all(isinstance(size, int) and 0 < size <= 65536 for size in self.hidden)
        require(ok, "net.hidden", list(self.hidden), "a list of sizes such as [64, 64], each up to 65536")
        layers = len(self.hidden)
        require(layers <= MAX_LAYERS, "net.hidden's number of layers", layers, f"at most {MAX_LAYERS}")
        require(math.isfinite(self.log_std), "net.log_std", self.log_std, "a number")
        not_negative(self, "net", "initial_std")


@dataclass(frozen=True)
class CollectConfig:
    """How experience is made. The result depends on these, never on the number of workers."""

    shards: int = 2
    """Groups of lanes; a shard is always played by one worker, so at most this many workers help."""
    lanes: int = 8
    """Environments in one shard, stepped together."""
    steps: int = 128
    """Steps per lane in one rollout."""
    random: float = 0.0
    """Part of every shard's lanes that ignore the agent: choices uniformly, gaussians around the centre."""

    def __post_init__(self) -> None:
        positive(self, "collect", "shards", "lanes", "steps")
        unit(self, "collect", "random")
        for name, most in (("shards", MAX_SHARDS), ("lanes", MAX_LANES), ("steps", MAX_ROLLOUT)):
            require(getattr(self, name) <= most, f"collect.{name}", getattr(self, name), f"at most {most:,}")
        allowed = f"at most {MAX_LANES:,} together"
        require(self.all_lanes <= MAX_LANES, "collect.shards times collect.lanes", self.all_lanes, allowed)

    @property
    def all_lanes(self) -> int:
        """The number of lanes of all shards."""
        return self.shards * self.lanes

    @property
    def random_lanes(self) -> int:
        return round(self.random * self.lanes)

    @property
    def batch(self) -> int:
        """The number of environment steps between two updates of the weights."""
        return self.all_lanes * self.steps


@dataclass(frozen=True)
class RunConfig:
    """How a run is carried out."""

    algo: str = "ppo"
    """The algorithm: a built-in one, one of an installed package, or `module:Class` of your own."""
    workers: int = -1
    """Worker processes; 0 plays inside this process, -1 takes one per core, but no more than shards."""
    cpus_per_worker: float = 1.0
    """What Ray is asked to set aside for each worker; other channels take what there is."""
    mode: Mode = "pipelined"
    """sync: no core works while another learns, lag 0. pipelined: the next batch is made while this one is
    learned, lag exactly 1. async: take what is there, lag bounded, not reproducible."""
    seed: int = 0
    """What all chance is drawn from: in sync and pipelined mode the same seed gives the same result."""
    steps: int = 1_000_000
    """Stop after the update that reaches this many environment steps."""
    minutes: float = 0.0
    """Stop after this many minutes by the clock, and test and save what was learned by then; 0 is no limit. A
    run that is resumed has as many again."""
    updates: int = 0
    """Stop after this many updates of the weights, which for a3c are rounds of episodes; 0 is no limit."""
    until: Literal["solved", "steps", "external"] = "solved"
    """Stop when solved, or use all the steps; external goes on past both, until Ctrl-C, a callback's
    event.stop(), a parent, or run.minutes."""
    solved_at: float | None = None
    """Mean test return that counts as solved; by default the environment's own threshold."""
    test_every: int = 20_000
    """Environment steps between two tests of the greedy policy."""
    test_episodes: int = 100
    """Episodes of a whole test. One ends after 16 where their mean is more than a standard error below what
    `solved_at` and `margin` ask for."""
    test_share: float = 0.1
    """Steps played in tests, as a part of those played in training; twice that near the goal, where at most a
    quarter of the way from the first returns to `solved_at` is left."""
    margin: float = 2.0
    """How many standard errors a test must lie above `solved_at`, so that an agent that passed by luck goes
    on learning. A second test, of as many other episodes, must then keep half of it to count as solved."""
    checkpoint_every: float = 10.0
    """Seconds between two checkpoints."""
    max_lag: int = 4
    """async: trajectories older than this many versions are dropped, and counted."""
    max_faults: int = 20
    """Crashes of environments or workers that a run survives within an hour."""
    hang_timeout: float = 60.0
    """Seconds that one environment step may take before its worker is replaced."""
    worker_memory: int = 1000
    """MB that a worker may hold, 100 or more. One that holds more is replaced and its episodes played again
    to where they were, because some simulators leak: one kilobyte an episode is gigabytes in a week."""

    def __post_init__(self) -> None:
        algorithms.check_name(self.algo)
        require(self.workers >= -1, "run.workers", self.workers, "0 (inline) or more, or -1 (one per core)")
        require(self.workers <= 1024, "run.workers", self.workers, "at most 1024")
        require(0 <= self.seed < 2**63, "run.seed", self.seed, "between 0 and 2^63")
        positive(self, "run", "steps", "test_every", "test_episodes", "hang_timeout")
        episodes, allowed = self.test_episodes, f"at most {MAX_EPISODES:,}"
        require(episodes <= MAX_EPISODES, "run.test_episodes", episodes, allowed)
        require(self.worker_memory >= 100, "run.worker_memory", self.worker_memory, "100 (MB) or more")
        positive(self, "run", "cpus_per_worker")
        not_negative(self, "run", "minutes", "updates")
        not_negative(self, "run", "test_share", "margin", "checkpoint_every", "max_lag", "max_faults")
        if self.solved_at is not None:
            require(math.isfinite(self.solved_at), "run.solved_at", self.solved_at, "a number or null")


@dataclass(frozen=True)
class Config:
    """The whole of a run's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    algo: Any = field(default_factory=lambda: algorithms.find(RunConfig().algo).config())
    """The algorithm's own settings, of the type that it says."""
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], allowed: Sequence[str] | None = None) -> "Config":
        """Build settings from nested mappings, as in a YAML file; refuse unknown names and wrong types.

        What comes from somebody else may name no algorithms but built-in and `allowed` ones.
        """
        check_sections(plain)
        run = _build(RunConfig, plain.get("run", {}), "run")
        if allowed is not None:
            algorithms.check_allowed(run.algo, allowed)
        return cls(
            env=_build(EnvConfig, plain.get("env", {}), "env"),
            net=_build(NetConfig, plain.get("net", {}), "net"),
            collect=_build(CollectConfig, plain.get("collect", {}), "collect"),
            algo=_build(algorithms.find(run.algo).config, plain.get("algo", {}), "algo", run.algo),
            run=run,
        )

    @property
    def algorithm(self) -> Any:
        """The algorithm with its settings; see `algos/algorithm.py`."""
        return algorithms.find(self.run.algo)(self.algo)

    def to_plain(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["net"]["hidden"] = list(self.net.hidden)
        return plain


def check_sections(plain: Mapping[str, Any]) -> None:
    """Refuses sections that do not exist or hold no settings."""
    if not isinstance(plain, Mapping):
        raise UsageError(f"settings must be sections such as env, algo, run, not {plain!r:.60}")
    sections = {f.name for f in dataclasses.fields(Config)}
    for name, section in plain.items():
        if name not in sections:
            raise UsageError(
                f"there is no section {name!r}; sections are {', '.join(sorted(sections))}"
                f"{_in_its_section(name, section) or did_you_mean(str(name), sections)}"
            )
        if not isinstance(section, Mapping):
            raise UsageError(f"section {name!r} must hold settings, not {section!r}")


def _in_its_section(name: Any, value: Any) -> str:
    """Return a hint for a setting that was given as a section: how it is given within its own."""
    given, _, rest = str(name).partition(".")
    own = [algorithms.find(algo).config for algo in algorithms.BUILT_IN]
    classes: dict[str, list[type[Any]]] = {"run": [RunConfig], "algo": own, "net": [NetConfig]}
    classes |= {"collect": [CollectConfig], "env": [EnvConfig]}
    for section, kinds in classes.items():
        known = {field.name for kind in kinds for field in dataclasses.fields(kind)}
        setting = rest if given == section else str(name)
        if setting in known:
            return f"; write {json.dumps({section: {setting: value}}, default=str):.200}"
    return ""


def _has(algo: str, name: str) -> bool:
    return any(field.name == name for field in dataclasses.fields(algorithms.find(algo).config))


def _unknown(name: str, known: Collection[str], section: str, algo: str) -> str:
    """Return what is wrong with a setting that there is none of."""
    others = [other for other in algorithms.BUILT_IN if _has(other, name)] if algo else []
    if others:
        listed = f"{', '.join(others[:-1])} and {others[-1]} have" if others[1:] else f"{others[0]} has"
        return f"{algo} has no setting {section}.{name}; {listed} it"
    near = did_you_mean(name, known, f"{section}.")
    return f"there is no setting {section}.{name}{near or '; there are ' + ', '.join(sorted(known))}"


def _build(cls: type[T], values: Mapping[str, Any], section: str, algo: str = "") -> T:
    """Make a section's settings; `algo` is the algorithm whose own they are, if they are one's."""
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UsageError(_unknown(str(name), known, section, algo))
    return cls(**{name: _convert(hints[name], value, f"{section}.{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, name: str, otherwise: str = "") -> Any:
    """Return `value` as the type `hint`; whole numbers may stand for fractions, but not the reverse."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, name, " or null")
    if origin is Literal:
        near = did_you_mean(str(value), map(str, arguments))
        require(value in arguments, name, value, f"one of {', '.join(map(str, arguments))}{near}")
        return value
    if origin is tuple:
        if arguments[0] is int and type(value) is int:
            value = [value]  # net.hidden=256 is one layer
        wanted = "a list such as [64, 64]" if arguments[0] is int else "a list"
        require(isinstance(value, list | tuple), name, value, wanted)
        return tuple(_convert(arguments[0], item, name) for item in value)
    if origin is dict:
        require(isinstance(value, Mapping), name, value, "a mapping such as {key: value}")
        return dict(value)
    if isinstance(value, str) and hint in (int, float):
        with contextlib.suppress(ValueError):  # YAML reads 1e-3 (without a dot) as text
            value = float(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if hint is int and isinstance(value, int):
        require(abs(value) < 2**63, name, f"a number of {len(hex(value))} hexadecimal digits", "below 2^63")
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    require(type(value) is hint, name, value, words[hint] + otherwise)
    return value
