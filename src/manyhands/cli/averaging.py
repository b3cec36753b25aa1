"""`manyhands parent` and `manyhands child`."""

import argparse
import asyncio
import re
import socket
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from manyhands.averaging.child_stats import Forgotten, ParentStats
from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.protocol import (
    DEFAULT_ALGO,
    DEFAULT_PORT,
    NAME,
    NAME_RULE,
    AveragingConfig,
    difference,
    read_token,
    structure,
)
from manyhands.averaging.recorder import ParentRecorder, ParentSetup
from manyhands.config.resolve import environment, parse_override, read_yaml, resolve
from manyhands.config.settings import Config
from manyhands.core.checks import require
from manyhands.core.decoding import decode
from manyhands.core.errors import ManyhandsError, RunError, UsageError, WireError, missing_extra
from manyhands.core.seeding import INIT, hash_seed
from manyhands.core.texts import one_line
from manyhands.envs import make as envs
from manyhands.runs import checkpoint, store
from manyhands.runs.plan import Plan, check_network, plan
from manyhands.runs.store import Run
from manyhands.runs.training import train
from manyhands.system.machine import usable_cores
from manyhands.system.signals import stop_signals, uninterrupted
from manyhands.system.temporary import temporary

if TYPE_CHECKING:
    from manyhands.averaging.limits import Limits
    from manyhands.averaging.link import Link, Welcome

WRONG_URL = "a parent's address is ws://HOST:PORT, or wss://HOST:PORT for TLS, and nothing more"


def parent(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.parent import Parent

    resumed = None if options.resume is None else _find(options)
    door = ListenConfig.of(options, resumed)
    token, tls = door.token(), door.tls()
    names = [field.name for field in fields(AveragingConfig)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if given.get("max_step") == "auto":
        given["max_step"] = None
    with ExitStack() as held:
        begun = _new(options, given, held) if resumed is None else _resumed(resumed, given, held)
        keeper = ParentRecorder(begun, options.quiet)
        served = Parent(
            begun.averaging,
            begun.plan.config,
            begun.plan.spec,
            begun.first,
            token,
            door.silence,
            keeper.said,
            keeper.exchanged,
            keeper.turned,
            keeper.room,
            begun.stats,
        )

        def ready() -> None:
            """Nothing is written before it listens, so that a port that is taken spoils no run."""
            door.keep(begun.run, int(served.address.rpartition(":")[2]))
            text = yaml.safe_dump(asdict(begun.averaging), sort_keys=False)
            checkpoint.write_atomically(begun.run.path / store.AVERAGING, text.encode())
            keeper.save(keeper.snapshot(served), "running", kept=resumed is None)
            keeper.listening(served.address, door.needed())

        try:
            with stop_signals(served.stop, served.interrupt), keeper:
                status = "failed"
                try:
                    asyncio.run(served.run(*door.address, tls, ready))
                    status = "finished" if served.over else "stopped"
                except (KeyboardInterrupt, asyncio.CancelledError):
                    status = "stopped"
                    raise KeyboardInterrupt from None
                finally:
                    if served.address:
                        with uninterrupted():
                            keeper.finish(served, status)
        except RunError:
            if not served.address and resumed is None:
                begun.run.discard()  # it never listened
            raise
        keeper.report(served)


def _new(options: argparse.Namespace, given: dict[str, Any], held: ExitStack) -> ParentSetup:
    env = options.env or environment(options.config)
    if env is None:
        raise UsageError("which environment? For example: manyhands parent LunarLander-v3")
    averaging = AveragingConfig(**given)
    seed = {} if options.seed is None else {"run": {"seed": options.seed}}
    overrides = (*(parse_override(text) for text in options.set), seed)
    config = resolve(env, options.algo, options.config, overrides, DEFAULT_ALGO, options.recipes)
    path = store.choose_path(options.name, options.dir)
    planned = _planned(config)
    first = planned.first_weights()  # before there is a directory, which nobody would want if that fails
    run = store.create(path, planned.config)
    held.enter_context(run.lock())
    return ParentSetup(run, planned, averaging, first, ParentStats({}, Forgotten()))


def _planned(config: Config) -> Plan:
    """What a parent holds: the network alone, without the batches and memories of its children."""
    planned = plan(config, learns_here=False)
    check_network(planned.spec)
    return planned


def _find(options: argparse.Namespace) -> Run:
    """The parent's run that is to go on, with its own settings."""
    own = ("env", "algo", "seed", "name", "dir", "config")
    refused = [name for name in own if getattr(options, name) is not None]
    if refused or options.set:
        raise UsageError(
            f"--resume goes on with the run's own settings, not {', '.join(refused or ['--set'])}"
        )
    run = store.find(options.resume)
    if not (run.path / store.AVERAGING).exists():
        raise UsageError(f"{run.path} is no parent's run; manyhands train --resume {run.path}")
    return run


def _resumed(run: Run, given: dict[str, Any], held: ExitStack) -> ParentSetup:
    kept = run.path / store.AVERAGING
    try:
        averaging = decode(AveragingConfig, read_yaml(kept), "it")
    except ManyhandsError as error:
        raise UsageError(f"{kept} is damaged: {one_line(error)}") from error
    averaging = replace(averaging, **given)
    held.enter_context(run.lock())
    planned, last = _planned(run.config()), run.checkpoint(store.LAST)
    if last.spec.schema != planned.spec.schema:
        raise RunError(f"{run.path} holds another network than its config.yaml describes")
    if last.weights.version >= averaging.exchanges:
        raise UsageError(f"{run.path} has made {last.weights.version} exchanges; give more: --exchanges N")
    try:
        stats = ParentStats.read(last.progress)
    except WireError as error:
        raise RunError(f"{run.checkpoint_path(store.LAST)} is damaged: {one_line(error)}") from error
    return ParentSetup(run, planned, averaging, last.weights, stats)


def child(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.limits import Limits
    from manyhands.averaging.link import Link, OverError

    name = _own_name() if options.name is None else options.name
    require(NAME.fullmatch(name) is not None, "--name", name, NAME_RULE)
    require(options.cores is None or options.cores >= 1, "--cores", options.cores, "1 or more")
    require(options.patience > 0, "--patience", options.patience, "greater than 0")
    require(options.wait >= 0, "--wait", options.wait, "0 or more")
    limits = Limits.of(options.max_memory, options.max_message, options.max_envs)
    url, token = _with_port(options.url), read_token(options.token_file)
    link = Link(url, name, token, options.tls_ca, options.patience, limits.message, options.allow)
    link.said = lambda text: print(f"{name}: {text}", flush=True)
    try:
        welcome = link.join(options.wait)
    except OverError as error:  # nothing is wrong with this child
        print(f"{name}: {error}")
        return
    try:
        _train_for(link, welcome, limits, options)
    except ManyhandsError as error:
        error.args = (one_line(error),)  # which may repeat what the parent said
        raise
    finally:
        link.close()


def _train_for(link: "Link", welcome: "Welcome", limits: "Limits", options: argparse.Namespace) -> None:
    from manyhands.averaging.child import Exchanger, own_config
    from manyhands.averaging.child_view import ChildView
    from manyhands.averaging.limits import confined

    name, env_id = link.name, welcome.config.env.id
    envs.check_imports(welcome.config.env, options.allow)
    seed = hash_seed(welcome.config.run.seed, INIT, *name.encode()) >> 33
    cores = usable_cores() if options.cores is None else options.cores
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
        start = replace(welcome.weights, version=0)
        view = ChildView(exchanger, options.quiet)
        train(config, directory=directory / "run", view=view, exchange=exchanger, start=start)
    if link.refused:
        raise RunError(link.refused)
    why = "the parent has all that it wanted" if link.over else "left"
    print(f"{name}: {why}; {exchanger.exchanges:,} exchanges, {exchanger.steps:,} steps")


def _with_port(url: str) -> str:
    """A parent's default port, where none is named."""
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
    """Its machine's, and something that tells two children of one machine apart."""
    import secrets

    host = re.sub("[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return f"{host[:50]}-{secrets.token_hex(3)}"


def _need_websockets() -> None:
    try:
        import websockets  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra("averaging", error, "websockets") from error
