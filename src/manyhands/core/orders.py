"""The task, the orders and the results that flow between an executor and its workers.

The executor asks for rollouts by orders, and orders are also the flow control: a worker makes nothing that
was not ordered, so what is in flight is bounded by what the executor asked for.
"""

from dataclasses import asdict, dataclass
from typing import Any

from manyhands.core import decoding, payloads, wire
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError, WireError
from manyhands.core.evaluation import Evaluation
from manyhands.core.lanes import ShardState
from manyhands.core.networks import NetSpec
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Beside

MAX_SIDE = 2**31
MAX_SIDES = 6
MAX_COLUMNS = 32
MAX_BESIDE = 2**24
"""Most numbers of one array beside the weights."""
LARGEST_RETURN = 1e100
"""The largest return of an episode; its square is finite as well. Rewards are below 1e39."""
MAX_EPISODES = 100_000
"""Most episodes of one part of a test."""
NEWEST = -1
"""The version of an order that takes whatever is newest when the rollout begins."""


@dataclass(frozen=True)
class Cores:
    """Cores of one machine that learn together: how many, by which algorithm, with which settings."""

    count: int
    algo: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """All that a worker must know before it can play. Data, never code."""

    env: EnvConfig
    spec: NetSpec
    layout: Layout
    seed: int
    random_lanes: int = 0  # of every shard, the first ones: they ignore the policy
    cores: Cores | None = None  # where shards learn by themselves
    beside: Beside = ()  # arrays that travel with the weights, by name and size

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
            "cores": None if self.cores is None else asdict(self.cores),
            "beside": [list(each) for each in self.beside],
        }
        return wire.Message("task", self.spec.schema, meta)

    @classmethod
    def from_message(cls, message: wire.Message) -> "Task":
        try:
            layout = dict(message.meta["layout"])
            layout["action"] = ActionSpec.from_json(layout["action"])
            layout["obs_shape"] = tuple(layout["obs_shape"])
            layout["columns"] = tuple(layout["columns"])
            cores = message.meta["cores"]
            task = cls(
                env=decoding.decode(EnvConfig, message.meta["env"], "the environment"),
                spec=NetSpec.from_json(message.meta["spec"]),
                layout=Layout(**layout),
                seed=message.meta["seed"],
                random_lanes=message.meta["random_lanes"],
                cores=None if cores is None else decoding.decode(Cores, cores),
                beside=tuple((name, size) for name, size in message.meta["beside"]),
            )
            task.check()
            return task
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, UsageError) as error:
            raise WireError(f"not a task: {error!r:.300}") from error

    def check(self) -> None:
        """Refuses sizes and types that no task has; what a machine has room for is its own to say."""
        layout = self.layout
        sides = (layout.steps, layout.lanes, layout.stack, *layout.obs_shape, *layout.action.sizes)
        if not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
            raise ValueError(f"a layout of {sides!r:.100}")
        if layout.obs_dtype not in ("<f4", "|u1") or len(layout.obs_shape) > MAX_SIDES:
            raise ValueError(f"observations of {layout.obs_dtype!r:.20}{layout.obs_shape!r:.60}")
        if len(layout.columns) > MAX_COLUMNS or not all(type(name) is str for name in layout.columns):
            raise ValueError("columns that are not names")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"a seed of {self.seed!r:.60}")
        if type(self.random_lanes) is not int or not 0 <= self.random_lanes <= layout.lanes:
            raise ValueError(f"{self.random_lanes!r:.60} random lanes of {layout.lanes}")
        if self.spec.input_shape != layout.obs_shape:
            raise ValueError("a network for other observations")
        if len(self.beside) > MAX_COLUMNS or not all(
            type(name) is str and name.isidentifier() and type(size) is int and 0 < size <= MAX_BESIDE
            for name, size in self.beside
        ):
            raise ValueError(f"{self.beside!r:.100} beside the weights")
        if not set(self.spec.statistics) <= set(self.beside):
            raise ValueError("a network without the statistics of its inputs")
        if self.cores is not None and not 0 < self.cores.count <= MAX_SIDE:
            raise ValueError(f"{self.cores.count!r:.60} cores that learn together")


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
            states, arrays = payloads.pack_states({self.shard: self.start})
            meta.update(states)
        return wire.Message("order", "", meta, arrays)

    @classmethod
    def from_message(cls, message: wire.Message) -> "Order":
        plain = {name: fact for name, fact in message.meta.items() if name != "shards"}
        head = decoding.decode(_OrderHead, plain, "an order")
        if not (0 <= head.shard <= MAX_SIDE and 0 <= head.sequence < wire.MAX_COUNT):
            raise WireError(f"an order for rollout {head.sequence} of shard {head.shard}")
        if not NEWEST <= head.version < wire.MAX_COUNT:
            raise WireError(f"an order for version {head.version}")
        start = None
        if "shards" in message.meta:
            start = payloads.unpack_states(message.meta, message.arrays).get(head.shard)
        return cls(head.shard, head.sequence, head.version, start, head.agent)


@dataclass(frozen=True)
class _OrderHead:
    """An order's small facts."""

    shard: int
    sequence: int
    version: int
    agent: str = ""


@dataclass(frozen=True)
class EvalOrder:
    """Play whole episodes with the greedy policy: one part of a test.

    The number of parts is fixed by the settings, not by the workers, so a test's bits do not depend on them.
    """

    part: int
    version: int
    seed: int
    first: int  # episode
    count: int
    skip: tuple[int, ...] = ()  # episodes that brought a process down; others are played in their place

    @property
    def episodes(self) -> range:
        return range(self.first, self.first + self.count)

    def to_message(self) -> wire.Message:
        return wire.Message("eval_order", "", asdict(self))

    @classmethod
    def from_message(cls, message: wire.Message) -> "EvalOrder":
        eval_order = decoding.decode(cls, message.meta, "a part of a test")
        counted = 0 < eval_order.count <= MAX_EPISODES and 0 <= eval_order.first < wire.MAX_COUNT
        if not counted or eval_order.part < 0 or eval_order.seed < 0:
            raise WireError(f"a part of a test with {eval_order.count} episodes from {eval_order.first} on")
        return eval_order


def read_order(message: wire.Message) -> Order | EvalOrder:
    """Return the order in a message of either kind."""
    if message.kind == "eval_order":
        return EvalOrder.from_message(message)
    if message.kind == "order":
        return Order.from_message(message)
    raise WireError(f"a message of kind {message.kind!r:.60} where an order was expected")


@dataclass(frozen=True)
class EvalResult:
    """The episodes of one part of a test."""

    part: int
    evaluation: Evaluation

    def to_message(self) -> wire.Message:
        return wire.Message("eval_result", "", {"part": self.part, **self.evaluation.to_plain()})

    @classmethod
    def from_message(cls, message: wire.Message) -> "EvalResult":
        plain = decoding.decode(_EvalResultPlain, message.meta, "a test's result")
        if not plain.returns or len(plain.returns) != len(plain.lengths) or min(plain.lengths) < 0:
            raise WireError(f"a test's result of {len(plain.returns)} returns, {len(plain.lengths)} lengths")
        if max(map(abs, plain.returns)) > LARGEST_RETURN:
            raise WireError(f"a test's result with a return beyond {LARGEST_RETURN:g}")
        return cls(plain.part, Evaluation(plain.returns, plain.lengths))


@dataclass(frozen=True)
class _EvalResultPlain:
    """A test's result as it travels."""

    part: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
