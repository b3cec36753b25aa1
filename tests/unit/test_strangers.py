"""What others may send to a worker, a child and an executor that joins, with no network around them."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_allowed import ALL, ATTEMPTS, MARK

from manyhands.averaging import visiting
from manyhands.averaging.child_view import ChildView
from manyhands.averaging.limits import Limits as ChildLimits
from manyhands.averaging.recorder import ParentRecorder
from manyhands.channels.amqp import joined as amqp_joined
from manyhands.channels.amqp import worker as amqp_worker
from manyhands.channels.amqp.assignments import Players
from manyhands.channels.amqp.joined import JoinedChannel
from manyhands.channels.amqp.messages import (
    MOST_OPEN,
    Finish,
    Gone,
    Limits,
    Offer,
    Rejoin,
    Released,
    Report,
    RunSettings,
    Unplayed,
)
from manyhands.channels.amqp.session import Leave
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.base import WorkerStatus
from manyhands.channels.limits import OwnLimits
from manyhands.cli import main as cli
from manyhands.collect.collector import Collector
from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import ManyhandsError, UsageError, WireError
from manyhands.core.heartbeat import (
    BEATS,
    BUSY,
    CHECKING,
    EPISODE,
    LANE,
    NOBODY,
    RUN,
    SHARD,
    run_mark,
    unshared,
)
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.networks import Conv, Dense, Head
from manyhands.core.orders import MAX_EPISODES, EvalOrder, Order, Task
from manyhands.core.seeding import env_seed
from manyhands.core.texts import lines, one_line
from manyhands.core.weights import Weights
from manyhands.envs import lto
from manyhands.roles.daemon import Daemon, Watched
from manyhands.runs import training
from manyhands.runs.open_channel import broker_name
from manyhands.runs.plan import plan
from manyhands.runs.view import View, _worker_table

SMALL: dict[str, Any] = {
    "env": {"id": "small_envs:Chain"},
    "collect": {"shards": 1, "lanes": 4, "steps": 4},
    "net": {"hidden": [4]},
    "run": {"mode": "async", "workers": 0},
}


def task(**changes: Any) -> Task:
    return replace(plan(Config.from_plain(SMALL)).task, **changes)


def placed(value: Any, mark: Path) -> Any:
    if isinstance(value, str):
        return value.replace(MARK, str(mark))
    if isinstance(value, list):
        return [placed(item, mark) for item in value]
    return {name: placed(item, mark) for name, item in value.items()} if isinstance(value, dict) else value


class Quiet:
    """A link to a broker that is not there."""

    generation = 1
    address = "amqp://nowhere/"

    def __init__(self, *_: Any, **__: Any) -> None:
        self.sent: list[wire.Message] = []
        self.up = SimpleNamespace(is_set=lambda: True)

    def start(self, patient: bool = False) -> None: ...

    def close(self) -> None: ...

    def run(self, work: Any, timeout: float) -> None:
        work.close()

    def send(self, exchange: str, key: str, body: bytes, headers: Any = None) -> None:
        self.sent.append(wire.decode(body))


def player(monkeypatch: pytest.MonkeyPatch, patterns: list[str], limits: OwnLimits | None = None) -> Any:
    monkeypatch.setattr(amqp_worker, "Link", Quiet)
    made = amqp_worker.Player(
        None, "w", "manyhands.player.w", patterns, None, say=lambda text: None, limits=limits
    )  # type: ignore[arg-type]
    made.generation, made.inbox.name = 1, "manyhands.player.w.1"
    return made


def offer(played: Task, run: str = "run", epoch: str = "e.1") -> wire.Message:
    return Offer(run, epoch, Limits(60.0, 1000), dict(played.to_message().meta)).to_message("offer")


def kinds(made: Any) -> list[str]:
    return [message.kind for message in made.link.sent]


@pytest.mark.parametrize(("env_id", "kwargs", "patterns"), ATTEMPTS)
def test_no_attempt_gets_past_a_worker(
    env_id: str, kwargs: dict[str, Any], patterns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = player(monkeypatch, patterns)
    forged = replace(task(), env=EnvConfig(env_id, placed(kwargs, tmp_path / "mark")))
    try:
        made._do(offer(forged))
    except WireError:
        pass  # such as arguments that no message can carry
    else:
        assert kinds(made) == ["refuse"]
    assert not made.sessions
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("env_id", "kwargs", "patterns"), ATTEMPTS)
def test_no_attempt_gets_past_a_child(
    env_id: str, kwargs: dict[str, Any], patterns: list[str], tmp_path: Path
) -> None:
    config = replace(Config.from_plain(SMALL), env=EnvConfig(env_id, placed(kwargs, tmp_path / "mark")))
    link = SimpleNamespace(name="child", url="ws://parent:8765")
    with pytest.raises(UsageError):
        visiting._train_for(
            link,  # type: ignore[arg-type]
            SimpleNamespace(config=config),  # type: ignore[arg-type]
            ChildLimits.of(None, 64, 1024),
            1,
            patterns,
            True,
        )
    assert not (tmp_path / "mark").exists()


def joined(settings: str, monkeypatch: pytest.MonkeyPatch) -> JoinedChannel:
    monkeypatch.setattr(amqp_joined, "Link", Quiet)
    channel = JoinedChannel(None, "run")  # type: ignore[arg-type]
    channel.inbox = "manyhands.executor.e.1"
    message = SimpleNamespace(body=wire.encode(RunSettings("run", settings, "key").to_message("settings")))
    channel._hear(message)  # type: ignore[arg-type]
    return channel


@pytest.mark.parametrize(
    "env",
    [
        "{id: 'os:system', kwargs: {command: 'touch MARK'}}",
        "{id: 'manyhands/Lto-v0', kwargs: {functions: ['os:system'], bounds: [[-1, 1]]}}",
    ],
)
def test_an_executor_that_joins_imports_only_what_its_owner_allows(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    settings = f"env: {env.replace('MARK', str(mark))}\nrun: {{mode: async}}\n"
    channel = joined(settings, monkeypatch)
    monkeypatch.setattr("manyhands.channels.amqp.joined.JoinedChannel", lambda *_: channel)
    with pytest.raises(UsageError, match="not allowed here"):
        training.join("run", "amqp://guest@nowhere/", directory=tmp_path / "run", allowed=ALL)
    assert not mark.exists()
    assert not (tmp_path / "run").exists()


def test_settings_from_elsewhere_put_nothing_raw_on_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = joined('algo: {"\\e[2Jhi": 1}\nrun: {mode: async}', monkeypatch)
    with pytest.raises(ManyhandsError) as caught:
        channel.config([])
    with pytest.raises(SystemExit):
        cli._leave(str(caught.value), 2)
    assert capsys.readouterr().err.strip().isprintable()
    with pytest.raises(WireError, match=r"env\.id"):
        joined('env: {id: "a\\e[2Jb"}\nrun: {mode: async}', monkeypatch).config([])


def test_rubbish_is_counted_and_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made, said = player(monkeypatch, []), []
    made.inbox.say = said.append
    for _ in range(1000):
        made.inbox.hear(SimpleNamespace(headers={}, body=b"rubbish" * 9), 1)
    assert len(said) == 1
    assert made.inbox.unrecognised.total == 1000
    monkeypatch.setattr(made.inbox.unrecognised, "seconds", 0.0)
    made.inbox.hear(SimpleNamespace(headers={}, body=b"rubbish" * 9), 1)
    assert "(1001 so far)" in said[1]


def test_a_throttle_lets_a_burst_through() -> None:
    throttle = Throttle(60.0, 3)
    assert [throttle.lets_through() for _ in range(5)] == [True] * 3 + [False] * 2


def test_a_worker_does_not_hold_more_environments_than_its_owner_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = player(monkeypatch, ["small_envs:*"], OwnLimits(1000, lanes=8, message=64))
    played = task()
    made._do(offer(played))
    (session,) = made.sessions.values()
    weights = Weights(0, played.spec.initial_vector(0), played.spec.schema)
    session.versions[""].add(0, weights)
    session.send = lambda made: None
    for shard in range(3):
        order = Order(shard, 0, 0).to_message()
        made._do(replace(order, meta={**order.meta, "order": f"o-{shard}", "run": "run"}))
    assert not made.sessions
    refusals = [message.meta["text"] for message in made.link.sent if message.kind == "refuse"]
    assert "12 environments" in refusals[0]
    assert "--max-lanes allows 8" in refusals[0]


def malformed_orders(played: Task) -> list[wire.Message]:
    fresh = ShardState.fresh(played.layout)
    smaller = replace(fresh, lanes=fresh.lanes[:1])
    trial = EvalOrder(0, 0, 0, 0, 2 * MAX_EPISODES)
    return [trial.to_message(), Order(0, 0, 0, smaller).to_message(), Order(0, 0, -7).to_message()]


@pytest.mark.parametrize("which", range(3))
def test_a_malformed_order_is_answered_and_not_reported_as_open(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executor had waited for ever: every report said that the order was there."""
    made, played = player(monkeypatch, ["small_envs:*"]), task()
    made._do(offer(played))
    message = malformed_orders(played)[which]
    order = replace(message, meta={**message.meta, "order": "o-1", "run": "run"})
    made.inbox.hear(SimpleNamespace(headers={}, body=wire.encode(order)), 1)
    session = made.sessions["run"]
    assert session.unanswered == {"o-1"}
    with pytest.raises(WireError):
        made._do(made.inbox.todo.get()[1])
    assert not session.unanswered
    answer = Unplayed.from_message(made.link.sent[-1])
    assert (answer.order, answer.malformed) == ("o-1", True)


def test_all_runs_of_a_process_share_its_memory() -> None:
    played = task()
    limits = OwnLimits(memory=1, lanes=100, message=64)
    limits.check(played)
    with pytest.raises(UsageError, match="--max-memory"):
        limits.check(played, [played] * 1000)


def wide_dense() -> Task:
    """Small weights and small rollouts, but a forward pass of 16 GB."""
    played = task()
    heads = (Head("policy", 2, (Dense(1_000_000),)),)
    return replace(
        played,
        layout=replace(played.layout, lanes=4096, steps=1),
        spec=replace(played.spec, heads=heads, trunk=()),
    )


def wide_convolution() -> Task:
    played = task()
    trunk = (Conv(1000, 1, 1), Conv(1, 84, 1))
    spec = replace(played.spec, input_shape=(84, 84, 4), image="hwc", trunk=trunk, heads=(Head("policy", 2),))
    layout = replace(played.layout, lanes=64, steps=1, obs_shape=(84, 84, 4), obs_dtype="|u1")
    return replace(played, layout=layout, spec=spec)


def wide_problem(**kwargs: Any) -> Task:
    return task(env=EnvConfig(lto.ENV_ID, {"functions": ["sphere"], "x": 1000, **kwargs}))


@pytest.mark.parametrize(
    "wide",
    [
        wide_dense,
        wide_convolution,
        lambda: wide_problem(starts=["uncertainty"], candidates=100_000),
        lambda: wide_problem(starts=["latin"], intervals=1_000_000),
    ],
    ids=["dense", "convolution", "candidates", "intervals"],
)
def test_what_a_forward_pass_and_starts_would_take_counts_for_the_memory(wide: Callable[[], Task]) -> None:
    """The first had passed, and would have taken 16 GB at its first step."""
    with pytest.raises(UsageError, match=r"bytes of memory in all; --max-memory allows 500,000,000"):
        OwnLimits(500, 4096, 64).check(wide())


def test_a_process_that_asks_for_far_too_much_at_once_does_not_get_it() -> None:
    code = (
        "import sys, numpy; from manyhands.channels.limits import OwnLimits, confine;"
        "confine(OwnLimits(256));"
        "numpy.ones(10**7); numpy.empty(10**9, numpy.float64)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MemoryError" in done.stderr.splitlines()[-1]


def test_a_window_is_nobody_elses_to_open() -> None:
    from manyhands.envs import make as envs

    with pytest.raises(UsageError, match="window"):
        envs.check_imports(EnvConfig("CartPole-v1", {"render_mode": "human"}), [])


def test_a_player_with_very_many_orders_has_lost_none() -> None:
    players = Players()
    report = Report("manyhands.player.a", "w", "h", 1)
    players.join(report)
    names = [f"{shard}-{sequence}" for shard in range(128) for sequence in (0, 1)]
    for name in names:
        shard, sequence = map(int, name.split("-"))
        players.give(Order(shard, sequence, 0), name)
    later = time.monotonic() + 10
    for second in range(9):
        told = replace(report, open=tuple(names)[:MOST_OPEN])
        players.known[report.player].update(told, later + second)
    assert players.overdue() == []


@pytest.mark.parametrize("worker_memory", [1, 99])
def test_limits_under_which_no_process_can_play_are_refused(worker_memory: int) -> None:
    with pytest.raises(ValueError, match="limits of"):
        Limits(60.0, worker_memory)


class Ended:
    """A process that has ended."""

    pid = 2**22 + 1

    def poll(self) -> int:
        return -9


@pytest.mark.parametrize("retired", [True, False])
def test_what_grows_too_large_when_it_is_made_is_not_made_again(retired: bool) -> None:
    daemon = Daemon("amqp://127.0.0.1:1/", 1, "worker", False, [])
    signs = unshared()
    signs[BEATS], signs[BUSY], signs[SHARD], signs[RUN] = 3, 1, CHECKING, 77
    watched = Watched("player", Ended(), signs, retired=retired, index=0)  # type: ignore[arg-type]
    watched.reason = "it held 5000 MB" if retired else ""
    daemon.players.append(watched)
    daemon._tell = lambda message: None  # type: ignore[method-assign]
    daemon._bury(watched, -9)
    daemon.link.close()
    assert (77 in daemon.refused_runs) == retired  # a kill by somebody says nothing about the run
    assert (daemon.due[0] > time.monotonic() + 0.05) == retired


def buried(signs: memoryview, code: int, once: bool = False) -> tuple[Daemon, list[wire.Message]]:
    """A daemon whose only process has ended with `code`, and what it told executors."""
    daemon, told = Daemon("amqp://127.0.0.1:1/", 1, "worker", once, []), []
    watched = Watched("manyhands.player.h", Ended(), signs, index=0)  # type: ignore[arg-type]
    daemon.players.append(watched)
    daemon.due.clear()
    daemon.welcome = True
    daemon._tell = told.append  # type: ignore[method-assign]
    daemon._bury(watched, code)
    daemon.link.close()
    return daemon, told


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    ("code", "guilty"),
    [
        (0, True),
        (1, True),
        (70, False),
        (-signal.SIGTRAP, True),
        (-signal.SIGSYS, True),
        (-signal.SIGKILL, False),
    ],
)
def test_whoever_ends_its_process_during_an_order_is_to_blame(code: int, guilty: bool, once: bool) -> None:
    """os._exit(0) in a step was a farewell, or was played again until the run failed."""
    signs = unshared()
    signs[BEATS], signs[BUSY], signs[EPISODE] = 3, 1, 7
    daemon, told = buried(signs, code, once)
    gone = Gone.from_message(told[0])
    assert (gone.guilty, gone.fault, gone.episode) == (guilty, True, 7)
    assert daemon.due


def test_a_process_that_is_killed_before_it_could_start_is_back_at_once() -> None:
    daemon, _ = buried(unshared(), -9)
    assert daemon.due[0] <= time.monotonic()
    daemon, _ = buried(unshared(), 1)
    assert daemon.due[0] > time.monotonic() + 0.05


def test_a_process_that_leaves_after_its_run_is_not_replaced() -> None:
    daemon, told = buried(unshared(), 0, once=True)
    assert not told
    assert not daemon.due


def test_an_environment_that_exits_leaves_the_sign_of_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.exit() in a step ended the process as if there had been no order."""
    made = player(monkeypatch, ["small_envs:*"])
    made._do(offer(task()))
    for raised, busy in ((SystemExit, 1), (Leave, 0), (RuntimeError, 0)):
        with pytest.raises(raised), made.sessions["run"].watched():
            raise raised
        assert made.progress[BUSY] == busy


@pytest.mark.parametrize("how", ["finish", "another offer", "rejoin", "failed", "new connection", "leave"])
def test_environments_are_closed_under_the_eyes_of_the_supervisor(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hung in close() had hung for good, and was blamed on whatever was played last."""
    made, seen = player(monkeypatch, ["small_envs:*"]), []
    made._do(offer(task()))
    session = made.sessions["run"]
    made.progress[RUN], made.progress[SHARD], made.progress[EPISODE] = 0, CHECKING, 5

    def close() -> None:
        signs = made.progress
        seen.append((signs[BUSY], signs[RUN] == run_mark("run"), signs[SHARD] == CHECKING, signs[EPISODE]))

    monkeypatch.setattr(session.collector, "close", close)
    match how:
        case "finish":
            made._do(Finish("run", "over").to_message("finish"))
        case "another offer":
            made._do(offer(task(), epoch="e.2"))
        case "rejoin":
            made._do(Rejoin("run").to_message("rejoin"))
        case "failed":
            made._fail(session, "some reason")
        case "new connection":
            made._forget()
        case "leave":
            made.leave()
    assert seen == [(1, True, False, NOBODY)]
    assert not made.progress[BUSY]


def test_closing_many_environments_is_no_hang() -> None:
    played, signs = task(), unshared()
    collector = Collector(played, "w", lambda event: None, progress=signs)
    weights = Weights(0, played.spec.initial_vector(0), played.spec.schema)
    collector.collect(Order(0, 0, 0), weights, played.layout.allocate())
    before = signs[BEATS]
    collector.close()
    assert signs[BEATS] == before + played.layout.lanes


def test_a_state_of_another_layout_does_not_fit() -> None:
    layout = task().layout
    assert ShardState.fresh(layout).fits(layout)
    lanes = tuple(
        LaneState(0, np.zeros((2, 3), np.int32), np.zeros(9, np.float32)) for _ in range(layout.lanes)
    )
    assert not ShardState(1, lanes).fits(layout)
    assert not ShardState(1, ShardState.fresh(layout).lanes[:1]).fits(layout)


def test_episodes_to_skip_are_kept_when_another_executor_has_learned() -> None:
    fresh = ShardState.fresh(task().layout)
    before = fresh.skipping(1, 3).skipping(1, 0).skipping(2, 5)
    after = ShardState(4, tuple(replace(lane, episode=2) for lane in fresh.lanes)).still_skipping(before)
    assert [lane.skip for lane in after.lanes] == [(), (3,), (5,), ()]


def test_an_episode_to_skip_is_not_even_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    import small_envs

    played = task()
    begun: list[int | None] = []
    reset = small_envs.Chain.reset

    def noted(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
        begun.append(seed)
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(small_envs.Chain, "reset", noted)
    collector = Collector(played, "w", lambda event: None)
    state = ShardState.fresh(played.layout).skipping(1, 0)
    weights = Weights(0, played.spec.initial_vector(0), played.spec.schema)
    collector.collect(Order(0, 0, 0, state), weights, played.layout.allocate())
    assert env_seed(played.seed, 1, 0) not in begun
    assert env_seed(played.seed, 1, 1) in begun


def test_signs_name_the_lander_whose_physics_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from manyhands.envs.box2d import Lander

    settings = {"env": {"id": "LunarLander-v3"}, "collect": {"shards": 1, "lanes": 3, "steps": 4}}
    played, signs = plan(Config.from_plain({**SMALL, **settings})).task, unshared()
    collector = Collector(played, "w", lambda event: None, progress=signs)
    landers: list[int] = []
    seen: list[tuple[int, int]] = []
    start = Lander.start

    def noted(self: Any, action: Any) -> None:
        if id(self) not in landers:
            landers.append(id(self))
        seen.append((landers.index(id(self)), signs[LANE]))
        start(self, action)

    monkeypatch.setattr(Lander, "start", noted)
    weights = Weights(0, played.spec.initial_vector(0), played.spec.schema)
    collector.collect(Order(0, 0, 0), weights, played.layout.allocate())
    assert len(seen) == 3 * (1 + 4)  # a reset steps once
    assert all(lander == lane for lander, lane in seen)
    assert signs[EPISODE] == 0


@pytest.mark.parametrize(
    ("letter", "kind"),
    [
        (Finish("r" * 201, "over"), "finish"),
        (Finish("\U0001f600" * 51, "over"), "finish"),
        (Unplayed("manyhands.player.h", "o" * 201, "cannot"), "unplayed"),
        (Released("manyhands.player." + "h" * 200, 0), "released"),
    ],
)
def test_names_that_no_queue_can_have_are_refused(letter: Any, kind: str) -> None:
    with pytest.raises(WireError, match="a name of at most 200 bytes"):
        type(letter).from_message(letter.to_message(kind))


def test_a_run_whose_name_is_too_long_for_a_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 180 bytes"):
        broker_name(tmp_path / ("\U0001f600" * 46))
    assert len(broker_name(tmp_path / ("x" * 180)).encode()) < 200


def test_brackets_in_names_of_workers_are_shown_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=120)
    status = WorkerStatus("[/evil]", 0.0, False, host="[bold]host")
    console.print(_worker_table([status], 1))
    assert "[/evil]" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]host" in console.file.getvalue()  # type: ignore[attr-defined]


RAW = "actor-0 failed [/bold]\n\x1b[2J\u202e forged\r line \x07"
SHOWN = ["actor-0 failed [/bold]", r"\x1b[2J\u202e forged", r" line \x07"]


@pytest.mark.parametrize("kind", [View, ChildView, ParentRecorder])
def test_what_anybody_says_is_shown_without_control_of_the_terminal(kind: type[Any]) -> None:
    """On every channel: an environment's traceback is text of others as well."""
    view = kind.__new__(kind)
    view.live, view.errors = None, Console(file=io.StringIO(), width=120)
    view.events = SimpleNamespace(write=lambda *_, **__: None)
    view.said(RAW)
    assert view.errors.file.getvalue().splitlines() == SHOWN


def test_of_very_many_lines_the_first_and_the_last_are_shown() -> None:
    found = lines("\n".join(map(str, range(1000))), most=5).splitlines()
    assert found == ["0", "... (996 more lines)", "997", "998", "999"]
    assert lines("a\nb", most=2) == "a\nb"


def test_what_is_shown_is_printable_whatever_was_sent() -> None:
    everything = "".join(map(chr, range(0x3100))) + "\ue000\U000e0001"
    shown = one_line(everything, len(everything))
    assert shown.isprintable()
    assert "\\u2028" in shown
    assert "\\u202f" in shown  # a space that looks like another
    assert "é" in shown
