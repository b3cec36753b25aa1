"""Parents and children as real processes over real sockets: they average, get lost, come back, misbehave."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from certificates import self_signed
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from benchmarks.slow_wire import SlowWire
from manyhands.averaging.child_stats import Child
from manyhands.averaging.connections import LONGEST
from manyhands.averaging.link import Link
from manyhands.averaging.maths import FORMATS, Format, dequantise, quantise
from manyhands.averaging.network import Network, averaged
from manyhands.averaging.parent import Parent
from manyhands.averaging.protocol import PROTOCOL, message_limit, structure
from manyhands.averaging.recorder import mean_return
from manyhands.cli.main import main
from manyhands.core import payloads, wire
from manyhands.core.errors import RunError
from manyhands.core.networks import NetSpec
from manyhands.runs.agent import judge
from manyhands.runs.store import LAST, Run
from manyhands.system.temporary import temporary

ENV = "CartPole-v1"
LONG = 1_000_000
"""Exchanges that a test never reaches."""


def wait_for(happened: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path / "parent") as made:
        yield made


def exchanges(network: Network) -> dict[str, int]:
    rows = network.run.rows()
    return {name: child["exchanges"] for name, child in rows[-1]["children"].items()} if rows else {}


def begin(network: Network, *words: object, exchanges: int = LONG) -> None:
    network.start_parent(
        ENV, "--exchanges", exchanges, "--checkpoint-every", 5, "--listen", "127.0.0.1:0", *words
    )


@pytest.mark.parametrize("how", ["float32", "int8"])
def test_children_train_and_their_weights_are_averaged(how: str, tmp_path: Path) -> None:
    words = (ENV, "--algo", "ppo", "--exchanges", 100, "--alpha", 0.5, "--beta", 0.5, "--format", how)
    run = averaged(tmp_path / "parent", (*words, "--every", 512, "--checkpoint-every", 20), 2, 1, 120.0)
    status = run.status()
    assert status["status"] == "finished"
    assert status["exchanges"] == 100
    children = status["children"]
    assert set(children) == {"child-0", "child-1"}
    assert all(child["exchanges"] > 3 and child["refused"] == 0 for child in children.values())
    assert max(child["staleness"] for child in children.values()) > 0
    kept = sorted(path.name for path in (run.path / "checkpoints").glob("exchange-*"))
    assert kept[0].startswith("exchange-000000")
    assert len(kept) >= 5
    first, last = (judge(run, 20, 1, which=name).mean for name in ("exchange-000000", LAST))
    assert last > first + 200
    size = run.checkpoint(LAST).spec.size
    per_exchange = children["child-0"]["bytes_in"] / children["child-0"]["exchanges"]
    assert per_exchange == pytest.approx({"float32": 4, "int8": 1}[how] * size, abs=600)
    with pytest.raises(SystemExit):
        main(["train", "--resume", str(run.path)])
    assert run.status()["exchanges"] == 100


@pytest.mark.parametrize("algo", ["ppo", "impala", "dqn", "adqn"])
def test_children_train_with_any_algorithm(algo: str, tmp_path: Path) -> None:
    small = ("--every", 200, "--beta", 0.5)
    run = averaged(tmp_path / "parent", (ENV, "--algo", algo, "--exchanges", 8, *small), 2, 2, 120.0)
    status = run.status()
    children = status["children"].values()
    assert sum(child["exchanges"] for child in children) == status["exchanges"] == 8
    assert status["steps"] >= 8 * 200
    assert sum(child["bytes_out"] for child in children) > 8 * 4 * run.checkpoint(LAST).spec.size


def test_exchanges_may_overwrite_one_another(tmp_path: Path) -> None:
    words = (ENV, "--parent-hogwild", "--format", "float16", "--exchanges", 30, "--checkpoint-every", 10)
    words = (*words, "--set", "net.hidden=[300, 300]")  # messages that are larger than a stranger's may be
    run = averaged(tmp_path / "parent", words, 2, 1, 120.0)
    status = run.status()
    assert sum(child["exchanges"] for child in status["children"].values()) == status["exchanges"] == 30
    main(["show", str(run.path)])
    assert (run.path / "plots" / "learning_curve.png").stat().st_size > 10_000


def test_a_sweep_judges_every_cell_and_goes_on_with_those_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", ENV, "--alpha", "0.5", "--beta", "0,1", "--exchanges", "6", "--children", "1"]
    sweep = ["sweep", "averaging", *words, "--cores", "1", "--episodes", "2", "--out", str(tmp_path)]
    kept = tmp_path / "averaging-sweep.json"
    main(sweep)
    found = json.loads(kept.read_text())
    assert set(found["results"]) == {"0.5 0", "0.5 1"}
    assert [at for at, _ in found["results"]["0.5 0"]["0"]] == [0, 6]
    assert (tmp_path / "averaging-sweep.png").stat().st_size > 10_000
    done = found["results"]["0.5 0"]
    kept.write_text(json.dumps({**found, "results": {"0.5 0": done, "0.5 1": {}}}))
    capsys.readouterr()
    main([*sweep, "--go-on"])
    said = capsys.readouterr().out
    assert "1 of 2: " not in said
    assert "2 of 2: alpha 0.5, beta 1, seed 0" in said
    later = json.loads(kept.read_text())["results"]
    assert later["0.5 0"] == done
    assert later["0.5 1"]["0"]
    with pytest.raises(SystemExit):
        main(sweep)
    assert "holds a sweep already; --go-on" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*sweep, "--algo", "ppo", "--go-on"])
    assert "is of another sweep, with another --algo" in capsys.readouterr().err


def test_a_killed_core_is_replaced_and_a_killed_machine_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manyhands", "train"]
    path = tmp_path / "run"
    words = [ENV, "--algo", "adqn", "--workers", "2", "--until", "steps", "--steps", "100000000"]
    words += ["--set", "run.checkpoint_every=0.5", "--set", "run.test_every=1000000000"]
    process = subprocess.Popen([*command, *words, "--dir", str(path), "--quiet"])
    run = Run(path)
    try:
        wait_for(lambda: run.status().get("steps", 0) > 2000)
        psutil.Process(process.pid).children()[0].kill()
        wait_for(lambda: run.status()["faults"] == 1)
        before = run.status()["steps"]
        wait_for(lambda: run.status()["steps"] > before + 2000)
    finally:
        process.kill()
        process.wait()
    saved = run.checkpoint(LAST)
    assert saved.learner["counts"].sum() >= saved.progress["steps"] > before
    steps = saved.progress["steps"] + 2000
    subprocess.run(
        [*command, "--resume", str(path), "--steps", str(steps), "--quiet"], check=True, timeout=120
    )
    later = run.checkpoint(LAST)
    assert later.learner["counts"].sum() > saved.learner["counts"].sum()
    assert later.learner["played"].sum() > saved.learner["played"].sum()


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
@pytest.mark.parametrize("barrier", ["on", "off"])
def test_cores_wait_for_one_another_if_there_is_a_barrier(
    barrier: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    marker = tmp_path / "marker"
    command = [sys.executable, "-m", "manyhands", "train", "small_envs:Uneven", "--algo", "a3c"]
    words = ["--workers", "2", "--barrier", barrier, "--until", "steps", "--steps", "1000000", "--quiet"]
    words += ["--set", f"env.kwargs={{marker: {marker}}}", "--set", f"algo.optimizer={optimizer}"]
    words += ["--set", "run.updates=40", "--set", "run.test_every=1000000000", "--dir", str(tmp_path / "run")]
    process = subprocess.Popen([*command, *words])
    wait_for(lambda: (tmp_path / "run" / "config.yaml").exists())
    marker.touch()
    assert process.wait(120) == 0
    played = [state.lanes[0].episode for state in Run(tmp_path / "run").checkpoint(LAST).shards.values()]
    assert len(played) == 2
    assert max(played) - min(played) <= 1 if barrier == "on" else max(played) > 3 * min(played)


def test_a_killed_child_harms_nobody_and_may_return(network: Network) -> None:
    begin(network)
    for name in ("one", "two"):
        network.start_child(name, "--cores", 1, "--quiet")
    wait_for(lambda: min(exchanges(network).get(name, 0) for name in ("one", "two")) > 5)
    network.kill(network.children["one"])
    wait_for(lambda: "one was lost" in network.said("parent"))
    before = exchanges(network)
    wait_for(lambda: exchanges(network)["two"] > before["two"] + 5)
    network.start_child("one", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network)["one"] > before["one"] + 5)


def test_what_a_killed_process_left_goes_with_the_next_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "manyhands-child-left"
    left.mkdir()
    (left / ".lock").touch()
    with temporary("child") as mine:
        assert not left.exists()
        with temporary("child"):
            assert mine.exists()
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_no_temporary_directory(tmp_path: Path) -> None:
    code = "from manyhands.system.temporary import temporary\nwith temporary('child') as place:\n"
    code += "    (place / 'file').touch(); print(place, flush=True); import time; time.sleep(60)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        place = Path(process.stdout.readline().strip())
        assert (place / "file").exists()
        process.kill()
    wait_for(lambda: not list(tmp_path.iterdir()))


def test_a_killed_parent_is_resumed_and_its_children_come_back(network: Network) -> None:
    begin(network)
    port = network.address.rpartition(":")[2]
    for name in ("one", "two"):
        network.start_child(name, "--cores", 1, "--quiet")
    wait_for(lambda: min(exchanges(network).get(name, 0) for name in ("one", "two")) > 5)
    assert network.parent is not None
    network.kill(network.parent)
    before = network.run.checkpoint(LAST).weights.version
    assert before >= 10
    wait_for(lambda: all("lost the parent" in network.said(name) for name in ("one", "two")))
    network.start_parent("--resume", network.path, "--listen", f"127.0.0.1:{port}")
    wait_for(lambda: all("reconnected to the parent" in network.said(name) for name in ("one", "two")))
    wait_for(lambda: network.run.checkpoint(LAST).weights.version > before + 20)
    assert set(network.run.status()["children"]) == {"one", "two"}
    assert all(process.poll() is None for process in network.children.values())


def test_a_child_whose_parent_is_lost_before_it_is_ready_trains_and_looks_for_it(network: Network) -> None:
    begin(network)
    link = Link(network.address, "one")
    spec = link.join().spec
    assert network.parent is not None
    network.kill(network.parent)
    wait_for(lambda: link.connection is not None and link.connection.protocol.state.name == "CLOSED")
    link.get_ready(spec)
    assert link.connection is None
    network.start_parent("--resume", network.path)
    try:
        wait_for(lambda: link.connection is not None)
        wait_for(lambda: "one joined" in network.said("parent"))
    finally:
        link.close()


def test_a_resumed_parent_listens_where_it_did_and_demands_its_token(
    network: Network, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame")
    begin(network, "--token-file", token)
    address, parent = network.address, network.parent
    assert parent is not None
    assert f"manyhands child {address} --token-file FILE" in network.said("parent")
    parent.terminate()
    assert parent.wait(30) == 0
    assert network.start_parent("--resume", network.path) == address
    network.start_child("thief", "--cores", 1)
    assert network.children["thief"].wait(60) == 1
    assert "its token is not the parent's" in network.said("thief")
    network.start_child("friend", "--cores", 1, "--token-file", token)
    wait_for(lambda: "friend joined" in network.said("parent"))


def test_a_child_may_be_there_before_its_parent(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    network.address = f"ws://127.0.0.1:{port}"
    network.start_child("early", "--cores", 1, "--wait", 60)
    network.start_parent(ENV, "--exchanges", 5, "--listen", f"127.0.0.1:{port}")
    network.wait(60)
    assert network.children["early"].wait(30) == 0
    with pytest.raises(RunError, match="has made 5 exchanges; give more"):
        network.start_parent("--resume", network.path)


def test_what_a_lost_child_said_does_not_count_for_ever() -> None:
    slow = Child("slow", connected=True, last=100, recent=50.0)
    children = {"slow": slow, "gone": Child("gone", last=400, recent=10.0)}
    parent = cast(Parent, SimpleNamespace(version=410, children=children))
    assert mean_return(parent) == 30.0
    parent.version = 500
    assert mean_return(parent) == 50.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    ("exchanges", "working"), [(100_000, "--name child-0"), (2, "multiprocessing.spawn")]
)
def test_nothing_of_a_sweep_outlives_it(number: int, exchanges: int, working: str, tmp_path: Path) -> None:
    words = ["--env", ENV, "--children", "1", "--cores", "1", "--exchanges", str(exchanges)]
    words += ["--episodes", "1000000", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "manyhands", "sweep", "averaging", *words]
    sweep = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)})

    def works() -> bool:
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(sweep.pid).children(recursive=True)
            return any(working in " ".join(process.cmdline()) for process in below)
        return False

    try:
        wait_for(works)
        time.sleep(2.0)
        started = psutil.Process(sweep.pid).children(recursive=True)
        sweep.send_signal(number)
        assert sweep.wait(30) == (130 if number == signal.SIGTERM else -number)
        assert not psutil.wait_procs(started, timeout=15)[1]
        if number == signal.SIGTERM:
            assert not list(tmp_path.glob("manyhands-*"))
    finally:
        sweep.kill()
        sweep.wait()


def test_a_second_child_of_one_name_is_disconnected(network: Network) -> None:
    begin(network)
    network.start_child("one", "--cores", 1)
    wait_for(lambda: "one joined" in network.said("parent"))
    network.children["first"] = network.children.pop("one")
    network.start_child("one", "--cores", 1)
    assert network.children["one"].wait(60) == 1
    assert "there is a child called 'one' already" in network.said("one")


def test_a_child_that_is_slower_than_its_parents_patience_comes_back_and_is_heard(network: Network) -> None:
    begin(network, "--silence", 0.3, "--every", 50_000)
    network.start_child("one", "--cores", 1)
    wait_for(lambda: "one was disconnected: said nothing for too long" in network.said("parent"))
    wait_for(
        lambda: "one joined" in network.said("parent") and network.run.checkpoint(LAST).weights.version >= 2
    )
    assert (
        f"lost the parent at {network.address}: it disconnected this child: said nothing for too long; still"
        in network.said("one")
    )


class Stranger:
    """Somebody who speaks the protocol, up to the point where it does not."""

    def __init__(self, network: Network, name: str = "stranger", token: str = "") -> None:
        self.connection: ClientConnection = connect(network.address, compression=None).__enter__()
        self.name, self.token, self.life = name, token, name

    def say(self, kind: str, schema: str = "", meta: Any = None, arrays: Any = None) -> None:
        self.connection.send(wire.encode(wire.Message(kind, schema, meta or {}, arrays or {})))

    def hello(self, protocol: int = PROTOCOL) -> None:
        meta = {"protocol": protocol, "name": self.name, "token": self.token, "life": self.life}
        self.say("hello", "", meta)

    def join(self, how: Format = "float32") -> NetSpec:
        self.hello()
        welcome = wire.decode(self.connection.recv(10), "welcome")
        spec = NetSpec.from_json(welcome.meta["spec"])
        self.say("ready", spec.schema, structure(spec, how))
        return spec

    def exchange(self, spec: NetSpec, values: Any, steps: float = 1) -> None:
        meta = {"base": 0, "steps": steps, "episodes": 1, "round_trip": 0.0, "recent": None}
        self.say("exchange", spec.schema, meta, values)

    def refusal(self) -> str:
        return str(wire.decode(self.connection.recv(10), "refused").meta["why"])


def test_those_who_misbehave_are_disconnected_by_name_and_others_are_unharmed(network: Network) -> None:
    begin(network, "--silence", 5)
    network.start_child("good", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network).get("good", 0) > 5)

    def misbehave(name: str, how: Callable[[Stranger, NetSpec], None], said: str) -> None:
        stranger = Stranger(network, name)
        how(stranger, stranger.join())
        assert said in stranger.refusal()
        wait_for(lambda: f"{name} was disconnected" in network.said("parent"))

    ones = np.ones
    misbehave("nan", lambda s, n: s.exchange(n, {"values": np.full(n.size, np.nan, np.float32)}), "finite")
    misbehave("short", lambda s, n: s.exchange(n, {"values": ones(3, np.float32)}), "numbers of float32")
    misbehave("doubles", lambda s, n: s.exchange(n, {"values": ones(n.size)}), "numbers of float32")
    misbehave("garbage", lambda s, n: s.connection.send(b"\x00" * 500), "not a manyhands message")
    misbehave("chatty", lambda s, n: s.connection.send("[0.1, 0.2]"), "text where a binary")
    misbehave("foreign", lambda s, n: s.say("exchange", "another", {}, {}), "structure 'another'")
    misbehave("bomb", lambda s, n: s.connection.send(b"MH1\x01" + bytes(50)), "compressed")
    misbehave(
        "counter", lambda s, n: s.exchange(n, quantise(ones(n.size, np.float32), "float32"), np.inf), "steps"
    )
    misbehave("silent", lambda s, n: None, "said nothing for too long")
    verbose = Stranger(network, "verbose")
    verbose.say("hello", "", {"protocol": "x" * 50_000, "name": "verbose", "token": "", "life": ""})
    assert len(verbose.refusal()) <= LONGEST
    assert "x" * LONGEST not in network.said("parent")

    huge = Stranger(network, "huge")
    spec = huge.join()
    huge.connection.send(b"\x00" * (message_limit(spec) + 1))
    wait_for(lambda: "huge sent too large a message" in network.said("parent"))

    early = Stranger(network, "early")
    early.connection.send(b"\x00" * message_limit(spec))
    with pytest.raises(ConnectionClosed):
        early.connection.recv(10)

    painted = Stranger(network, "[/b]")
    painted.hello()
    assert "its name" in painted.refusal()

    old = Stranger(network, "old")
    old.hello(protocol=99)
    assert "protocol 99" in old.refusal()

    twin = Stranger(network, "good")
    twin.hello()
    assert "already" in twin.refusal()

    before = exchanges(network)["good"]
    wait_for(lambda: exchanges(network)["good"] > before + 5)
    assert network.children["good"].poll() is None
    vector = network.run.checkpoint(LAST).weights.vector
    assert np.isfinite(vector).all()


NORMALISED = ("--algo", "ppo", "--set", "net.normalise=true", "--alpha", 0.25)


def exchanged(spec: NetSpec, value: float = 0.5, **beside: Any) -> dict[str, Any]:
    """What a child sends, with some of the statistics of its inputs replaced; None leaves one out."""
    own = {"input_mean": np.full(4, 2.0, np.float32), "input_scale": np.full(4, 0.5, np.float32)}
    sent = {name: array for name, array in {**own, **beside}.items() if array is not None}
    values = quantise(np.full(spec.size, value, np.float32), "float32")
    return {**values, **payloads.beside_arrays(sent)}


def test_statistics_of_inputs_are_averaged_beside_the_weights(network: Network) -> None:
    begin(network, *NORMALISED)
    first = network.run.checkpoint("exchange-000000").weights
    assert [array.tolist() for array in first.beside.values()] == [[0] * 4, [1] * 4]
    stranger = Stranger(network)
    spec = stranger.join()
    for arrays in (exchanged(spec), dict(reversed(exchanged(spec).items()))):  # in whatever order they come
        stranger.exchange(spec, arrays)
        answer = wire.decode(stranger.connection.recv(10), "answer")
    assert answer.meta["refused"] == ""
    expected = 0.75**2 * first.vector + (1 - 0.75**2) * 0.5
    np.testing.assert_allclose(answer.arrays["values"], expected, atol=1e-6)
    np.testing.assert_allclose(answer.arrays["beside.input_mean"], 2 * (1 - 0.75**2), atol=1e-6)
    np.testing.assert_allclose(answer.arrays["beside.input_scale"], 1 - 0.5 * (1 - 0.75**2), atol=1e-6)
    late = Stranger(network, "late")
    late.hello()
    welcome = wire.decode(late.connection.recv(10), "welcome")
    for name in ("beside.input_mean", "beside.input_scale"):  # which a new child starts with
        np.testing.assert_array_equal(welcome.arrays[name], answer.arrays[name])
    assert network.parent is not None
    network.parent.terminate()
    assert network.parent.wait(30) == 0
    last = network.run.checkpoint(LAST).weights
    np.testing.assert_array_equal(last.beside["input_mean"], answer.arrays["beside.input_mean"])
    assert len(last.vector) == spec.size


def test_wrong_statistics_of_inputs_are_refused_by_name(network: Network) -> None:
    begin(network, *NORMALISED)
    ones = np.ones
    for name, beside, said in (
        ("short", {"input_mean": ones(3, np.float32)}, "beside.input_mean is not 4 finite float32 numbers"),
        ("wide", {"input_scale": ones((4, 1), np.float32)}, "beside.input_scale is not 4 finite float32"),
        ("doubles", {"input_mean": ones(4)}, "beside.input_mean is not 4 finite float32 numbers"),
        ("nan", {"input_scale": np.full(4, np.nan, np.float32)}, "beside.input_scale is not 4 finite"),
        ("none", {"input_mean": None, "input_scale": None}, "weights with nothing beside them"),
        ("half", {"input_mean": None}, "weights with beside.input_scale beside them"),
        ("more", {"epsilon": ones(4, np.float32)}, "beside.epsilon"),
    ):
        stranger = Stranger(network, name)
        spec = stranger.join()
        stranger.exchange(spec, exchanged(spec, **beside))
        assert said in stranger.refusal()
        wait_for(lambda name=name: f"{name} was disconnected: " in network.said("parent"))
    blinding = Stranger(network, "blinding")
    spec = blinding.join()
    blinding.exchange(spec, exchanged(spec, input_scale=np.zeros(4, np.float32)))
    answer = wire.decode(blinding.connection.recv(10), "answer")
    assert answer.meta["refused"] == "they scale inputs by 0 or less"
    assert answer.arrays["beside.input_scale"].tolist() == [1] * 4


def test_nobody_writes_to_a_parents_terminal(network: Network) -> None:
    begin(network)
    nasty = "\x1b[2J\nparent: all is well\u202e" + "x" * 5000
    good = {"protocol": PROTOCOL, "name": "painter", "token": "", "life": "1"}
    for hello in (
        {**good, "name": nasty},
        {**good, "name": 5},
        {**good, "protocol": nasty},
        {**good, "protocol": [nasty]},
        {**good, "life": nasty},
        {**good, "token": nasty},
    ):
        stranger = Stranger(network)
        stranger.say("hello", "", hello)
        assert stranger.refusal().isprintable()
    for kind, schema, meta in (
        (nasty, "", {}),
        ("ready", nasty, {}),
        ("ready", "", {"network": {nasty: nasty}, "dtype": nasty, "format": nasty}),
    ):
        stranger = Stranger(network, "painter")
        stranger.hello()
        wire.decode(stranger.connection.recv(10), "welcome")
        stranger.say(kind, schema, meta)
        assert stranger.refusal().isprintable()
    said = network.said("parent")
    assert said.count("was disconnected") == 9
    assert all(line.isprintable() for line in said.splitlines())
    assert not any(line.startswith("parent: ") for line in said.splitlines())


def test_those_whose_weights_differ_hear_in_what(network: Network) -> None:
    begin(network)
    spec = Stranger(network).join()

    def differ(name: str, schema: str, meta: dict[str, Any], said: str) -> None:
        stranger = Stranger(network, name)
        stranger.hello()
        wire.decode(stranger.connection.recv(10), "welcome")
        stranger.say("ready", schema, meta)
        assert said in stranger.refusal()

    same = structure(spec, "float32")
    wide = structure(replace(spec, input_shape=(5,)), "float32")
    differ("wide", "abc", wide, "network.input_shape.0 is 5 where the parent has 4")
    differ("double", spec.schema, {**same, "dtype": "float64"}, "dtype is 'float64' where the parent has")
    differ("half", spec.schema, {**same, "format": "float16"}, "format is 'float16' where the parent has")
    differ("blank", spec.schema, {}, "network is None where the parent has")
    differ("hash", "abc", same, "schema is 'abc' where the parent has")


def test_one_child_cannot_move_the_parent_further_than_allowed(network: Network) -> None:
    begin(network, "--max-step", 0.5, "--alpha", 1)
    stranger = Stranger(network)
    spec = stranger.join()
    before = network.run.checkpoint("exchange-000000").weights.vector
    stranger.exchange(spec, quantise(np.full(spec.size, 100.0, np.float32), "float32"))
    answer = wire.decode(stranger.connection.recv(10), "answer")
    assert np.linalg.norm(answer.arrays["values"] - before) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("how", FORMATS)
def test_absurd_weights_move_nobody_and_who_repeats_them_is_disconnected(
    how: Format, network: Network
) -> None:
    begin(network, "--beta", 0.5, "--format", how)
    network.start_child("good", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network).get("good", 0) > 5)
    stranger = Stranger(network, "bomber")
    spec = stranger.join(how)
    largest = {"float32": 3.3e38, "float16": 6e4, "int8": 3.3e38}[how]
    weights = quantise(np.full(spec.size, largest, np.float32), how)
    for _ in range(2):
        stranger.exchange(spec, weights)
        answer = wire.decode(stranger.connection.recv(10), "answer")
        assert "so far away" in answer.meta["refused"]
        assert np.abs(dequantise(answer.arrays, how, spec.size)).max() < 100
    stranger.exchange(spec, weights)
    assert "3 times in a row" in stranger.refusal()
    wait_for(lambda: "bomber was disconnected: its weights were refused" in network.said("parent"))
    assert "refused the weights of bomber: they are so far away" in network.said("parent")
    before = exchanges(network)["good"]
    wait_for(lambda: exchanges(network)["good"] > before + 5)
    assert network.children["good"].poll() is None
    assert network.run.rows()[-1]["children"]["bomber"]["refused"] == 3
    assert network.run.rows()[-1]["children"]["bomber"]["exchanges"] == 0
    assert np.abs(network.run.checkpoint(LAST).weights.vector).max() < 100


def test_the_parent_takes_its_share_of_a_child_and_books_each_step_once(network: Network) -> None:
    begin(network, "--alpha", 0.25)
    before = network.run.checkpoint("exchange-000000").weights.vector
    stranger = Stranger(network)
    spec = stranger.join()
    sent = np.full(spec.size, 2.0, np.float32)
    stranger.exchange(spec, quantise(sent, "float32"), steps=10)
    answer = wire.decode(stranger.connection.recv(10), "answer")
    np.testing.assert_allclose(answer.arrays["values"], 0.75 * before + 0.25 * sent, atol=1e-6)
    again = Stranger(network)  # the same life, whose answer was lost
    again.join()
    again.exchange(spec, quantise(sent, "float32"), steps=15)
    wire.decode(again.connection.recv(10), "answer")
    with pytest.raises(ConnectionClosed):
        stranger.connection.recv(10)
    later = Stranger(network, "stranger")  # and another life of the same child
    again.connection.close()
    later.life = "second"
    later.join()
    later.exchange(spec, quantise(sent, "float32"), steps=7)
    wire.decode(later.connection.recv(10), "answer")
    for _ in range(5):
        later.exchange(spec, quantise(sent, "float32"), steps=7)
        wire.decode(later.connection.recv(10), "answer")
    wait_for(lambda: network.run.rows()[-1]["exchanges"] == 5)
    assert network.run.rows()[-1]["children"]["stranger"]["steps"] == 15 + 7


def test_somebody_who_takes_nothing_does_not_hold_up_the_end(network: Network) -> None:
    begin(network, "--set", "net.hidden=[1500, 1500]", "--silence", 5, exchanges=3)
    deaf = socket.create_connection(("127.0.0.1", int(network.address.rpartition(":")[2])))
    key = base64.b64encode(bytes(16)).decode()
    fields = f"Host: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    deaf.sendall(f"GET / HTTP/1.1\r\n{fields}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    while b"\r\n\r\n" not in deaf.recv(65536):
        pass
    meta = {"protocol": PROTOCOL, "name": "deaf", "token": "", "life": "1"}
    hello = wire.encode(wire.Message("hello", "", meta))
    deaf.sendall(b"\x82\xfe" + len(hello).to_bytes(2, "big") + bytes(4) + hello)  # and reads no more
    wait_for(lambda: "deaf was disconnected: it takes nothing that it is sent" in network.said("parent"))
    again = socket.create_connection(deaf.getpeername())  # one that is not even shaken hands with
    network.start_child("good", "--cores", 1, "--quiet")
    network.wait(60)
    assert network.children["good"].wait(30) == 0
    deaf.close()
    again.close()


def test_somebody_who_never_says_hello_is_disconnected(network: Network) -> None:
    begin(network)
    quiet = Stranger(network)
    assert "said nothing for too long" in str(wire.decode(quiet.connection.recv(20), "refused").meta["why"])
    assert "somebody who never gave a name was disconnected" in network.said("parent")


def test_a_child_leaves_cleanly_when_it_is_interrupted(network: Network) -> None:
    begin(network)
    network.start_child("one", "--cores", 2)
    wait_for(lambda: exchanges(network).get("one", 0) > 5)
    network.children["one"].send_signal(signal.SIGINT)
    assert network.children["one"].wait(30) in (0, 130)
    wait_for(lambda: "one left after" in network.said("parent"))
    assert "Traceback" not in network.said("one")


@pytest.mark.parametrize("pause", [0.0, 0.1, 1.0])  # the last one while it judges its agent
def test_a_second_ctrl_c_stops_a_parent_and_does_not_fail_it(pause: float, network: Network) -> None:
    begin(network)
    network.start_child("one", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network).get("one", 0) > 5)
    parent = network.parent
    assert parent is not None
    for _ in range(2):
        parent.send_signal(signal.SIGINT)
        time.sleep(pause)
    assert parent.wait(30) in (0, 130)
    assert network.run.status()["status"] == "stopped"
    assert network.run.checkpoint(LAST).weights.version == network.run.status()["exchanges"] > 5
    assert "Traceback" not in network.said("parent")


def test_a_lost_child_hears_that_it_is_over(network: Network) -> None:
    begin(network, exchanges=30)
    between = SlowWire(int(network.address.rpartition(":")[2]), 0.0)
    near, network.address = network.address, between.address
    network.start_child("far", "--cores", 1, "--quiet")
    wait_for(lambda: "far joined" in network.said("parent"))
    between.cut()
    network.address = near
    network.start_child("near", "--cores", 1, "--quiet")
    network.wait(60)
    assert [network.children[name].wait(30) for name in ("near", "far")] == [0, 0]


def test_a_child_whose_parent_is_gone_gives_up_when_its_patience_ends(network: Network) -> None:
    begin(network)
    network.start_child("orphan", "--cores", 1, "--quiet", "--patience", 2)
    wait_for(lambda: exchanges(network).get("orphan", 0) > 0)
    assert network.parent is not None
    network.kill(network.parent)
    assert network.children["orphan"].wait(30) == 1
    assert "it was looked for during 2 s" in network.said("orphan")


def test_a_child_does_not_train_for_another_parent_that_took_its_parents_place(network: Network) -> None:
    begin(network)
    port = network.address.rpartition(":")[2]
    network.start_child("one", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network).get("one", 0) > 2)
    assert network.parent is not None
    network.kill(network.parent)
    path, network.path = network.path, network.path.with_name("another")
    network.start_parent("Acrobot-v1", "--listen", f"127.0.0.1:{port}")
    network.path = path
    assert network.children["one"].wait(60) == 1
    assert "has another task now (Acrobot-v1 with a3c)" in network.said("one")
    other = path.with_name("another.parent.log")
    wait_for(lambda: "one left after 0 exchanges" in other.read_text())


def test_a_token_is_demanded(network: Network, tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("open sesame\n")
    wrong.write_text("open rye\n")
    begin(network, "--token-file", secret, exchanges=10)
    network.start_child("thief", "--token-file", wrong, "--cores", 1)
    assert network.children["thief"].wait(60) == 1
    assert "its token is not the parent's" in network.said("thief")
    network.start_child("friend", "--token-file", secret, "--cores", 1)
    network.wait(120)
    assert "sesame" not in network.said("parent") + network.said("friend") + network.said("thief")


def test_tls(network: Network, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    begin(network, "--tls-cert", certificate, "--tls-key", key, exchanges=10)
    assert network.address.startswith("wss://")
    network.start_child("doubter", "--cores", 1)
    assert network.children["doubter"].wait(60) == 1
    assert "does not hold: self-signed certificate (if it is your own, give it" in network.said("doubter")
    assert "Traceback" not in network.said("doubter")
    network.start_child("trusting", "--cores", 1, "--tls-ca", certificate)
    network.wait(120)


@pytest.mark.parametrize(
    ("days", "host", "said"),
    [(-1, "127.0.0.1", "certificate has expired"), (2, "127.0.0.2", "is not valid for '127.0.0.1'")],
)
def test_a_certificate_that_does_not_hold_is_said(
    network: Network, tmp_path: Path, days: int, host: str, said: str
) -> None:
    certificate, key = self_signed(tmp_path, days, host)
    begin(network, "--tls-cert", certificate, "--tls-key", key)
    network.start_child("doubter", "--cores", 1, "--tls-ca", certificate)
    assert network.children["doubter"].wait(60) == 1
    assert said in network.said("doubter")
    assert len(network.said("doubter").strip().splitlines()) == 1


def test_a_child_without_tls_and_a_parent_with_it_hear_of_each_other(
    network: Network, tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    begin(network, "--tls-cert", certificate, "--tls-key", key)
    network.address = network.address.replace("wss", "ws")
    network.start_child("plain", "--cores", 1)
    assert network.children["plain"].wait(60) == 1
    assert "nobody speaks WebSocket" in network.said("plain")
    assert "for a parent with TLS, wss://" in network.said("plain")


def test_a_child_with_tls_hears_that_its_parent_has_none(network: Network) -> None:
    begin(network)
    network.address = network.address.replace("ws", "wss")
    network.start_child("careful", "--cores", 1)
    assert network.children["careful"].wait(60) == 1
    assert "a parent without a certificate has ws://" in network.said("careful")


def test_a_slow_network_slows_nobody_else(network: Network) -> None:
    begin(network)
    far = SlowWire(int(network.address.rpartition(":")[2]), 0.2)
    network.start_child("near", "--cores", 1, "--quiet")
    network.address = far.address
    network.start_child("far", "--cores", 1, "--quiet")
    wait_for(lambda: exchanges(network).get("far", 0) > 5)
    counts = exchanges(network)
    children = json.loads((network.path / "state.json").read_text())["children"]
    assert counts["near"] > 2 * counts["far"]
    wait_for(lambda: exchanges(network)["far"] > counts["far"] + 3)
    assert children["far"]["round_trip"] > 0.35
    far.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["child", "ws://127.0.0.1:1"], "no parent at ws://127.0.0.1:1"),
        (["child", "http://127.0.0.1:1"], "a parent's address is ws://HOST:PORT"),
        (["child", "ws://me:secret@127.0.0.1:1"], "and nothing more"),
        (["child", "ws://127.0.0.1:1/place"], "and nothing more"),
        (["child", "ws://127.0.0.1:port"], "and nothing more"),
        (["child", "ws://127.0.0.1:1", "--name", "a b"], "--name is 'a b'; it must be up to 64 letters"),
        (["child", "ws://127.0.0.1:1", "--patience", "0"], "--patience is 0"),
        (["child", "ws://127.0.0.1:1", "--tls-ca", "ca.pem"], "--tls-ca goes with"),
        (["child", "ws://127.0.0.1:1", "--cores", "0"], "--cores is 0"),
        (["child", "ws://127.0.0.1:1", "--name", ""], "--name is ''"),
        (["child", "ws://127.0.0.1:1", "--max-memory", "0"], "--max-memory is 0; it must be 1 (MB) or more"),
        (["child", "ws://127.0.0.1:1", "--max-message", "999"], "--max-message is 999; it must be between 1"),
        (["child", "ws://127.0.0.1:1", "--max-envs", "0"], "--max-envs is 0; it must be 1 or more"),
        (["child", "ws://127.0.0.1:1", "--token-file", "missing"], "--token-file missing: No such file"),
        (["child", "ws://127.0.0.2"], "no parent at ws://127.0.0.2:8765"),
        (["parent"], "which environment"),
        (["parent", ENV, "--alpha", "1.5"], "--alpha is 1.5; it must be between 0 and 1"),
        (["parent", ENV, "--beta", "-0.1"], "--beta is -0.1; it must be between 0 and 1"),
        (
            ["parent", ENV, "--max-step", "-1"],
            "--max-step is -1.0; it must be auto, or a length of 0 or more",
        ),
        (["parent", ENV, "--max-step", "far"], "'far' is neither auto nor a length"),
        (["parent", ENV, "--format", "int4"], "one of float32, float16, int8"),
        (["parent", ENV, "--listen", "0.0.0.0:0"], "demands a token"),
        (["parent", ENV, "--listen", "8765"], "is not of the form"),
        (["parent", ENV, "--tls-cert", "missing.pem"], "go together"),
        (
            ["parent", ENV, "--tls-cert", "missing.pem", "--tls-key", "missing.pem"],
            "cannot use --tls-cert",
        ),
        (["parent", ENV, "--algo", "a4c"], "a4c"),
        (["parent", ENV, "--listen", ":8765"], "is not of the form"),
        (["parent", ENV, "--set", "net.hidden=[65536,65536,65536]"], "GB are free; make net.hidden smaller"),
        (["parent", ENV, "--exchanges", "1.5"], "--exchanges is '1.5'; it must be a whole number"),
        (["sweep", "averaging", "--algo", "a4c"], "a4c"),
        (["sweep", "averaging", "--seeds", "x"], "such as 1,2,3"),
        (["sweep", "averaging", "--children", "0"], "--children is 0"),
        (["sweep", "averaging", "--episodes", "0"], "--episodes is 0"),
        (["train", ENV, "--algo", "a3c", "--channel", "ray"], "cores of one machine"),
        (["train", ENV, "--algo", "a3c", "--barrier", "on", "--mode", "sync"], "give one of them"),
        (["train", ENV, "--algo", "ppo", "--barrier", "off"], "--barrier is for cores that learn together"),
        (["train", "--resume", "run", "--barrier", "off"], "not barrier"),
    ],
)
def test_wrong_calls_say_what_to_do(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
