"""Runs a child, from its arguments to its end."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from manyhands.averaging.limits import MAX_ENVS, MAX_MESSAGE_MB, Limits
from manyhands.averaging.protocol import (
    DEFAULT_PORT,
    NAME,
    NAME_RULE,
    difference,
    read_token,
    structure,
)
from manyhands.core.checks import require
from manyhands.core.errors import ManyhandsError, RunError, UsageError
from manyhands.core.seeding import INIT, hash_seed
from manyhands.core.texts import one_line
from manyhands.envs import make as envs
from manyhands.runs.plan import first_beside, plan
from manyhands.runs.training import train
from manyhands.runs.view import is_watched
from manyhands.system.machine import usable_cores
from manyhands.system.temporary import temporary

if TYPE_CHECKING:
    from manyhands.averaging.link import Link
    from manyhands.averaging.welcome import Welcome

WRONG_URL = "a parent's address is ws://HOST:PORT, or wss://HOST:PORT for TLS, and nothing more"
PATIENCE = 3600.0
"""Default seconds for which a child looks for a lost parent."""


@dataclass(frozen=True)
class Visit:
    """The counts of what a child has done for its parent."""

    exchanges: int = 0
    steps: int = 0
    over: bool = False  # the parent has all that it wanted


def visit(
    url: str,
    *,
    name: str | None = None,
    cores: int | None = None,
    token_file: str | Path | None = None,
    tls_ca: str | Path | None = None,
    patience: float = PATIENCE,
    wait: float = 0.0,
    max_memory: int | None = None,
    max_envs: int = MAX_ENVS,
    max_message: int = MAX_MESSAGE_MB,
    allow: Sequence[str] = (),
    quiet: bool | None = None,
) -> Visit:
    """Train for a parent until it has all that it wanted; `manyhands.child` says what the arguments are."""
    from manyhands.averaging.link import Link, OverError

    name = _own_name() if name is None else name
    require(NAME.fullmatch(name) is not None, "--name", name, NAME_RULE)
    require(cores is None or cores >= 1, "--cores", cores, "1 or more")
    require(patience > 0, "--patience", patience, "greater than 0")
    require(wait >= 0, "--wait", wait, "0 or more")
    limits = Limits.of(max_memory, max_message, max_envs)
    authority = None if tls_ca is None else Path(tls_ca)
    token = read_token(token_file)
    link = Link(_with_port(url), name, token, authority, patience, limits.message, allow)
    link.said = lambda text: print(f"{name}: {text}", flush=True)
    try:
        welcome = link.join(wait)
    except OverError as error:  # nothing is wrong with this child
        print(f"{name}: {error}")
        return Visit(over=True)
    try:
        quiet = not is_watched() if quiet is None else quiet
        return _train_for(link, welcome, limits, usable_cores() if cores is None else cores, allow, quiet)
    except ManyhandsError as error:
        error.args = (one_line(error),)  # which may repeat what the parent said
        raise
    finally:
        link.close()


def _train_for(
    link: "Link", welcome: "Welcome", limits: Limits, cores: int, allow: Sequence[str], quiet: bool
) -> Visit:
    from manyhands.averaging.child import Exchanger, own_config
    from manyhands.averaging.child_view import ChildView
    from manyhands.averaging.limits import confined

    name, env_id = link.name, welcome.config.env.id
    envs.check_imports(welcome.config.env, allow)
    seed = hash_seed(welcome.config.run.seed, INIT, *name.encode()) >> 33
    config = own_config(welcome, cores, seed, limits.memory)
    limits.check_settings(config, link.url)
    with temporary("child") as directory, confined(limits.memory):
        planned = plan(config, learns_here=False)
        spec = planned.spec
        limits.check_memory(planned, link.url)
        link.get_ready(spec)
        if spec.schema != welcome.spec.schema:
            how = welcome.averaging.format
            differs = difference(structure(spec, how), structure(welcome.spec, how))
            raise RunError(f"{env_id} differs here: {differs or 'schema'}; install the parent's versions")
        on = f"{cores} core{'s' if cores > 1 else ''}"
        print(f"{name}: {env_id} with {config.run.algo} on {on} for {link.url}", flush=True)
        exchanger = Exchanger(link, spec, welcome.weights.version)
        beside = {**first_beside(config, spec), **welcome.weights.beside}
        start = replace(welcome.weights, version=0, beside=beside)
        view = ChildView(exchanger, quiet)
        train(config, directory=directory / "run", view=view, exchange=exchanger, start=start, log="none")
    if link.refused:
        raise RunError(link.refused)
    why = "the parent has all that it wanted" if link.over else "left"
    print(f"{name}: {why}; {exchanger.exchanges:,} exchanges, {exchanger.steps:,} steps")
    return Visit(exchanger.exchanges, exchanger.steps, link.over)


def _with_port(url: str) -> str:
    """Return a parent's address, with the default port where none is named."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(WRONG_URL) from None
    more = parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("ws", "wss") or not parts.hostname or more:
        raise UsageError(WRONG_URL)
    if port is not None:
        return url
    return parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{DEFAULT_PORT}").geturl()


def _own_name() -> str:
    """Return the machine's name, with a suffix that tells two children of one machine apart."""
    import secrets

    host = re.sub("[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return f"{host[:50]}-{secrets.token_hex(3)}"
