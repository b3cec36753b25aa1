"""`manyhands parent` and `manyhands child`."""

import argparse
import asyncio
import ipaddress
import re
import socket
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import yaml

from manyhands.averaging.keeper import Begun, Keeper, Snapshot
from manyhands.averaging.protocol import NAME, NAME_RULE, AveragingConfig, read_token, server_tls
from manyhands.collect.streams import INIT, mix
from manyhands.envs import make as envs
from manyhands.errors import RunError, UsageError
from manyhands.plan import plan
from manyhands.roles.executor import Executor
from manyhands.runs import checkpoint, store
from manyhands.runs.store import Run
from manyhands.runs.view import View
from manyhands.settings import parse_override, read_yaml, resolve, usable_cores
from manyhands.signals import stop_signals
from manyhands.training import train


def parent(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.parent import Child, Parent

    host, port = _listen(options.listen)
    token = read_token(options.token_file)
    if not _is_loopback(host) and not token:
        raise UsageError(
            f"beyond this machine ({host}) a parent demands a token; write one into a file and give "
            "--token-file to the parent and to every child"
        )
    tls = server_tls(options.tls_cert, options.tls_key)
    if not options.silence > 0:
        raise UsageError(f"--silence is {options.silence:g}; it must be greater than 0")
    names = [field.name for field in fields(AveragingConfig)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    with ExitStack() as held:
        begun = _resumed(options, given, held) if options.resume is not None else _new(options, given, held)
        text = yaml.safe_dump(asdict(begun.averaging), sort_keys=False)
        checkpoint.write_atomically(begun.run.path / store.AVERAGING, text.encode())
        keeper = Keeper(begun, options.quiet)
        served = Parent(
            begun.averaging,
            begun.plan.config,
            begun.plan.spec,
            begun.first,
            token,
            options.silence,
            keeper.said,
            keeper.exchanged,
            keeper.turned,
            {name: Child.from_plain(name, plain) for name, plain in begun.children.items()},
        )
        keeper.save(Snapshot.of(served), "running", kept=options.resume is None)
        try:
            with stop_signals(served.stop), keeper:
                status = "failed"
                try:
                    asyncio.run(served.run(host, port, tls, lambda: keeper.listening(served)))
                    status = "finished" if served.over else "stopped"
                finally:
                    keeper.save(Snapshot.of(served), status, kept=served.over)
        except RunError:
            if not served.address and options.resume is None:
                begun.run.discard()  # it never listened
            raise
        keeper.report(served)


def _new(options: argparse.Namespace, given: dict[str, Any], held: ExitStack) -> Begun:
    if options.env is None:
        raise UsageError("which environment? For example: manyhands parent LunarLander-v3")
    averaging = AveragingConfig(**given)
    seed = {} if options.seed is None else {"run": {"seed": options.seed}}
    overrides = (*(parse_override(text) for text in options.set), seed)
    planned = plan(resolve(options.env, options.algo or "a3c", options.config, overrides))
    run = store.create(store.choose_path(options.name, options.dir), planned.config)
    held.enter_context(run.lock())
    return Begun(run, planned, averaging, planned.first_weights(), {})


def _resumed(options: argparse.Namespace, given: dict[str, Any], held: ExitStack) -> Begun:
    refused = [
        name
        for name in ("env", "algo", "seed", "name", "dir", "config")
        if getattr(options, name) is not None
    ]
    if refused or options.set:
        raise UsageError(
            f"--resume goes on with the run's own settings, not {', '.join(refused or ['--set'])}"
        )
    run = store.find(options.resume)
    if not (run.path / store.AVERAGING).exists():
        raise UsageError(f"{run.path} is no parent's run; manyhands train --resume {run.path}")
    try:
        averaging = AveragingConfig(**{**read_yaml(run.path / store.AVERAGING), **given})
    except TypeError as error:
        raise UsageError(f"{run.path / store.AVERAGING} cannot be read: {error}") from error
    held.enter_context(run.lock())
    planned, last = plan(run.config()), run.checkpoint(store.LAST)
    if last.spec.schema != planned.spec.schema:
        raise RunError(f"{run.path} holds another network than its config.yaml describes")
    books = last.progress
    return Begun(run, planned, averaging, last.weights, books["children"], float(books["seconds"]))


def child(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.child import Exchanger, Link, own_config

    name = options.name or _own_name()
    if not NAME.fullmatch(name):
        raise UsageError(f"--name is {name!r}; it must be {NAME_RULE}")
    if options.cores < 0:
        raise UsageError(f"--cores is {options.cores}; it must be 1 or more")
    if not options.patience > 0:
        raise UsageError(f"--patience is {options.patience:g}; it must be greater than 0")
    link = Link(options.url, name, read_token(options.token_file), options.tls_ca, options.patience)
    with ExitStack() as held:
        welcome = link.join()
        held.callback(link.close)
        env_id = welcome.config.env.id
        envs.check_imports(welcome.config.env, options.allow_env)
        seed = mix(welcome.config.run.seed, INIT, *name.encode()) >> 33
        config = own_config(welcome, options.cores or usable_cores(), seed)
        spec = plan(config).spec
        link.get_ready(spec)
        if spec.schema != welcome.spec.schema:
            raise RunError(
                f"{env_id} makes another network here than at the parent: {spec.to_json()} instead of "
                f"{welcome.spec.to_json()}; install the same versions"
            )
        cores = config.run.workers
        print(f"{name}: {env_id} with {config.run.algo} on {cores} cores for {options.url}", flush=True)
        exchanger = Exchanger(link, spec, welcome.weights.version)
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-child-"))) / "run"
        start = replace(welcome.weights, version=0)
        train(config, directory=directory, view=_ChildView(options.quiet), exchange=exchanger, start=start)
        if link.refused:
            raise RunError(link.refused)
        print(f"{name}: {exchanger.exchanges:,} exchanges, {exchanger.steps:,} steps")


class _ChildView(View):
    """Of a run that nobody will look for afterwards."""

    def end(self, run: Run, executor: Executor) -> None:
        pass


def _own_name() -> str:
    """Its machine's, and something that tells two children of one machine apart."""
    import secrets

    host = re.sub("[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return f"{host[:50]}-{secrets.token_hex(3)}"


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"--listen {text!r} is not of the form 127.0.0.1:8765")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _need_websockets() -> None:
    try:
        import websockets  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs {error.name}; pip install 'manyhands[websockets]'") from error
