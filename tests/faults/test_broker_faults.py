"""A real RabbitMQ and real kills: workers, executors and the broker come and go, and no bit changes."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from brokers import TESTS, Cutter, Workers, broker, crew, wait_for

from manyhands.config.resolve import merge, resolve
from manyhands.config.settings import Config
from manyhands.core.errors import EnvError
from manyhands.core.heartbeat import unshared
from manyhands.roles.broker import Broker
from manyhands.roles.daemon import Daemon, Watched
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View

SMALL: dict[str, Any] = {
    "collect": {"shards": 2, "lanes": 4, "steps": 32},
    "algo": {"minibatch": 64, "epochs": 2},
    "run": {
        "steps": 6144,
        "until": "steps",
        "workers": 0,
        "mode": "sync",
        "seed": 3,
        "checkpoint_every": 0.0,
    },
}

INLINE: dict[str, Any] = {"run": {"workers": 0, "seed": 1}}
DELAY = 0.0005
"""Seconds of a slow step: long enough for a kill in the middle of a run."""


def config(env_id: str = "small_envs:Slow", **layers: dict[str, Any]) -> Config:
    kwargs = {"delay": DELAY} if env_id == "small_envs:Slow" else {}
    return Config.from_plain(merge(SMALL, {"env": {"id": env_id, "kwargs": kwargs}}, layers))


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


@cache
def undisturbed() -> str:
    """The weights of a run that nothing happened to, without a broker."""
    with TemporaryDirectory() as temporary:
        return digest(train(config(), directory=Path(temporary) / "run"))


class Watcher(View):
    """Keeps what a run says, and does something once it has learned from `after` steps."""

    def __init__(self, after: int = 0, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.after, self.act, self.acted = after, act, False
        self.counts: Any = None

    def said(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, row: Any, executor: Any) -> None:
        self.counts = executor.channel.tally.counts
        if executor.counts.steps >= self.after and not self.acted:
            self.acted = True
            self.act()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def balanced(counts: Any) -> None:
    """The books of an executor: whatever came was learned or is counted as dropped."""
    assert counts.received == counts.accepted + counts.dropped
    assert counts.acknowledged <= counts.accepted


def test_a_player_that_is_killed_is_replaced_and_changes_no_bit(tmp_path: Path) -> None:
    with Workers(broker().url, 2) as workers:
        view = Watcher(2000, lambda: os.kill(workers.players()[0], signal.SIGKILL))
        disturbed = train(config(), directory=tmp_path / "killed", view=view, channel=broker().url)
    assert "ended by SIGKILL" in view.text
    assert digest(disturbed) == undisturbed()
    balanced(view.counts)


def test_a_player_that_falls_silent_is_given_up_and_comes_back(tmp_path: Path) -> None:
    """As when a laptop sleeps: its connection is still there, and the broker notices nothing."""
    with Workers(broker().url, 2) as workers:
        asleep: list[int] = []

        def fall_asleep() -> None:
            asleep.append(workers.players()[0])
            os.kill(asleep[0], signal.SIGSTOP)

        def finished(view: Watcher) -> bool:
            return any("it said nothing for" in line for line in view.lines)

        view = Watcher(1000, fall_asleep)
        waker = threading.Thread(
            target=lambda: (wait_for(lambda: finished(view)), os.kill(asleep[0], signal.SIGCONT))
        )
        waker.start()
        blameless = config(run={"max_faults": 0})
        disturbed = train(blameless, directory=tmp_path / "asleep", view=view, channel=broker().url)
        waker.join()
    assert digest(disturbed) == undisturbed()
    balanced(view.counts)


def test_all_workers_die_and_others_take_over_without_changing_a_bit(tmp_path: Path) -> None:
    with ExitStack() as crews:
        first = crews.enter_context(Workers(broker().url, 2))

        def replace() -> None:
            first.kill()
            threading.Timer(1.0, lambda: crews.enter_context(Workers(broker().url, 3))).start()

        view = Watcher(2000, replace)
        blameless = config(run={"max_faults": 0})  # that machines come and go is no environment's fault
        disturbed = train(blameless, directory=tmp_path / "killed", view=view, channel=broker().url)
    assert digest(disturbed) == undisturbed()
    assert "its connection to the broker ended" in view.text


def test_workers_that_join_and_leave_share_the_shards_without_changing_a_bit(tmp_path: Path) -> None:
    plain = {"collect": {"shards": 4, "lanes": 2}}
    whole = train(config(**plain), directory=tmp_path / "whole")
    with ExitStack() as crews:
        first = crews.enter_context(Workers(broker().url, 1))

        def swap() -> None:
            crews.enter_context(Workers(broker().url, 2))
            threading.Timer(3.0, first.stop).start()

        view = Watcher(500, swap)
        disturbed = train(config(**plain), directory=tmp_path / "moved", view=view, channel=broker().url)
    assert digest(disturbed) == digest(whole)


def test_the_executor_is_killed_and_resumed_to_the_same_weights(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    words = ["small_envs:Slow", "--mode", "sync", "--steps", "6144", "--until", "steps", "--seed", "3"]
    for name, value in (("lanes", 4), ("steps", 32)):
        words += ["--set", f"collect.{name}={value}"]
    words += ["--set", f"env.kwargs={{delay: {DELAY}}}", "--set", "run.test_episodes=4"]
    words += ["--set", "net.normalise=false", "--set", "algo.normalise_reward=false"]
    words += ["--set", "algo.minibatch=64", "--set", "algo.epochs=2", "--set", "run.checkpoint_every=0"]
    command = [sys.executable, "-m", "manyhands", "train"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "MANYHANDS_CHANNEL": crew(2)}
    process = subprocess.Popen(
        [*command, *words, "--dir", str(cut)], env=environment, stdout=subprocess.DEVNULL
    )
    wait_for((cut / "checkpoints" / "last.safetensors").exists)
    time.sleep(1.0)
    process.kill()
    process.wait()
    assert Run(cut).status()["steps"] < 6144
    resume = [*command, "--resume", str(cut)]
    subprocess.run(resume, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert digest(Run(cut)) == undisturbed()


def cart(large: bool = False) -> Config:
    """CartPole until solved; `large` sends a hundred kilobytes at a time."""
    rollouts = {"collect": {"lanes": 16, "steps": 256}} if large else {}
    return resolve("CartPole-v1", "ppo", None, (INLINE, rollouts))


@cache
def undisturbed_solution(large: bool = False) -> str:
    with TemporaryDirectory() as temporary:
        run = train(cart(large), directory=Path(temporary) / "run")
        assert run.status()["solved"]
        return digest(run)


def test_a_worker_killed_in_the_middle_of_a_send_is_not_heard_and_the_run_ends_solved(tmp_path: Path) -> None:
    """The broker has half of a trajectory's bytes when the player dies; another plays it again."""
    cutter = Cutter(broker().url)
    cutter.armed.set()
    view = Watcher()
    with Workers(cutter.url, 1) as workers:

        def kill() -> None:
            assert cutter.cut.wait(60)
            cutter.armed.clear()
            os.kill(workers.players()[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        run = train(cart(large=True), directory=tmp_path / "run", view=view, channel=broker().url)
        killer.join()
    cutter.close()
    assert "was lost" in view.text
    assert digest(run) == undisturbed_solution(large=True)
    balanced(view.counts)
    assert view.counts.dropped == 0


@pytest.mark.parametrize("what", ["a worker", "all workers", "the broker"])
def test_whatever_dies_the_run_ends_solved_with_the_same_bits(tmp_path: Path, what: str) -> None:
    node = Broker(directory=tmp_path / "broker").start() if what == "the broker" else broker()
    crews = [Workers(node.url, 2)]

    def strike() -> None:
        if what == "the broker":
            node.kill()
            threading.Timer(0.5, node.start).start()
        elif what == "all workers":
            crews[0].kill()
            crews.append(Workers(node.url, 2))
        else:
            os.kill(crews[0].players()[0], signal.SIGKILL)

    view = Watcher(4000, strike)
    try:
        run = train(cart(), directory=tmp_path / "run", view=view, channel=node.url)
    finally:
        for each in crews:
            each.__exit__()
        if what == "the broker":
            node.stop()
    assert view.acted
    if what == "the broker":
        assert "the connection to the broker is lost" in view.text
        assert "connected to the broker again" in view.text
    assert run.status()["solved"]
    assert digest(run) == undisturbed_solution()
    balanced(view.counts)


def test_a_killed_executor_is_resumed_until_solved_with_the_same_bits(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    environment = {**os.environ, "MANYHANDS_CHANNEL": crew(2)}
    command = [sys.executable, "-m", "manyhands", "train"]
    start = [*command, "CartPole-v1", "--algo", "ppo", "--seed", "1", "--dir", str(run.path)]
    start += ["--set", "run.checkpoint_every=0.1"]
    process = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: run.checkpoint_path(LAST).exists() and run.status().get("steps", 0) >= 4000)
    process.kill()
    process.wait()
    assert not run.status()["solved"]
    resume = [*command, "--resume", str(run.path)]
    subprocess.run(resume, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert run.status()["solved"]
    assert digest(run) == undisturbed_solution()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the simulator exploded"),
        ("hang", "took longer than"),
        ("segfault", "SIGSEGV"),
        ("exit", "exit code 7"),
    ],
)
def test_a_misbehaving_environment_takes_one_player_and_the_run_goes_on(
    tmp_path: Path, how: str, said: str
) -> None:
    view = Watcher()
    kwargs = {"how": how, "marker": str(tmp_path / "marker")}
    layers = {"env": {"kwargs": kwargs}, "run": {"hang_timeout": 1.0}}
    with Workers(broker().url, 2):
        run = train(
            config("small_envs:Failing", **layers),
            directory=tmp_path / "run",
            view=view,
            channel=broker().url,
        )
    assert said in view.text
    assert "lane" in view.lines[0]
    assert run.status()["steps"] == 6144


def test_a_player_that_grows_larger_than_its_run_allows_is_replaced(tmp_path: Path) -> None:
    view = Watcher()
    layers = {"env": {"kwargs": {"leak": 30_000}}, "run": {"worker_memory": 150, "steps": 8192}}
    with Workers(broker().url, 1):
        train(
            config("small_envs:Leaky", **layers),
            directory=tmp_path / "run",
            view=view,
            channel=broker().url,
        )
    assert "MB, more than 150" in view.text


def test_a_closed_terminal_ends_a_worker_and_its_players_politely() -> None:
    with Workers(broker().url, 2) as workers:
        wait_for(lambda: len(workers.players()) == 2)
        players = workers.players()
        workers.process.send_signal(signal.SIGHUP)
        assert workers.process.wait(30) == 0
        assert not any(psutil.pid_exists(player) for player in players)


@pytest.mark.parametrize("welcome", [True, False])
def test_a_player_that_cannot_start_ends_its_worker_only_if_none_ever_could(welcome: bool) -> None:
    daemon = Daemon("amqp://127.0.0.1:1/", 1, "worker", False, [])
    daemon.welcome = welcome
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], process_group=0, text=True)
    player = Watched("player", failed, unshared(), index=0)
    daemon.players.append(player)
    daemon.due.clear()
    daemon._bury(player, failed.wait())
    daemon.link.close()
    assert daemon.stopping == (not welcome)
    assert bool(daemon.due) == welcome


def test_an_environment_that_always_fails_ends_the_run_with_one_line(tmp_path: Path) -> None:
    kwargs = {"how": "raise", "marker": str(tmp_path / "marker"), "always": True}
    layers = {"env": {"kwargs": kwargs}, "run": {"max_faults": 3}}
    with Workers(broker().url, 1), pytest.raises(EnvError, match="failed more than 3 times"):
        train(config("small_envs:Failing", **layers), directory=tmp_path / "run", channel=broker().url)


def test_a_worker_that_may_not_or_cannot_play_says_so_and_stays_for_others(tmp_path: Path) -> None:
    view = Watcher()
    refusing = Workers(broker().url, 1, patterns=())
    try:
        training = threading.Thread(
            target=train,
            args=(config("small_envs:Chain"),),
            kwargs={"directory": tmp_path / "run", "view": view, "channel": broker().url},
        )
        training.start()
        wait_for(lambda: "--allow" in view.text)
        assert refusing.process.poll() is None
        cart = config("CartPole-v1")
        assert train(cart, directory=tmp_path / "other", channel=broker().url).status()["steps"] == 6144
        with Workers(broker().url, 1):
            training.join(60)
        assert Run(tmp_path / "run").status()["steps"] == 6144
    finally:
        refusing.stop()
