"""`manyhands parent` and `manyhands child`."""

import argparse
import asyncio
import ipaddress
import json
import re
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from manyhands.averaging.protocol import AveragingConfig, read_token, server_tls
from manyhands.collect.streams import INIT, mix
from manyhands.envs import make as envs
from manyhands.errors import RunError, UsageError
from manyhands.policy import Weights
from manyhands.runs import checkpoint, store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.store import Run
from manyhands.settings import parse_override, read_yaml, resolve, usable_cores

FILE = "averaging.yaml"
LINE_INTERVAL = 2.0
SAVE_INTERVAL = 5.0
"""Seconds between two checkpoints for a resume."""
REPORT_EPISODES = 100
OVERRIDABLE = ("alpha", "beta", "exchanges", "every", "format", "max_step", "hogwild", "checkpoint_every")


def parent(options: argparse.Namespace) -> None:
    _need_websockets()
    from manyhands.averaging.parent import Parent
    from manyhands.training import plan, stop_signals

    host, port = _listen(options.listen)
    token = read_token(options.token_file)
    if not _is_loopback(host) and not token:
        raise UsageError(
            f"beyond this machine ({host}) a parent demands a token; write one into a file and give "
            "--token-file to the parent and to every child"
        )
    tls = server_tls(options.tls_cert, options.tls_key)
    given = {name: value for name in OVERRIDABLE if (value := getattr(options, name)) is not None}
    with ExitStack() as held:
        if options.resume is not None:
            run = store.find(options.resume)
            config = run.config()
            averaging = AveragingConfig(**{**read_yaml(run.path / FILE), **given})
            held.enter_context(run.lock())
            planned = plan(config)
            first = run.checkpoint(store.LAST).weights
        else:
            if options.env is None:
                raise UsageError("which environment? For example: manyhands parent LunarLander-v3")
            averaging = AveragingConfig(**given)
            overrides = tuple(parse_override(text) for text in options.set)
            seed = {} if options.seed is None else {"run": {"seed": options.seed}}
            config = resolve(options.env, options.algo or "a3c", options.config, (*overrides, seed))
            planned = plan(config)
            first = planned.first_weights()
            run = store.create(store.choose_path(options.name, options.dir), config)
            held.enter_context(run.lock())
        text = yaml.safe_dump(asdict(averaging), sort_keys=False)
        checkpoint.write_atomically(run.path / FILE, text.encode())
        keeper = _Keeper(run, planned, averaging, options.quiet)
        served = Parent(
            averaging, config, planned.spec, first, token, options.silence, keeper.said, keeper.exchanged
        )
        keeper.save(served, kept=options.resume is None)
        with stop_signals(served.stop), keeper:
            try:
                asyncio.run(served.run(host, port, tls, lambda: keeper.listening(served)))
            finally:
                keeper.save(served)
        keeper.report(served)


class _Keeper:
    """Writes a parent's run directory, and shows how it goes."""

    def __init__(self, run: Run, plan: Any, averaging: AveragingConfig, quiet: bool) -> None:
        self.run, self.plan, self.averaging, self.quiet = run, plan, averaging, quiet
        self.console, self.errors = Console(highlight=False), Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic()
        self.last_line = self.last_save = 0.0
        self.metrics = run.metrics_path.open("a")

    def __enter__(self) -> "_Keeper":
        if not self.quiet and self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.metrics.close()

    def listening(self, parent: Any) -> None:
        if not self.quiet:
            averaging = self.averaging
            print(
                f"{self.plan.config.env.id} with {self.plan.config.run.algo}, alpha {averaging.alpha:g}, "
                f"beta {averaging.beta:g}, until {averaging.exchanges:,} exchanges; run in {self.run.path}\n"
                f"Children join with: manyhands child {parent.address}",
                flush=True,
            )

    def said(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, soft_wrap=True)
        else:
            self.errors.print(text, soft_wrap=True)

    def exchanged(self, parent: Any) -> None:
        now = time.monotonic()
        if parent.version % self.averaging.checkpoint_every == 0:
            self.save(parent, kept=True)
            self._row(parent, now)
        elif now - self.last_save >= SAVE_INTERVAL:
            self.save(parent)
        if self.quiet or now - self.last_line < LINE_INTERVAL:
            return
        self.last_line = now
        if self.live is not None:
            self.live.update(_children(parent))
        else:
            connected = sum(child.connected for child in parent.children.values())
            recent = [child.recent for child in parent.children.values() if child.recent is not None]
            mean = f"{sum(recent) / len(recent):.1f}" if recent else "-"
            print(
                f"{now - self.began:6.1f} s  {parent.version:>6,} exchanges  children {connected}  "
                f"return {mean}",
                flush=True,
            )

    def _row(self, parent: Any, now: float) -> None:
        children = {name: child.to_plain() for name, child in parent.children.items()}
        steps = sum(child.steps for child in parent.children.values())
        row = {"steps": steps, "exchanges": parent.version, "seconds": round(now - self.began, 3)}
        recent = [child.recent for child in parent.children.values() if child.recent is not None]
        if recent:
            row["return_mean"] = sum(recent) / len(recent)
        self.metrics.write(json.dumps({**row, "children": children}) + "\n")
        self.metrics.flush()

    def save(self, parent: Any, kept: bool = False) -> None:
        self.last_save = time.monotonic()
        weights: Weights = parent.weights()
        made = Checkpoint(self.plan.spec, self.plan.spaces.action, weights)
        self.run.save(store.LAST, made)
        if kept:
            self.run.save(f"exchange-{weights.version:06}", made)
        children = {name: child.to_plain() for name, child in parent.children.items()}
        status = "finished" if parent.over else "running"
        steps = sum(child.steps for child in parent.children.values())
        state = {"status": status, "exchanges": parent.version, "steps": steps, "updated": store.now()}
        state["seconds"] = time.monotonic() - self.began
        self.run.save_status({**state, "children": children})

    def report(self, parent: Any) -> None:
        """The children's books, and what the averaged agent is worth."""
        from manyhands.agent import judge

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


def _children(parent: Any) -> Table:
    table = Table(title=f"{parent.version:,} of {parent.averaging.exchanges:,} exchanges", box=None)
    for heading in ("child", "exchanges", "stale", "steps", "return", "round trip", "MB in", "MB out", ""):
        table.add_column(heading, justify="left" if heading in ("child", "") else "right")
    for name, child in sorted(parent.children.items()):
        table.add_row(
            name,
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
    from manyhands.runs.view import View
    from manyhands.training import plan, train

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
        if welcome.over:
            print("The parent has all its exchanges already.")
            return
        cores = config.run.workers
        print(f"{name}: {env_id} with {config.run.algo} on {cores} cores for {options.url}", flush=True)
        exchanger = Exchanger(link, welcome.averaging, spec, welcome.weights.version)
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-child-"))) / "run"
        start = replace(welcome.weights, version=0)
        train(config, directory=directory, view=View(options.quiet), exchange=exchanger, start=start)
        if link.refused:
            raise RunError(f"the parent sent {name} away: {link.refused}")
        print(f"{name}: {exchanger.exchanges:,} exchanges, {exchanger.steps:,} steps")


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
