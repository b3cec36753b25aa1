"""`manyhands parent` and `manyhands child`."""

import argparse
import asyncio
import ipaddress
import re
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyhands.agent import judge
from manyhands.averaging.protocol import AveragingConfig, read_token, server_tls
from manyhands.collect.streams import INIT, mix
from manyhands.envs import make as envs
from manyhands.errors import RunError, UsageError
from manyhands.plan import Plan, plan
from manyhands.policy import Weights
from manyhands.roles.executor import Executor
from manyhands.runs import checkpoint, store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.store import Run
from manyhands.runs.view import View
from manyhands.settings import parse_override, read_yaml, resolve, usable_cores
from manyhands.signals import stop_signals
from manyhands.training import train

if TYPE_CHECKING:
    from manyhands.averaging.parent import Parent

LINE_INTERVAL = 2.0
SAVE_INTERVAL = 5.0
"""Seconds between two checkpoints for a resume."""
REPORT_EPISODES = 100
OVERRIDABLE = ("alpha", "beta", "exchanges", "every", "format", "max_step", "hogwild", "checkpoint_every")


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
    given = {name: value for name in OVERRIDABLE if (value := getattr(options, name)) is not None}
    with ExitStack() as held:
        begun = _resumed(options, given, held) if options.resume is not None else _new(options, given, held)
        text = yaml.safe_dump(asdict(begun.averaging), sort_keys=False)
        checkpoint.write_atomically(begun.run.path / store.AVERAGING, text.encode())
        keeper = _Keeper(begun, options.quiet)
        served = Parent(
            begun.averaging,
            begun.plan.config,
            begun.plan.spec,
            begun.first,
            token,
            options.silence,
            keeper.said,
            keeper.exchanged,
            {name: Child.from_plain(name, plain) for name, plain in begun.children.items()},
        )
        keeper.save(_Snapshot.of(served), "running", kept=options.resume is None)
        status = "failed"
        try:
            with stop_signals(served.stop), keeper:
                asyncio.run(served.run(host, port, tls, lambda: keeper.listening(served)))
            status = "finished" if served.over else "stopped"
        except RunError:
            if not served.address and options.resume is None:
                begun.run.discard()  # it never listened
            raise
        finally:
            if begun.run.path.exists():
                keeper.save(_Snapshot.of(served), status, kept=served.over)
        keeper.report(served)


@dataclass(frozen=True)
class _Begun:
    """A parent's run before it listens."""

    run: Run
    plan: Plan
    averaging: AveragingConfig
    first: Weights
    children: dict[str, Any]
    seconds: float = 0.0


def _new(options: argparse.Namespace, given: dict[str, Any], held: ExitStack) -> _Begun:
    if options.env is None:
        raise UsageError("which environment? For example: manyhands parent LunarLander-v3")
    averaging = AveragingConfig(**given)
    seed = {} if options.seed is None else {"run": {"seed": options.seed}}
    overrides = (*(parse_override(text) for text in options.set), seed)
    planned = plan(resolve(options.env, options.algo or "a3c", options.config, overrides))
    run = store.create(store.choose_path(options.name, options.dir), planned.config)
    held.enter_context(run.lock())
    return _Begun(run, planned, averaging, planned.first_weights(), {})


def _resumed(options: argparse.Namespace, given: dict[str, Any], held: ExitStack) -> _Begun:
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
    planned, last, status = plan(run.config()), run.checkpoint(store.LAST), run.status()
    if last.spec.schema != planned.spec.schema:
        raise RunError(f"{run.path} holds another network than its config.yaml describes")
    seconds = float(status.get("seconds", 0.0))
    return _Begun(run, planned, averaging, last.weights, status.get("children", {}), seconds)


class _Keeper:
    """Writes a parent's run directory, and shows how it goes."""

    def __init__(self, begun: _Begun, quiet: bool) -> None:
        self.run, self.plan, self.averaging, self.quiet = begun.run, begun.plan, begun.averaging, quiet
        self.console, self.errors = Console(highlight=False), Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic() - begun.seconds
        self.last_line = self.last_save = 0.0
        every = self.averaging.checkpoint_every
        self.next_kept = begun.first.version - begun.first.version % every + every
        self.log = MetricsLog(begun.run, sum(child["steps"] for child in begun.children.values()))
        self.saving = asyncio.Lock()

    def __enter__(self) -> "_Keeper":
        if not self.quiet and self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.log.close()

    def listening(self, parent: "Parent") -> None:
        if self.quiet:
            print(parent.address, flush=True)
            return
        averaging, config = self.averaging, self.plan.config
        print(
            f"{config.env.id} with {config.run.algo}, alpha {averaging.alpha:g}, beta {averaging.beta:g}, "
            f"until {averaging.exchanges:,} exchanges; run in {self.run.path}\n"
            f"Children join with: manyhands child {parent.address}",
            flush=True,
        )

    def said(self, text: str) -> None:
        console = self.errors if self.live is None else self.live.console
        console.print(Text(text), soft_wrap=True)

    async def exchanged(self, parent: "Parent") -> None:
        now = time.monotonic()
        kept = parent.version >= self.next_kept
        if kept:
            self.next_kept += self.averaging.checkpoint_every
        if kept or (now - self.last_save >= SAVE_INTERVAL and not self.saving.locked()):
            self.last_save = now
            now_known = _Snapshot.of(parent)  # here, where nobody joins meanwhile
            async with self.saving:  # in a thread: on an SD card it takes long enough to be felt
                await asyncio.to_thread(self.save, now_known, "running", kept)
        if not self.quiet and now - self.last_line >= LINE_INTERVAL:
            self.last_line = now
            self._show(parent, now)

    def _show(self, parent: "Parent", now: float) -> None:
        if self.live is not None:
            self.live.update(_children(parent))
            return
        connected = sum(child.connected for child in parent.children.values())
        mean = _mean_return(parent)
        print(
            f"{now - self.began:6.1f} s  {parent.version:>6,} exchanges  children {connected}  "
            f"return {'-' if mean is None else f'{mean:.1f}'}",
            flush=True,
        )

    def save(self, snapshot: "_Snapshot", status: str, kept: bool = False) -> None:
        """For a resume; and, when `kept`, for good, with a row of metrics."""
        weights, children = snapshot.weights, snapshot.children
        made = Checkpoint(self.plan.spec, self.plan.spaces.action, weights)
        counts = {"steps": sum(child["steps"] for child in children.values()), "exchanges": weights.version}
        seconds = round(time.monotonic() - self.began, 3)
        self.run.save(store.LAST, made)
        if kept:
            self.run.save(f"exchange-{weights.version:06}", made)
            row: dict[str, Any] = {**counts, "version": weights.version, "seconds": seconds}
            row["return_mean"] = snapshot.mean_return
            if not self.log.file.closed:
                self.log.write({**row, "children": children})
        state = {"status": status, **counts, "version": weights.version, "updated": store.now()}
        self.run.save_status({**state, "seconds": seconds, "children": children})

    def report(self, parent: "Parent") -> None:
        """The children's books, and what the averaged agent is worth."""
        if self.quiet:
            return
        self.console.print(_children(parent))
        result, goal = judge(self.run, REPORT_EPISODES, 1_000_000, False, store.LAST)
        solved = "" if goal is None else f" (goal {goal:g})"
        what = "Done" if parent.over else "Stopped"
        print(
            f"{what} after {parent.version:,} exchanges; {REPORT_EPISODES} episodes: mean {result.mean:.1f}, "
            f"sd {result.sd:.1f}{solved}. The run lies in {self.run.path}."
        )
        if not parent.over:
            print(f"Go on: manyhands parent --resume {self.run.path}")


@dataclass(frozen=True)
class _Snapshot:
    """A parent at one moment, for a thread that saves it while others join."""

    weights: Weights
    children: dict[str, dict[str, Any]]
    mean_return: float | None

    @classmethod
    def of(cls, parent: "Parent") -> "_Snapshot":
        children = {name: child.to_plain() for name, child in parent.children.items()}
        return cls(parent.weights(), children, _mean_return(parent))


def _mean_return(parent: "Parent") -> float | None:
    recent = [child.recent for child in parent.children.values() if child.recent is not None]
    return sum(recent) / len(recent) if recent else None


def _children(parent: "Parent") -> Table:
    table = Table(title=f"{parent.version:,} of {parent.averaging.exchanges:,} exchanges", box=None)
    for heading in ("child", "exchanges", "stale", "steps", "return", "round trip", "MB in", "MB out", ""):
        table.add_column(heading, justify="left" if heading in ("child", "") else "right")
    for name, child in sorted(parent.children.items()):
        table.add_row(
            Text(name),
            f"{child.exchanges:,}",
            f"{child.staleness:.1f}",
            f"{child.steps:,}",
            "-" if child.recent is None else f"{child.recent:.1f}",
            f"{1000 * child.round_trip:.1f} ms",
            f"{child.bytes_in / 1e6:.1f}",
            f"{child.bytes_out / 1e6:.1f}",
            "" if child.connected else "gone",
        )
    return table


def child(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.child import Exchanger, Link, own_config

    name = options.name or f"{socket.gethostname()}-{_letters()}"
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise UsageError(f"--name {name!r} must be letters, digits, dots, dashes and underscores")
    if options.cores < 0:
        raise UsageError(f"--cores is {options.cores}; it must be 1 or more")
    link = Link(options.url, name, read_token(options.token_file), options.tls_ca)
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
            raise RunError(f"the parent sent {name} away: {link.refused}")
        print(f"{name}: {exchanger.exchanges:,} exchanges, {exchanger.steps:,} steps")


class _ChildView(View):
    """Of a run that nobody will look for afterwards."""

    def end(self, run: Run, executor: Executor) -> None:
        pass


def _letters() -> str:
    """So that two children of one machine have two names."""
    import secrets

    return secrets.token_hex(3)


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
