"""Counts of where trajectories went, and what every player reports to have done."""

from dataclasses import asdict, dataclass
from typing import Any

from manyhands.channels.amqp.messages import LONGEST_NAME, PLAYER, Report
from manyhands.core.texts import one_line

MOST_PLAYERS = 100_000


@dataclass
class Counts:
    """Trajectories: sent by all + earlier = received + unread + shared, and received = accepted + dropped."""

    received: int = 0
    accepted: int = 0
    acknowledged: int = 0
    dropped: int = 0  # answers to orders that are not open: twice, too late, of another executor
    earlier: int = 0  # of the dropped and the unread: ordered before this executor was started
    foreign: int = 0  # messages that could not be recognised
    shared: int = 0  # learned by another executor
    unread: int = 0  # still in the queue when the run ended


class Tally:
    """The counts of one executor, whose name begins the ids of its orders."""

    def __init__(self, executor: str) -> None:
        self.executor, self.counts = executor, Counts()
        self.protocols: dict[str, Report] = {}
        self.from_player: dict[str, int] = {}  # trajectories that came from each, over all connections

    def is_own(self, identity: str) -> bool:
        """Return whether this executor gave the order, and not one that was killed before it."""
        return identity.startswith(f"{self.executor}-")

    def note_maker(self, identity: str, player: str) -> None:
        """Count an answer for the player that sent it, if it was ordered since this executor started."""
        if self.is_own(identity) and (player in self.from_player or len(self.from_player) < MOST_PLAYERS):
            self.from_player[player] = self.from_player.get(player, 0) + 1

    def keep_protocol(self, report: Report) -> None:
        if report.player in self.protocols or len(self.protocols) < MOST_PLAYERS:
            self.protocols[report.player] = report

    def to_plain(self) -> dict[str, Any]:
        # What came from a player that was killed is more than it had told by then.
        sent = {name: max(r.sent, self.from_player.get(name, 0)) for name, r in self.protocols.items()}
        players = {
            one_line(name.removeprefix(PLAYER), LONGEST_NAME): {**report.to_plain(), "sent": sent[name]}
            for name, report in self.protocols.items()
        }
        return {"trajectories": {"sent": sum(sent.values()), **asdict(self.counts)}, "players": players}
