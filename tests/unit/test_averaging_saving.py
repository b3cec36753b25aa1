"""A parent's run directory: saved without holding up a child, bounded, and read with care."""

import asyncio
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from manyhands.averaging import child_stats as books
from manyhands.averaging import serving
from manyhands.averaging.child_stats import Child, Forgotten, ParentStats
from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.maths import quantise
from manyhands.averaging.parent import Parent
from manyhands.averaging.protocol import PROTOCOL, AveragingConfig, structure
from manyhands.averaging.recorder import MOST_PENDING, ParentRecorder, ParentSetup
from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.errors import ManyhandsError, WireError
from manyhands.runs import store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST, Run

PLANNED = plan(Config.from_plain({"env": {"id": "CartPole-v1"}}), learns_here=False)


class Exchanging:
    """A parent in this process, and somebody who exchanges with it as fast as it answers."""

    def __init__(self, path: Path, exchanges: int, every: int) -> None:
        averaging = AveragingConfig(exchanges=exchanges, checkpoint_every=every, alpha=0.5)
        run, stats = store.create(path, PLANNED.config), ParentStats({}, Forgotten())
        begun = ParentSetup(run, PLANNED, averaging, PLANNED.first_weights(), stats)
        self.keeper = ParentRecorder(begun, quiet=True)
        self.parent = Parent(
            averaging,
            PLANNED.config,
            PLANNED.spec,
            begun.first,
            "",
            60.0,
            lambda text: None,
            self.keeper.exchanged,
            self.keeper.turned,
            self.keeper.room,
            stats,
        )
        self.answers: list[np.ndarray[Any, Any]] = []
        self.trips: list[float] = []
        self.pending: list[int] = []

    def run(self) -> Run:
        with self.keeper:
            status = "failed"
            try:
                asyncio.run(self._both())
                status = "finished"
            finally:
                self.keeper.finish(self.parent, status)
        return self.keeper.run

    async def _both(self) -> None:
        listening = asyncio.Event()
        served = asyncio.create_task(self.parent.run("127.0.0.1", 0, None, listening.set))
        await listening.wait()
        with suppress(ConnectionClosed):
            await self._exchange()
        await served

    async def _exchange(self) -> None:
        spec, rng = PLANNED.spec, np.random.default_rng(0)
        async with connect(self.parent.address, compression=None) as connection:
            hello = {"protocol": PROTOCOL, "name": "one", "token": "", "life": "1"}
            await connection.send(wire.encode(wire.Message("hello", "", hello)))
            wire.decode(await connection.recv(decode=False), "welcome")
            await connection.send(wire.encode(wire.Message("ready", spec.schema, structure(spec, "float32"))))
            for number in range(1, self.parent.averaging.exchanges + 1):
                meta = {"base": 0, "steps": 10 * number, "episodes": number, "round_trip": 0.0}
                sent = quantise(rng.normal(size=spec.size).astype(np.float32), "float32")
                began = time.monotonic()
                await connection.send(wire.encode(wire.Message("exchange", spec.schema, meta, sent)))
                answer = wire.decode(await connection.recv(decode=False), "answer")
                self.trips.append(time.monotonic() - began)
                self.pending.append(len(self.keeper.saver.waiting))
                self.answers.append(answer.arrays["values"].copy())
            await connection.wait_closed()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that each kept checkpoint takes."""
    seconds, save = 0.4, Run.save

    def slow(run: Run, which: str, made: Checkpoint) -> None:
        if which != LAST:
            time.sleep(seconds)
        save(run, which, made)

    monkeypatch.setattr(Run, "save", slow)
    return seconds


def check_saved(exchanging: Exchanging, run: Run, every: int) -> None:
    exchanges = exchanging.parent.averaging.exchanges
    for number in range(every, exchanges + 1, every):
        kept = run.checkpoint(f"exchange-{number:06}")
        assert kept.weights.version == number
        assert np.array_equal(kept.weights.vector, exchanging.answers[number - 1])
        assert kept.progress["children"]["one"]["steps"] == 10 * number
        assert kept.progress["children"]["one"]["exchanges"] == number
    assert [row["exchanges"] for row in run.rows()] == list(range(every, exchanges + 1, every))
    assert run.status()["exchanges"] == exchanges
    assert run.checkpoint(LAST).progress["children"]["one"]["exchanges"] == exchanges


def test_a_child_does_not_wait_for_its_parents_disk(tmp_path: Path, slow_disk: float) -> None:
    exchanging = Exchanging(tmp_path / "run", 15, 5)
    run = exchanging.run()
    assert max(exchanging.trips) < slow_disk / 2
    check_saved(exchanging, run, 5)


def test_checkpoints_do_not_pile_up_and_none_is_lost(tmp_path: Path, slow_disk: float) -> None:
    exchanging = Exchanging(tmp_path / "run", 9, 1)
    run = exchanging.run()
    assert max(exchanging.trips[:MOST_PENDING]) < slow_disk / 2
    assert max(exchanging.pending) == MOST_PENDING
    check_saved(exchanging, run, 1)


def test_a_disk_that_fails_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Run.save

    def full(run: Run, which: str, made: Checkpoint) -> None:
        if which == "exchange-000005":
            raise OSError(28, "No space left on device", which)
        save(run, which, made)

    monkeypatch.setattr(Run, "save", full)
    exchanging = Exchanging(tmp_path / "run", 1_000_000, 5)
    with pytest.raises(OSError, match="No space left"):
        exchanging.run()
    assert exchanging.keeper.run.status()["status"] == "failed"


def new_parent(children: dict[str, Child]) -> Parent:
    stats = ParentStats(children, Forgotten())
    first = PLANNED.first_weights()
    return Parent(AveragingConfig(), PLANNED.config, PLANNED.spec, first, "", 60.0, stats=stats)


def test_a_parent_forgets_whom_it_misses_least_and_keeps_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.averaging.admission.MOST_CHILDREN", 4)
    children = {
        "here": Child("here", connected=True, steps=1),
        "diligent": Child("diligent", exchanges=50, steps=500),
        "left": Child("left", left=True, exchanges=60, steps=600, refused=2),
        "idle": Child("idle", exchanges=3, steps=30),
    }
    parent = new_parent(children)
    for number in range(100):  # a child without --name that restarts in a loop
        child = parent.admission.remember(f"new-{number}")
        child.exchanges, child.steps, child.left = 1, 10, False
    assert set(parent.children) == {"here", "diligent", "idle", "new-99"}
    assert parent.forgotten.children == 100
    assert parent.forgotten.exchanges == 60 + 99
    assert parent.forgotten.refused == 2
    stats = ParentStats(parent.children, parent.forgotten)
    assert stats.steps == 1 + 500 + 600 + 30 + 100 * 10
    assert ParentStats.read(stats.to_plain()).steps == stats.steps
    assert len(parent.gone) <= 4


def test_a_full_parent_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.averaging.admission.MOST_CHILDREN", 1)
    parent = new_parent({"here": Child("here", connected=True)})
    assert parent.admission.remember("here").name == "here"
    with pytest.raises(Exception, match="has 1 children already"):
        parent.admission.remember("new")


def test_a_checkpoint_holds_the_longest_records_of_all_children(tmp_path: Path) -> None:
    count, large = 2**62, 1e299
    fields: dict[str, Any] = {"joined": count, "life": "x" * 64, "life_steps": count, "life_episodes": count}
    fields |= {"exchanges": count, "last": count, "refused": count, "steps": count, "episodes": count}
    fields |= {"staleness": large, "bytes_in": count, "bytes_out": count, "round_trip": large}
    children = {
        name: Child(name, recent=large, size=large, **fields)
        for name in (f"{number:064}" for number in range(books.MOST_CHILDREN))
    }
    stats = ParentStats(children, Forgotten())
    run = store.create(tmp_path / "run", PLANNED.config)
    first = PLANNED.first_weights()
    run.save(LAST, Checkpoint(PLANNED.spec, PLANNED.spaces.action, first, progress=stats.to_plain()))
    assert len(ParentStats.read(run.checkpoint(LAST).progress).children) == books.MOST_CHILDREN


@pytest.mark.parametrize(
    "progress",
    [
        {},
        {"children": {}},
        {"children": [], "seconds": 1.0},
        {"children": {}, "seconds": "long"},
        {"children": {"one": 1}, "seconds": 1.0},
        {"children": {"one": {"steps": "many"}}, "seconds": 1.0},
        {"children": {"one": {"stepz": 1}}, "seconds": 1.0},
        {"children": {"\x1b[2J": {}}, "seconds": 1.0},
        {"children": {}, "seconds": 1.0, "forgotten": 3},
    ],
)
def test_a_damaged_checkpoint_is_said_in_one_line(progress: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(WireError):
        ParentStats.read(progress)
    run = store.create(tmp_path / "run", PLANNED.config)
    first = PLANNED.first_weights()
    run.save(LAST, Checkpoint(PLANNED.spec, PLANNED.spaces.action, first, progress=progress))
    (run.path / store.AVERAGING).write_text("alpha: 0.5\n")
    with ExitStack() as held, pytest.raises(ManyhandsError, match=r"last\.safetensors is damaged: ") as said:
        serving._resumed(run, {}, held)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "text",
    [
        "alpha: yes",
        "alpha: many",
        "beta: {}",
        "exchanges: 1.5",
        "exchanges: true",
        "format: int4",
        "format: [1]",
        "alpha: 7",
        "max_step: far",
        "hogwild: 1",
        "gamma: 1",
        "[1, 2]",
        "alpha: 'a",
        "- {",
        "\x00",
    ],
)
def test_damaged_settings_of_a_parent_are_said_in_one_line(text: str, tmp_path: Path) -> None:
    run = store.create(tmp_path / "run", PLANNED.config)
    (run.path / store.AVERAGING).write_text(text)
    with ExitStack() as held, pytest.raises(ManyhandsError, match=r"averaging\.yaml") as said:
        serving._resumed(run, {}, held)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "plain",
    [
        {"listen": 8765},
        {"listen": "here"},
        {"listen": "0.0.0.0:1"},
        {"silence": "long"},
        {"silence": -1},
        {"token_file": 1},
        {"tls_cert": []},
        {"porch": 1},
        ["listen"],
    ],
)
def test_a_damaged_address_of_a_parent_is_said_in_one_line(plain: Any, tmp_path: Path) -> None:
    run = store.create(tmp_path / "run", PLANNED.config)
    (run.path / store.LISTEN).write_text(yaml.safe_dump(plain))
    with pytest.raises(ManyhandsError, match=r"listen\.yaml") as said:
        ListenConfig.of({"listen": None}, run)
    assert "\n" not in str(said.value)
