"""Every setting and its default, in one place. A config is checked when it is made, then trusted.

A setting is addressed as `section.name`, in recipes, in `config.yaml` and with `--set algo.gamma=0.99`.
"""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from manyhands.errors import UsageError, near

T = TypeVar("T")
Mode = Literal["sync", "pipelined", "async"]


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {value!r}; it must be {allowed}")


def _positive(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        _require(math.isfinite(value) and value > 0, f"{prefix}.{name}", value, "greater than 0")


def _not_negative(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        _require(math.isfinite(value) and value >= 0, f"{prefix}.{name}", value, "0 or more")


def _unit(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        _require(0 <= value <= 1, f"{prefix}.{name}", value, "between 0 and 1")


@dataclass(frozen=True)
class EnvConfig:
    """Which environment to play."""

    id: str = "CartPole-v1"
    """A Gymnasium id, or `module:callable` that returns an environment."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for making it, such as {is_slippery: false}."""


@dataclass(frozen=True)
class NetConfig:
    """The network. Policy and value are separate unless `shared`."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers (after the convolutions, for images)."""
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

    def __post_init__(self) -> None:
        ok = all(isinstance(size, int) and 0 < size <= 65536 for size in self.hidden)
        _require(ok, "net.hidden", list(self.hidden), "a list of sizes such as [64, 64]")
        _require(math.isfinite(self.log_std), "net.log_std", self.log_std, "a number")


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
        _positive(self, "collect", "shards", "lanes", "steps")
        _unit(self, "collect", "random")

    @property
    def random_lanes(self) -> int:
        return round(self.random * self.lanes)

    @property
    def batch(self) -> int:
        """Environment steps between two updates of the weights."""
        return self.shards * self.lanes * self.steps


@dataclass(frozen=True)
class AlgoConfig:
    """What the on-policy algorithms share."""

    columns: ClassVar[tuple[str, ...]] = ()
    """What the actors must note down beside the usual."""

    learning_rate: float = 3e-4
    gamma: float = 0.99
    """Discount of future rewards."""
    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value estimate (Schulman et al. 2016)."""
    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    rank_advantage: bool = False
    """Let only the order of a batch's advantages count, not their sizes; ppo and reinforce. For rewards whose
    few largest would drown the rest."""
    anneal: bool = False
    """Let the learning rate fall to 0 over `run.steps`, as (1 - t)^anneal_power."""
    anneal_power: float = 1.0
    log_std_end: float | None = None
    """Let a gaussian policy's log standard deviation go to this in a straight line over `run.steps`, instead
    of learning it (what depends on the state is learned all the same)."""
    threads: int = 1
    """Of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        _positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "anneal_power")
        _not_negative(self, "algo", "entropy", "value_weight", "reward_clip")
        _unit(self, "algo", "gamma", "gae_lambda")


@dataclass(frozen=True)
class PpoConfig(AlgoConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    columns = ("logp",)

    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 256
    clip: float = 0.2
    """How far the probability of an action may move in one batch."""
    target_kl: float = 0.0
    """Stop the epochs once the policy has moved this far; 0 never stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "algo", "epochs", "minibatch", "clip")
        _not_negative(self, "algo", "target_kl")


@dataclass(frozen=True)
class A2cConfig(AlgoConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step along the gradient of each short batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 7e-4
    gae_lambda: float = 1.0
    normalise_advantage: bool = False


@dataclass(frozen=True)
class ReinforceConfig(AlgoConfig):
    """REINFORCE with a baseline (Williams 1992): returns to the episode's end, one policy step a batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 1e-3
    gae_lambda: float = 1.0
    baseline_epochs: int = 4
    """Passes of the value network over each batch; the policy takes one."""
    minibatch: int = 512
    normalise_advantage: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "algo", "baseline_epochs", "minibatch")


@dataclass(frozen=True)
class ImpalaConfig(AlgoConfig):
    """IMPALA (Espeholt et al. 2018): actor-critic that corrects for old weights by V-trace."""

    columns = ("logp",)

    learning_rate: float = 6e-4
    entropy: float = 0.01
    gae_lambda: float = 1.0
    """V-trace's lambda."""
    rho_clip: float = 1.0
    c_clip: float = 1.0
    minibatches: int = 4
    """Steps along the gradient per batch, each on a part of the lanes."""
    normalise_advantage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "algo", "rho_clip", "c_clip", "minibatches")


@dataclass(frozen=True)
class CloneConfig(AlgoConfig):
    """Supervised learning of chosen actions: cross-entropy on pairs of observation and action."""

    choose: Literal[
        "advantage", "elite", "threshold", "published-1", "published-2", "published-3", "published-4"
    ] = "advantage"
    """advantage: every action by exp(its advantage / temperature). elite: the best episodes of late.
    threshold: episodes by keep and clean, with four presets as published for LunarLander."""
    temperature: float = 1.0
    """advantage: how sharply good actions are preferred, in deviations of the advantage."""
    weight_limit: float = 20.0
    """advantage: no action counts more than this (Peng et al. 2019 use 20)."""
    share: float = 0.1
    """elite: the part of recent episodes that is imitated."""
    window: int = 1000
    """elite: how many episodes are recent."""
    keep: float = 0.0
    """threshold: episodes with a score above this are taken whole."""
    clean: float | None = None
    """threshold: those above this are cleaned of actions with little reward; none are by default."""
    clean_level: float = 0.4
    """threshold: what little is, on a scale of 0 to 1. elite: the same for what followed an action, with
    discount gamma, so that a good episode does not teach its own end."""
    memory: int = 1_000_000
    """elite and threshold: pairs of observation and action that are held; the oldest go first."""
    epochs: int = 4
    minibatch: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "algo", "temperature", "share", "window", "memory", "epochs", "minibatch")
        _unit(self, "algo", "share", "clean_level")
        _require(self.weight_limit >= 1, "algo.weight_limit", self.weight_limit, "1 or more")


ALGORITHMS: dict[str, type[AlgoConfig]] = {
    "ppo": PpoConfig,
    "a2c": A2cConfig,
    "reinforce": ReinforceConfig,
    "impala": ImpalaConfig,
    "clone": CloneConfig,
}


@dataclass(frozen=True)
class RunConfig:
    """How a run is carried out."""

    algo: str = "ppo"
    workers: int = -1
    """Worker processes; 0 plays inside this process, -1 takes one per core but no more than shards."""
    cpus_per_worker: float = 1.0
    """What Ray is asked to set aside for each worker; other channels take what there is."""
    mode: Mode = "pipelined"
    """sync: no core works while another learns, lag 0. pipelined: the next batch is made while this one is
    learned, lag exactly 1. async: take what is there, lag bounded, not reproducible."""
    seed: int = 0
    steps: int = 1_000_000
    """Stop after this many environment steps at the latest."""
    until: Literal["solved", "steps"] = "solved"
    """Stop when solved, or use all the steps."""
    solved_at: float | None = None
    """Mean test return that counts as solved; by default the environment's own threshold."""
    test_every: int = 20_000
    """Environment steps between two tests of the greedy policy."""
    test_episodes: int = 100
    """Episodes of a whole test; a hopeless one is stopped early."""
    test_share: float = 0.1
    """Steps played in tests, as a part of those played in training; twice that near the goal."""
    margin: float = 2.0
    """How many standard errors a test must lie above `solved_at` before training stops, so that an agent
    that passed by luck goes on learning."""
    checkpoint_every: float = 10.0
    """Seconds between two checkpoints."""
    max_lag: int = 4
    """async: trajectories older than this many versions are dropped, and counted."""
    max_faults: int = 20
    """Crashes of environments or workers that a run survives within an hour."""
    hang_timeout: float = 60.0
    """Seconds that one environment step may take before its worker is replaced."""
    worker_memory: int = 1000
    """MB that a worker may hold. One that holds more is replaced and its episodes played again to where they
    were, because some simulators leak: one kilobyte an episode is gigabytes in a week."""

    def __post_init__(self) -> None:
        _require(
            self.algo in ALGORITHMS,
            "run.algo",
            self.algo,
            f"one of {', '.join(ALGORITHMS)}{near(self.algo, ALGORITHMS)}",
        )
        _require(self.workers >= -1, "run.workers", self.workers, "0 (inline) or more")
        _require(self.workers <= 1024, "run.workers", self.workers, "at most 1024")
        _require(0 <= self.seed < 2**63, "run.seed", self.seed, "between 0 and 2^63")
        _positive(self, "run", "steps", "test_every", "test_episodes", "hang_timeout", "worker_memory")
        _positive(self, "run", "cpus_per_worker")
        _not_negative(self, "run", "test_share", "margin", "checkpoint_every", "max_lag", "max_faults")
        if self.solved_at is not None:
            _require(math.isfinite(self.solved_at), "run.solved_at", self.solved_at, "a number")


@dataclass(frozen=True)
class Config:
    """The whole of a run's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    algo: AlgoConfig = field(default_factory=PpoConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Config":
        """From nested mappings, as in a YAML file; unknown names and wrong types are refused by name."""
        check_sections(plain)
        run = _build(RunConfig, plain.get("run", {}), "run")
        return cls(
            env=_build(EnvConfig, plain.get("env", {}), "env"),
            net=_build(NetConfig, plain.get("net", {}), "net"),
            collect=_build(CollectConfig, plain.get("collect", {}), "collect"),
            algo=_build(ALGORITHMS[run.algo], plain.get("algo", {}), "algo"),
            run=run,
        )

    def to_plain(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["net"]["hidden"] = list(self.net.hidden)
        return plain


def check_sections(plain: Mapping[str, Any]) -> None:
    """Refuses sections that do not exist or hold no settings."""
    sections = {f.name for f in dataclasses.fields(Config)}
    for name, section in plain.items():
        if name not in sections:
            raise UsageError(
                f"there is no section {name!r}; sections are {', '.join(sorted(sections))}"
                f"{near(str(name), sections)}"
            )
        if not isinstance(section, Mapping):
            raise UsageError(f"section {name!r} must hold settings, not {section!r}")


def _build(cls: type[T], values: Mapping[str, Any], section: str) -> T:
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    others = f"; there are {', '.join(sorted(known))}"
    for name in values:
        if name not in known:
            raise UsageError(f"there is no setting {section}.{name}{near(str(name), known) or others}")
    return cls(**{name: _convert(hints[name], value, f"{section}.{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint`; numbers may be whole where fractions are asked for, not the reverse."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, name)
    if origin is Literal:
        _require(value in arguments, name, value, f"one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        _require(isinstance(value, list | tuple), name, value, "a list")
        return tuple(_convert(arguments[0], item, name) for item in value)
    if origin is dict:
        _require(isinstance(value, Mapping), name, value, "a mapping such as {key: value}")
        return dict(value)
    if isinstance(value, str) and hint in (int, float):
        with contextlib.suppress(ValueError):  # YAML reads 1e-3 (without a dot) as text
            value = float(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    _require(type(value) is hint, name, value, words[hint])
    return value
