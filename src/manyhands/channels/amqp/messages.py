"""The names and small messages that the two halves of the broker channel share.

Each run has four queues and exchanges of its own. Two shared exchanges let them find each other: what a
worker says on TO_EXECUTORS reaches every run's meta_queue, and what a run says on its meta_exchange reaches
every worker. Every message is one of the dataclasses below, decoded with every type checked.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from manyhands.core import decoding, wire
from manyhands.core.errors import WireError

TO_EXECUTORS = "manyhands.to_executors"
TO_WORKERS = "manyhands.to_workers"
PLAYER = "manyhands.player."
EXECUTOR = "manyhands.executor."
"""Prefixes of the names of inboxes; no message makes anybody send to a queue without one of them."""
LONGEST_NAME = 200
"""Most bytes of a name of queues or messages; AMQP carries 255, with what we put around it."""
MOST_OPEN = 10_000
"""Most orders that a report names; where one names as many, the rest is not known."""


@dataclass(frozen=True)
class Names:
    """A run's queues and exchanges."""

    run: str

    @property
    def meta_queue(self) -> str:
        return f"manyhands.{self.run}.meta_queue"

    @property
    def meta_exchange(self) -> str:
        return f"manyhands.{self.run}.meta_exchange"

    @property
    def data_queue(self) -> str:
        return f"manyhands.{self.run}.data_queue"

    @property
    def model_exchange(self) -> str:
        return f"manyhands.{self.run}.model_exchange"


class Letter:
    """A message of small facts, without arrays."""

    def to_message(self, kind: str) -> wire.Message:
        return wire.Message(kind, "", asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_message(cls, message: wire.Message) -> Self:
        letter = decoding.decode(cls, message.meta, f"a {message.kind[:30]!r} message")
        for name, start in (("player", PLAYER), ("process", PLAYER), ("inbox", EXECUTOR)):
            if isinstance(value := getattr(letter, name, None), str) and not value.startswith(start):
                raise WireError(f"a {name} that is not called {start}...")
        for name in ("player", "process", "inbox", "run", "order", "maker"):
            if isinstance(value := getattr(letter, name, None), str):
                check_name(value)
        return letter


def check_name(name: object) -> str:
    """Return a name that a queue or a message can have; refuse all else."""
    if not isinstance(name, str) or len(name.encode()) > LONGEST_NAME:
        raise WireError(f"{name!r:.60} where a name of at most {LONGEST_NAME} bytes was expected")
    return name


@dataclass(frozen=True)
class Report(Letter):
    """A report of a player, one process of a worker: sent when it joins a run, and every second after."""

    player: str  # its inbox
    worker: str  # the name that its owner gave it
    host: str
    process: int
    steps: int = 0  # played for this run
    episodes: int = 0
    return_sum: float = 0.0
    playing: float = 0.0  # seconds
    idle: float = 0.0  # seconds without an order
    blocked: float = 0.0  # seconds before a full queue
    sent: int = 0  # trajectories that the broker has
    version: int = -1  # of the weights it played with last
    open: tuple[str, ...] = ()  # orders that it has and has not answered

    def to_plain(self) -> dict[str, Any]:
        plain = asdict(self)
        del plain["open"]
        return plain


@dataclass(frozen=True)
class Words(Letter):
    """A text from a player: a notice, a refusal or a failure."""

    player: str
    text: str


@dataclass(frozen=True)
class Unplayed(Letter):
    """A player cannot play an order."""

    player: str
    order: str
    text: str
    malformed: bool = False  # it will not be played by any other, either


@dataclass(frozen=True)
class Released(Letter):
    """A player has given up a shard."""

    player: str
    shard: int


@dataclass(frozen=True)
class Wanted(Letter):
    """A player waits for weights that it should have."""

    player: str


@dataclass(frozen=True)
class Gone(Letter):
    """A process of a worker has ended; its supervisor tells what it was doing."""

    process: str
    reason: str
    guilty: bool  # the environment brought it down
    fault: bool  # False where nobody did anything wrong
    run: int  # the mark of the run that it was playing for; 0 for none
    shard: int
    lane: int
    episode: int


@dataclass(frozen=True)
class Ask(Letter):
    """Another executor wants to join the run."""

    inbox: str


@dataclass(frozen=True)
class RunSettings(Letter):
    """The answer: the run's settings as YAML, and a key that is known to executors of this run alone."""

    run: str
    config: str
    key: str


@dataclass(frozen=True)
class Ended(Letter):
    """An executor that joined has reached the run's goal; `key` is what it was given when it joined."""

    reason: str
    key: str


@dataclass(frozen=True)
class Settled(Letter):
    """An executor that joined has learned from an order's trajectory."""

    order: str
    agent: str
    key: str
    maker: str = ""  # the inbox of the player that played it


@dataclass(frozen=True)
class Held(Letter):
    """Orders whose trajectories an executor that joined has and has not learned from yet; every second."""

    orders: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class Release(Letter):
    """The executor wants a player to give up a shard."""

    run: str
    shard: int


@dataclass(frozen=True)
class Finish(Letter):
    """The executor has ended the run."""

    run: str
    reason: str


@dataclass(frozen=True)
class Rejoin(Letter):
    """The executor does not know a player that reports to it."""

    run: str


@dataclass(frozen=True)
class Limits:
    """What a run allows its players; their supervisor enforces it."""

    hang_timeout: float
    worker_memory: int

    def __post_init__(self) -> None:
        memory_ok = LEAST_MEMORY <= self.worker_memory <= MOST_MEMORY
        if not 0 < self.hang_timeout <= LONGEST_HANG or not memory_ok:
            raise ValueError(f"limits of {self.hang_timeout} s and {self.worker_memory} MB")


LONGEST_HANG = 30 * 24 * 3600.0
LEAST_MEMORY, MOST_MEMORY = 100, 10**9
"""The range, in MB, of a player's memory; with less than the first no process can play anything."""


@dataclass(frozen=True)
class Offer(Letter):
    """An offer of a run to workers, which may join it."""

    run: str
    epoch: str
    limits: Limits
    task: dict[str, Any]
