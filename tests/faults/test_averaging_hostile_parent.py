"""Children whose parent asks for too much, sends nonsense, or writes to their terminals."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from manyhands.averaging.maths import quantise
from manyhands.averaging.network import Network
from manyhands.averaging.protocol import AveragingConfig
from manyhands.cli.main import main
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.networks import NetSpec
from manyhands.runs.plan import plan

ENV = "CartPole-v1"
NASTY = "gone\x1b[2J\nmanyhands: all is well\u202e\u2028" + "x" * 5000
Answer = Callable[[NetSpec, int], wire.Message]


WASTEFUL = """
import gymnasium
import numpy as np

def huge(gigabytes: int) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    env.waste = np.ones(gigabytes * 2**27)
    return env
"""


def settings(name: str = "ppo", /, **sections: dict[str, Any]) -> dict[str, Any]:
    return resolve(ENV, name, overrides=(sections,)).to_plain()


def welcome(config: Any = None, averaging: Any = None, net: Any = None, **changed: Any) -> wire.Message:
    """What a good parent of CartPole would say, but for what is changed."""
    spec = plan(Config.from_plain(net or settings()), learns_here=False).spec
    vector = changed.pop("vector", spec.initial_vector(0))
    beside = {**spec.initial_statistics(), **changed.pop("beside", {})}
    meta = {
        "config": settings() if config is None else config,
        "spec": spec.to_json(),
        "averaging": asdict(AveragingConfig(beta=0.5)) if averaging is None else averaging,
        "version": 0,
        **changed,
    }
    return wire.Message("welcome", spec.schema, meta, {"vector": vector, **payloads.beside_arrays(beside)})


@contextmanager
def parent(first: wire.Message | bytes, answer: Answer | None = None) -> Iterator[str]:
    """Says `first` to whoever comes, and then `answer` to every exchange; its address."""

    def meet(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed, TimeoutError):
            connection.recv(30)
            connection.send(first if isinstance(first, bytes) else wire.encode(first))
            connection.recv(60)
            for number in range(1, 10**9):
                asked = wire.decode(connection.recv(60, decode=False))
                if asked.kind != "exchange" or answer is None or isinstance(first, bytes):
                    return
                connection.send(wire.encode(answer(NetSpec.from_json(first.meta["spec"]), number)))

    with serve(meet, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def refusal(first: wire.Message | bytes, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line with which a child ends."""
    with parent(first) as address, pytest.raises(SystemExit) as left:
        main(["child", address, "--name", "one", "--cores", "1", "--quiet", *words])
    assert left.value.code in (1, 2)
    captured = capsys.readouterr()
    line = (captured.out + captured.err).removesuffix("\n")
    assert line.isprintable(), line
    assert line.startswith("manyhands: ")
    assert len(line) < 1200
    return line


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        (
            settings(collect={"shards": 64, "lanes": 1000}),
            (),
            "64,000 environments (collect.shards x collect.lanes), this child plays 1,024 at the most; raise",
        ),
        (settings(), ("--max-envs", "3"), "this child plays 3 at the most; raise it with --max-envs"),
        (
            settings(collect={"steps": 1_000_000, "lanes": 500}),
            (),
            "for batches (collect.steps, collect.lanes); this child gives",
        ),
        (settings("dqn", algo={"memory": 10**12}), (), "for a replay memory (algo.memory); this child gives"),
        (
            settings("dqn", algo={"memory": 10**12, "memory_on_disk": True}),
            (),
            "for a replay memory (algo.memory); this child gives",
        ),
        (settings("adqn", algo={"memory": 10**12}), (), "share (net.hidden, algo.memory); this child gives"),
        (settings("a3c", algo={"batch": 10**12}), (), "for batches (algo.batch); this child gives"),
        (settings("clone", algo={"memory": 10**12}), (), "for episodes to imitate (algo.memory); this child"),
        (settings("dqn"), ("--max-memory", "1"), "this child gives 1 MB; raise it with --max-memory"),
        (settings(env={"kwargs": {"render_mode": "human"}}), (), "asks for a window"),
    ],
)
def test_a_child_refuses_more_than_it_gives(
    config: dict[str, Any], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(welcome(config, net=config), capsys, *words)


def test_a_child_refuses_a_network_that_it_cannot_hold(capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(net={"hidden": [65536] * 60})
    assert "net.hidden" in refusal(welcome(config), capsys)


def test_an_environment_with_absurd_arguments_takes_no_more_than_allowed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wasteful_env.py").write_text(WASTEFUL)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = settings()
    config["env"] = {"id": "wasteful_env:huge", "kwargs": {"gigabytes": 2}}
    words = ("--allow", "wasteful_env:huge", "--max-memory", "300")
    line = refusal(welcome(config), capsys, *words)
    assert "MemoryError" in line or "--max-memory" in line


def test_a_child_takes_no_larger_messages_than_it_was_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(bytes(2_000_001), capsys, "--max-message", "2")
    assert "sent a message of more than 2 MB; take it with a larger --max-message" in line


CONFIG = settings()
NORMALISED = settings(net={"normalise": True})


@pytest.mark.parametrize(
    "changed",
    [
        {"version": -1},
        {"version": True},
        {"version": "1"},
        {"version": 1.5e300},
        {"config": []},
        {"config": "env"},
        {"config": {**CONFIG, "env": {"id": 5}}},
        {"config": {**CONFIG, "env": {"id": "Cart\x1b[2JPole"}}},
        {"config": {**CONFIG, "env": {"id": "x" * 500}}},
        {"config": {**CONFIG, "env": {"id": ENV, "kwargs": {"a": list(range(20_000))}}}},
        {"config": {**CONFIG, "env": {"id": ENV, "kwargs": {NASTY: 1}}}},
        {"config": {**CONFIG, "env": {"id": ENV, "kwargs": {"functions": 5}}}},
        {"config": {**CONFIG, "run": {**CONFIG["run"], "algo": NASTY}}},
        {"config": {**CONFIG, "run": {**CONFIG["run"], "algo": ["ppo"]}}},
        {"config": {**CONFIG, NASTY: {}}},
        {"config": {**CONFIG, "collect": {"lanes": 10**18, "shards": 2, "steps": 8}}},
        {"config": {**CONFIG, "algo": {"learning_rate": "fast" + NASTY}}},
        {"averaging": []},
        {"averaging": {"alpha": True}},
        {"averaging": {"alpha": "0.5"}},
        {"averaging": {"exchanges": 1.5}},
        {"averaging": {"hogwild": 1}},
        {"averaging": {"format": 7}},
        {"averaging": {"format": NASTY}},
        {"averaging": {"max_step": "auto"}},
        {"averaging": {NASTY: 1}},
        {"averaging": {"beta": float("nan")}},
        {"averaging": {"every": 10**18}},
        {"spec": 5},
        {"spec": "[" * 100_000},
        {"spec": "{}"},
        {"spec": NASTY},
        {"spec": '{"input_shape":[4],"heads":[],"trunk":[],"image":"","normalise":false}'},
        {
            "spec": '{"input_shape":[9,9,1],"heads":[],"image":"hwc","normalise":false,'
            '"trunk":[{"type":"conv","channels":1,"kernel":1,"stride":0}]}'
        },
        {"vector": np.zeros(3, np.float32)},
        {"vector": np.full(plan(Config.from_plain(CONFIG)).spec.size, 3.3e38, np.float32)},
        {"vector": np.full(plan(Config.from_plain(CONFIG)).spec.size, np.nan, np.float32)},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_nonsense_in_a_welcome_is_refused_in_one_printable_line(
    changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    refusal(welcome(**changed), capsys)


@pytest.mark.parametrize("why", [NASTY, None, 5, {"a": [1, "\x1b[2J"]}, ["\n"], b"\x1b[2J"])
def test_a_refusal_writes_nothing_but_its_line(why: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(wire.Message("refused", "", {"why": why, "again": False}), capsys)
    assert "refuses one: " in line


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path / "none") as made:
        yield made


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"input_mean": np.zeros(3, np.float32)}, "beside.input_mean is not 4 finite float32 numbers"),
        ({"input_mean": np.zeros(4)}, "beside.input_mean is not 4 finite float32 numbers"),
        ({"input_scale": np.full(4, np.nan, np.float32)}, "beside.input_scale is not 4 finite float32"),
        ({"input_scale": np.full(4, 1e20, np.float32)}, "weights that no network can learn from"),
        ({"epsilon": np.zeros(4, np.float32)}, "beside.epsilon"),
    ],
)
def test_a_welcome_with_wrong_statistics_of_inputs_is_refused(
    beside: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(welcome(NORMALISED, net=NORMALISED, beside=beside), capsys)


def answered(spec: NetSpec, value: float, number: int, **meta: Any) -> wire.Message:
    arrays = quantise(np.full(spec.size, value, np.float32), "float32")
    beside = payloads.beside_arrays(spec.initial_statistics())
    return wire.Message("answer", spec.schema, {"version": number, **meta}, {**arrays, **beside})


def test_a_child_goes_on_when_its_parents_answers_would_ruin_it(network: Network) -> None:
    done = threading.Event()

    def ruin(spec: NetSpec, number: int) -> wire.Message:
        if number == 20:
            done.set()
        return answered(spec, 3.3e38 if number > 2 else 0.0, number, refused=NASTY if number == 1 else "")

    with parent(welcome(), ruin) as network.address:
        network.start_child("one", "--cores", 1)
        assert done.wait(60)
        said = network.said("one")
        assert network.children["one"].poll() is None
        network.children["one"].terminate()
        network.children["one"].wait(30)
    assert said.count(f"refused the weights of the parent at {network.address}: they are so far away") == 1
    assert f"the parent at {network.address} refused this child's weights: gone\\x1b[2J\\nmanyhands" in said
    assert "no longer finite" not in network.said("one")
    assert all(line.isprintable() for line in network.said("one").splitlines())


def test_an_answer_with_wrong_statistics_of_inputs_counts_as_a_lost_parent(network: Network) -> None:
    def spoil(spec: NetSpec, number: int) -> wire.Message:
        answer = answered(spec, 0.0, number)
        answer.arrays["beside.input_mean"] = np.zeros(5, np.float32)
        return answer

    with parent(welcome(NORMALISED, net=NORMALISED), spoil) as network.address:
        network.start_child("one", "--cores", 1)
        deadline = time.monotonic() + 60
        while "beside.input_mean is not 4 finite float32 numbers; still training" not in network.said("one"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert network.children["one"].poll() is None
        network.children["one"].terminate()
        network.children["one"].wait(30)


def test_a_child_that_is_disconnected_says_why_in_one_line(network: Network) -> None:
    def refuse(spec: NetSpec, number: int) -> wire.Message:
        return wire.Message("refused", "", {"why": NASTY, "again": False})

    with parent(welcome(), refuse) as network.address:
        network.start_child("one", "--cores", 1, "--quiet")
        assert network.children["one"].wait(60) == 1
    last = network.said("one").splitlines()[-1]
    assert last.startswith(f"manyhands: the parent at {network.address} disconnected one: gone\\x1b[2J\\n")
    assert all(line.isprintable() for line in network.said("one").splitlines())
