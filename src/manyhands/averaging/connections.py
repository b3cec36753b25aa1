"""How a parent treats a connection, whoever is on it: no wait without an end."""

import asyncio
from contextlib import suppress

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from manyhands.core import wire

GRACE = 5.0
"""Seconds that a child has to answer when its connection is closed."""
LONGEST = 1000
"""Characters of the sentence with which somebody is disconnected."""


class Refused(Exception):  # noqa: N818 (not an error of the parent's)
    """Somebody is disconnected with a sentence."""


async def say(connection: ServerConnection, message: bytes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await connection.send(message)
    except TimeoutError:
        raise Refused("it takes nothing that it is sent") from None


async def answers(connection: ServerConnection, seconds: float) -> bool:
    """Whether somebody is still there."""
    try:
        async with asyncio.timeout(seconds):
            await (await connection.ping())
    except (TimeoutError, ConnectionClosed):
        return False
    return True


async def refuse(connection: ServerConnection, why: str, again: bool) -> None:
    """Says why it is closed, and whether it is worth coming back."""
    with suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(GRACE):
            meta = {"why": why, "again": again}
            await connection.send(wire.encode(wire.Message("refused", "", meta)))
    await close(connection)


async def close(connection: ServerConnection, code: int = 1000) -> None:
    """Even one that takes nothing any more."""
    try:
        async with asyncio.timeout(2 * GRACE):
            await connection.close(code)
    except TimeoutError:
        connection.transport.abort()
