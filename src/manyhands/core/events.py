"""Events that workers report to an executor beside the results of its orders."""

from dataclasses import asdict, dataclass

from manyhands.core import decoding, wire
from manyhands.core.lanes import ShardState
from manyhands.core.orders import EvalOrder, EvalResult, Order
from manyhands.core.trajectories import Trajectory


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
        return decoding.decode(cls, message.meta, "a fault report")


@dataclass(frozen=True)
class FaultReport:
    """A fault as a run counts it: an environment that raised, or a worker that was lost."""

    worker: str
    """Where it happened."""
    text: str
    """What happened, in one line."""
    lane: int | None = None
    """None in a test, and where nobody knows."""
    episode: int | None = None
    """Which episode of the lane, or of the test."""
    seed: int | None = None
    """What that episode was reset with."""
    traceback: str = ""
    """Of the environment, where it raised."""
    lost: bool = False
    """Whether a worker was lost, not only an environment."""


@dataclass(frozen=True)
class Notice:
    """Something that the user should read and that changes nothing."""

    worker: str
    text: str


@dataclass(frozen=True)
class CrashSite:
    """The place of a crash: the episode of a lane of a shard, or, with the shard TESTING, of a test."""

    shard: int
    lane: int
    episode: int


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone and has been replaced by one that knows nothing of the shards; `orders` are undone."""

    worker: str
    reason: str
    shards: tuple[int, ...]
    orders: tuple[Order | EvalOrder, ...]  # the first was under way
    crash_site: CrashSite | None = None
    fault: bool = True  # False where nobody did anything wrong
    moved: bool = False  # nobody is gone; the shards only move


@dataclass(frozen=True)
class LearnedElsewhere:
    """Another executor of the same run has learned from an order's trajectory, and asks for the next.

    Its `agent` shall play it. Of the shard only the episodes are known here, so another worker cannot take it
    up exactly; they begin anew.
    """

    order: Order
    agent: str
    state: ShardState


@dataclass(frozen=True)
class RunEnded:
    """Another executor of the same run has ended it."""

    reason: str


Event = Trajectory | EvalResult | Fault | Notice | WorkerLost | LearnedElsewhere | RunEnded
