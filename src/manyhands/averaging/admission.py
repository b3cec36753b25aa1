"""How a parent lets a child in: its token, its name, an older connection of its own, its structure."""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from websockets.asyncio.server import ServerConnection

from manyhands.averaging.child_stats import MOST_CHILDREN, Child, least_missed
from manyhands.averaging.connections import Refused, answers, say
from manyhands.averaging.protocol import PROTOCOL, difference, received, same_token, structure, text
from manyhands.core import payloads, wire

if TYPE_CHECKING:
    from manyhands.averaging.parent import Parent

HELLO_TIMEOUT = 10.0
"""Seconds that a new connection has to send its hello."""
GHOST = 5.0
"""Seconds that the old connection of a child that comes back has to answer, and then to end."""
STRANGERS = 1000
"""Most connections that have not sent a hello; each may hold HEADROOM bytes for HELLO_TIMEOUT seconds."""
TURN = 0.2
"""Seconds between two looks at whether a connection has ended."""


class Admission:
    """Lets children in, or raises Refused."""

    def __init__(self, parent: "Parent") -> None:
        self.parent = parent
        self.strangers = 0  # connections that have not sent a hello

    async def hear(self, connection: ServerConnection) -> wire.Message:
        """Return the first message of a new connection."""
        if self.strangers >= STRANGERS:
            raise Refused("too many have come and said nothing; try again")
        self.strangers += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                return received(await connection.recv(), "hello")
        finally:
            self.strangers -= 1

    def check(self, hello: wire.Message) -> None:
        """Refuse another protocol, and a wrong token."""
        theirs = hello.meta.get("protocol")
        if theirs != PROTOCOL:
            raise Refused(
                f"it speaks protocol {theirs!r:.60}, the parent {PROTOCOL}; install the same version"
            )
        if not same_token(text(hello.meta, "token", 1000), self.parent.token):
            raise Refused("its token is not the parent's; give the same --token-file to both")

    async def end_ghost(self, name: str, life: str) -> None:
        """End an older connection of this child: one of the same life, or one that does not answer."""
        ghost = self.parent.connections.get(name)
        if ghost is None:
            return
        if self.parent.children[name].life != life and await answers(ghost, GHOST):
            return
        ghost.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(GHOST):
                while self.parent.connections.get(name) is ghost:
                    await asyncio.sleep(TURN)

    def remember(self, name: str) -> Child:
        """Return the child of this name, known or new; of too many, the least missed makes room."""
        if name not in self.parent.children:
            if len(self.parent.children) >= MOST_CHILDREN:
                self._forget_one()
            self.parent.children[name] = Child(name)
        return self.parent.children[name]

    def _forget_one(self) -> None:
        child = least_missed(self.parent.children.values(), self.parent.gone)
        if child is None:
            raise Refused(f"the parent has {MOST_CHILDREN:,} children already, which is all that it takes")
        self.parent.forgotten.add(child)
        del self.parent.children[child.name]
        self.parent.gone.pop(child.name, None)

    async def welcome(self, connection: ServerConnection) -> None:
        meta = {
            "config": self.parent.config.to_plain(),
            "spec": self.parent.spec.to_json(),
            "averaging": asdict(self.parent.averaging),
            "version": self.parent.version,
        }
        arrays = {"vector": self.parent.vector, **payloads.beside_arrays(self.parent.statistics)}
        message = wire.Message("welcome", self.parent.spec.schema, meta, arrays)
        await say(connection, wire.encode(message), self.parent.silence)

    def check_structure(self, ready: wire.Message) -> None:
        differs = difference(ready.meta, structure(self.parent.spec, self.parent.averaging.format))
        ours = self.parent.spec.schema
        if ready.schema != ours:
            differs = differs or f"schema is {ready.schema!r:.60} where the parent has {ours!r}"
        if differs:
            raise Refused(f"its weights differ: {differs}")
