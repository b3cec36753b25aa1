"""What flows between an executor and its workers.

The executor asks for rollouts by orders, and orders are also the flow control: a worker makes nothing that
was not ordered, so what is in flight is bounded by what the executor asked for.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from manyhands import wire
from manyhands.algos.configs import ALGORITHMS, HogwildConfig
from manyhands.config import EnvConfig
from manyhands.errors import UsageError, WireError
from manyhands.experience import Array, Evaluation, Layout, ShardState, Trajectory
from manyhands.policy import ActionSpec, NetSpec

NEWEST = -1
"""As an order's version: whatever is newest when the rollout begins."""


@dataclass(frozen=True)
class Hogwild:
    """How many cores learn together, and how."""

    cores: int
    algo: str
    settings: dict[str, Any]

    @property
    def config(self) -> HogwildConfig:
        config = ALGORITHMS[self.algo](**self.settings)
        assert isinstance(config, HogwildConfig)
        return config


@dataclass(frozen=True)
class Task:
    """All that a worker must know before it can play. Data, never code."""

    env: EnvConfig
    spec: NetSpec
    layout: Layout
    seed: int
    random_lanes: int = 0  # of every shard, the first ones: they ignore the policy
    hogwild: Hogwild | None = None  # where shards learn by themselves

    def to_message(self) -> wire.Message:
        layout = {
            "steps": self.layout.steps,
            "lanes": self.layout.lanes,
            "obs_shape": list(self.layout.obs_shape),
            "obs_dtype": self.layout.obs_dtype,
            "columns": list(self.layout.columns),
            "stack": self.layout.stack,
            "action": self.layout.action.to_json(),
        }
        meta = {
            "env": asdict(self.env),
            "spec": self.spec.to_json(),
            "layout": layout,
            "seed": self.seed,
            "random_lanes": self.random_lanes,
            "hogwild": None if self.hogwild is None else asdict(self.hogwild),
        }
        return wire.Message("task", self.spec.schema, meta)

    @classmethod
    def from_message(cls, message: wire.Message) -> "Task":
        try:
            layout = dict(message.meta["layout"])
            layout["action"] = ActionSpec.from_json(layout["action"])
            layout["obs_shape"] = tuple(layout["obs_shape"])
            layout["columns"] = tuple(layout["columns"])
            sides = (layout["steps"], layout["lanes"], layout["stack"], *layout["obs_shape"])
            env = EnvConfig(**message.meta["env"])
            if not all(type(side) is int and side > 0 for side in sides):
                raise ValueError(f"a layout of {sides}")
            if not isinstance(env.id, str) or not isinstance(env.kwargs, dict):
                raise TypeError(f"an environment {env}")
            return cls(
                env=env,
                spec=NetSpec.from_json(message.meta["spec"]),
                layout=Layout(**layout),
                seed=int(message.meta["seed"]),
                random_lanes=int(message.meta["random_lanes"]),
                hogwild=None if message.meta["hogwild"] is None else Hogwild(**message.meta["hogwild"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, UsageError) as error:
            raise WireError(f"not a task: {error!r}") from error


@dataclass(frozen=True)
class Order:
    """Play one rollout of a shard. `start` tells a worker that does not hold the shard where it stands."""

    shard: int
    sequence: int
    version: int
    start: ShardState | None = None
    agent: str = ""  # whose, where several executors share a run; the first one's by default

    def to_message(self) -> wire.Message:
        meta: dict[str, Any] = {"shard": self.shard, "sequence": self.sequence, "version": self.version}
        meta["agent"] = self.agent
        arrays: dict[str, Array] = {}
        if self.start is not None:
            states, arrays = wire.pack_states({self.shard: self.start})
            meta.update(states)
        return wire.Message("order", "", meta, arrays)

    @classmethod
    def from_message(cls, message: wire.Message) -> "Order":
        try:
            shard, sequence, version = (int(message.meta[name]) for name in ("shard", "sequence", "version"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"not an order: {error!r}") from error
        order = cls(shard, sequence, version, agent=str(message.meta.get("agent", "")))
        if "shards" not in message.meta:
            return order
        return replace(order, start=wire.unpack_states(message.meta, message.arrays).get(order.shard))


@dataclass(frozen=True)
class Trial:
    """Play whole episodes with the greedy policy: one part of a test.

    The number of parts is fixed by the settings, not by the workers, so a test's bits do not depend on them.
    """

    part: int
    version: int
    seed: int
    first: int  # episode
    count: int

    def to_message(self) -> wire.Message:
        return wire.Message("trial", "", asdict(self))

    @classmethod
    def from_message(cls, message: wire.Message) -> "Trial":
        try:
            return cls(**message.meta)
        except TypeError as error:
            raise WireError(f"not a trial: {error!r}") from error


@dataclass(frozen=True)
class Verdict:
    """The episodes of a trial."""

    part: int
    evaluation: Evaluation

    def to_message(self) -> wire.Message:
        return wire.Message("verdict", "", {"part": self.part, **self.evaluation.to_plain()})

    @classmethod
    def from_message(cls, message: wire.Message) -> "Verdict":
        try:
            plain = dict(message.meta)
            return cls(int(plain.pop("part")), Evaluation.from_plain(plain))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"not a verdict: {error!r}") from error


@dataclass(frozen=True)
class Fault:
    """An environment raised in a lane, which goes on with a new one; lane -1 is a test's."""

    worker: str
    shard: int
    lane: int
    episode: int
    seed: int
    text: str  # a traceback

    def to_message(self) -> wire.Message:
        return wire.Message("fault", "", asdict(self))

    @classmethod
    def from_message(cls, message: wire.Message) -> "Fault":
        try:
            fault = cls(**message.meta)
            numbers = (fault.shard, fault.lane, fault.episode, fault.seed)
            if not all(type(number) is int for number in numbers):
                raise TypeError("a number that is none")
            if not isinstance(fault.worker, str) or not isinstance(fault.text, str):
                raise TypeError("a text that is none")
            return fault
        except TypeError as error:
            raise WireError(f"not a fault report: {error!r}") from error


@dataclass(frozen=True)
class Notice:
    """Something that the user should read and that changes nothing."""

    worker: str
    text: str


@dataclass(frozen=True)
class Culprit:
    """The lane of a shard, or of a test, whose environment brought a worker down, and its episode."""

    lane: int
    episode: int


@dataclass(frozen=True)
class Lost:
    """A worker is gone and has been replaced by one that knows nothing of the shards; `orders` are undone."""

    worker: str
    reason: str
    shards: tuple[int, ...]
    orders: tuple[Order | Trial, ...]  # the first was under way
    culprit: Culprit | None = None
    fault: bool = True  # False where nobody did anything wrong
    moved: bool = False  # nobody is gone; the shards only change hands


@dataclass(frozen=True)
class Taken:
    """Another executor of the same run has learned from an order's trajectory, and asks for the next.

    Its `agent` shall play it. Of the shard only the episodes are known here, so another worker cannot take it
    up exactly; they begin anew.
    """

    order: Order
    agent: str
    state: ShardState


@dataclass(frozen=True)
class Over:
    """Another executor of the same run has ended it."""

    reason: str


Event = Trajectory | Verdict | Fault | Notice | Lost | Taken | Over
