"""Bounded waits on a parent's connections, whoever is at the other end."""

import asyncio
from contextlib import suppress

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from manyhands.core import wire

GRACE = 5.0
"""Seconds that a child has to answer when its connection is closed."""
LONGEST = 1000
"""Most characters of the sentence with which somebody is disconnected."""


class Refused(Exception):  # noqa: N818 (not an error of the parent's)
    """A reason to disconnect somebody, as a sentence."""


async def say(connection: ServerConnection, message: bytes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await connection.send(message)
    except TimeoutError:
        raise Refused("it takes nothing that it is sent") from None


async def answers(connection: ServerConnection, seconds: float) -> bool:
    """Return whether somebody still answers a ping."""
    try:
        async with asyncio.timeout(seconds):
            await (await connection.ping())
    except (TimeoutError, ConnectionClosed):
        return False
    return True


async def refuse(connection: ServerConnection, why: str, again: bool) -> None:
    """Tell somebody why the connection is closed, and whether to try again, and close it."""
    with suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(GRACE):
            meta = {"why": why, "again": again}
            await connection.send(wire.encode(wire.Message("refused", "", meta)))
    await close(connection)


async def close(connection: ServerConnection, code: int = 1000) -> None:
    """Close a connection, even one that takes nothing any more."""
    try:
        async with asyncio.timeout(2 * GRACE):
            await connection.close(code)
    except TimeoutError:
        connection.transport.abort()
