"""A real Ray: every algorithm gives the same bits, and what dies is replaced."""

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pytest
import ray
from brokers import TESTS, wait_for
from clusters import cluster

from manyhands.channels.ray.channel import RayChannel
from manyhands.channels.ray.cluster import connect, homes
from manyhands.channels.ray.player import session_place
from manyhands.cli import main as cli
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.core.errors import EnvError, RunError
from manyhands.core.events import WorkerLost
from manyhands.core.orders import Order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View
from manyhands.system.locks import try_lock

SMALL: dict[str, Any] = {
    "collect": {"shards": 2, "lanes": 4, "steps": 32},
    "run": {"steps": 4096, "until": "steps", "workers": 2, "seed": 3, "checkpoint_every": 1e9},
}


def config(env: str, **run: Any) -> Config:
    return Config.from_plain(merge(SMALL, {"env": {"id": env}, "run": run}))


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


LISTENERS = """
import os, tempfile
from contextlib import ExitStack
from pathlib import Path
import psutil, ray
from manyhands.channels.ray.cluster import ONLY_HERE, connect
def listening():
    return {c.laddr: c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN"}

before, known = set(psutil.pids()), listening()
with ExitStack() as held:
    connect("ray", 1, 1.0, held)
    ray.get(ray.remote(lambda: 1).remote())
    for address, pid in listening().items():
        if address not in known and pid not in before - {os.getpid()}:
            print("listens", address.ip.removeprefix("::ffff:"))
    for place in Path(tempfile.gettempdir()).iterdir():
        print("place", place.name, oct(place.stat().st_mode)[-3:])
print("left", os.listdir(tempfile.gettempdir()))
print("cluster", ray._private.ray_constants.ENABLE_RAY_CLUSTER, ONLY_HERE in os.environ)
"""


def test_a_local_cluster_keeps_to_loopback_and_leaves_nothing() -> None:
    with TemporaryDirectory(dir="/tmp") as place:  # a short one, in which Ray's sockets have room
        environment = {**os.environ, "TMPDIR": place}
        done = subprocess.run(
            [sys.executable, "-c", LISTENERS], env=environment, capture_output=True, text=True, check=True
        )
    lines = done.stdout.splitlines()
    listening = {line.split()[1] for line in lines if line.startswith("listens")}
    assert listening <= {"127.0.0.1", "::1"}
    assert listening
    modes = [line.split()[2] for line in lines if line.startswith("place manyhands-ray")]
    assert modes == ["700"]
    assert "left []" in lines
    assert "cluster True False" in lines


class Watcher(View):
    """Keeps what is said, and kills the first actor's process once, in the middle."""

    def __init__(self, kill: bool = False) -> None:
        super().__init__(quiet=True)
        self.kill, self.text = kill, ""

    def said(self, text: str) -> None:
        self.text += text + "\n"

    def progress(self, row: Any, executor: Any) -> None:
        if self.kill and executor.counts.steps >= 1000:
            self.kill = False
            handle = executor.channel.actors[0].handle
            os.kill(ray.get(handle.process.remote()), signal.SIGKILL)


def test_an_actor_that_is_killed_comes_back_and_changes_no_bit(tmp_path: Path) -> None:
    cluster()
    plain = merge(SMALL, {"env": {"id": "small_envs:Slow", "kwargs": {"delay": 0.0005}}})
    here = train(Config.from_plain(plain), directory=tmp_path / "inline")
    view = Watcher(kill=True)
    there = train(Config.from_plain(plain), directory=tmp_path / "ray", channel="ray", view=view)
    assert not view.kill
    assert "actor-0 was lost" in view.text
    assert there.status()["faults"] in (1, 2)  # under load Ray may lose the new actor's first call, too
    assert digest(there) == digest(here)


def test_an_actor_that_is_killed_while_it_has_nothing_to_do_is_noticed_with_its_next_order() -> None:
    cluster()
    made = plan(config("small_envs:Slow"))
    channel = RayChannel(made.task, 2, 1, hang_timeout=30)
    try:
        channel.publish(Weights(0, made.spec.initial_vector(0), made.spec.schema))
        channel.order(Order(0, 0, 0))
        assert isinstance(next_event(channel), Trajectory)
        process = process_of(channel)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: process_of(channel) not in (None, process))
        channel.order(Order(0, 1, 0))
        lost = next_event(channel)
        assert isinstance(lost, WorkerLost)
        assert lost.orders == (Order(0, 1, 0),)
    finally:
        channel.finish("the test is over")


def test_signs_of_life_lie_with_the_clusters_session_and_stale_ones_go(tmp_path: Path) -> None:
    cluster()
    before = set(Path(gettempdir()).glob("manyhands-*.signs"))  # of an earlier version, perhaps
    place = session_place()
    stale, fresh, held = (place / f"manyhands-{name}.signs" for name in ("stale", "fresh", "held"))
    crash = stale.with_suffix(".crash")
    for path in (stale, fresh, held, crash):
        path.write_bytes(bytes(64))
    for path in (stale, held):
        os.utime(path, (0, 0))
    with held.open("r+b") as file:
        assert try_lock(file)
        made = plan(config("small_envs:Slow"))
        channel = RayChannel(made.task, 2, 1, hang_timeout=30)
        try:
            assert process_of(channel) is not None
            assert [path.exists() for path in (stale, crash, fresh, held)] == [False, False, True, True]
            assert len(list(place.glob("manyhands-*-actor-0.signs"))) == 1
            assert set(Path(gettempdir()).glob("manyhands-*.signs")) <= before
        finally:
            channel.finish("the test is over")
        assert not list(place.glob("manyhands-*-actor-0.*"))
    for path in (fresh, held):
        path.unlink()


def test_actors_have_homes_on_all_nodes_that_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {"aa": 3.0, "bb": 1.0, "cc": 0.0}
    nodes = [{"Alive": True, "NodeID": n * 28, "Resources": {"CPU": cpus}} for n, cpus in cores.items()]
    nodes.append({"Alive": False, "NodeID": "dd" * 28, "Resources": {"CPU": 8.0}})
    nodes.append({"Alive": True, "NodeID": "ee" * 28, "Resources": {}})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    found = [home if isinstance(home, str) else home.node_id[:2] for home in homes(6, 1.0)]
    assert found == ["aa", "bb", "aa", "aa", "DEFAULT", "DEFAULT"]
    assert len(homes(2, 0.5)) == 2


def process_of(channel: RayChannel) -> int | None:
    """None while Ray starts it anew."""
    try:
        return int(ray.get(channel.actors[0].handle.process.remote()))
    except ray.exceptions.RayActorError:
        return None


def next_event(channel: RayChannel) -> Any:
    found: list[Any] = []

    def happened() -> bool:
        found.append(channel.receive(0.5))
        return found[-1] is not None

    wait_for(happened)
    return found[-1]


def test_a_hanging_environment_is_given_up_and_the_run_goes_on(tmp_path: Path) -> None:
    cluster()
    view = Watcher()
    kwargs = {"how": "hang", "marker": str(tmp_path / "marker")}
    plain = merge(
        SMALL, {"env": {"id": "small_envs:Failing", "kwargs": kwargs}, "run": {"hang_timeout": 2.0}}
    )
    run = train(Config.from_plain(plain), directory=tmp_path / "run", channel="ray", view=view)
    assert "was lost" in view.text
    assert run.status()["steps"] == 4096


def test_an_environment_that_breaks_its_contract_ends_the_run_with_one_line(tmp_path: Path) -> None:
    cluster()
    kwargs = {"how": "nan", "marker": str(tmp_path / "marker"), "always": True}
    plain = merge(SMALL, {"env": {"id": "small_envs:Failing", "kwargs": kwargs}})
    with pytest.raises(EnvError, match="broke its contract"):
        train(Config.from_plain(plain), directory=tmp_path / "run", channel="ray")


def test_a_node_of_three_dies_and_the_run_ends_solved(tmp_path: Path) -> None:
    """In a process of its own, because a process belongs to one cluster."""
    script = f"""
import threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
from manyhands.runs.view import View
from manyhands.config.resolve import resolve
from manyhands.runs.training import train

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
import ray
ray.init(address=cluster.address, namespace="manyhands", logging_level="ERROR", log_to_driver=False)

class Killer(View):
    done = False
    lines = []
    def said(self, text):
        self.lines.append(text)
    def progress(self, row, executor):
        if executor.counts.steps >= 2000 and not self.done:
            self.done = True
            cluster.remove_node(nodes[0], allow_graceful=False)

view = Killer(quiet=True)
config = resolve("CartPole-v1", "ppo", None, ({{"run": {{"seed": 1, "workers": 2}}}},))
run = train(config, directory=Path({str(tmp_path / "run")!r}), channel="ray", view=view)
print("lost" if any("was lost" in line for line in view.lines) else "kept", run.status()["solved"])
ray.shutdown()
cluster.shutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "lost True" in done.stdout.splitlines(), done.stdout[-2000:]


@pytest.mark.parametrize(
    ("address", "said"),
    [("ray:nowhere", "is not ray, ray:auto or ray://"), ("ray://127.0.0.1:1", "no Ray cluster to work with")],
)
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, address: str, said: str) -> None:
    command = [sys.executable, "-m", "manyhands", "train", "CartPole-v1", "--channel", address]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "manyhands.channels.ray.channel", raising=False)
    with pytest.raises(SystemExit):
        cli.main(["train", "CartPole-v1", "--channel", "ray", "--dir", str(tmp_path / "run")])
    assert "pip install -c constraints.txt '.[ray]'" in capsys.readouterr().err


def test_a_cluster_of_another_version_and_one_that_demands_a_token_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("Version mismatch: the cluster was started with:\n    Ray: 2.1.0")

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RunError, match=r"2\.1\.0; the cluster must run the same versions.*RAY_AUTH_MODE"):
        connect("ray:auto", 1, 1.0, ExitStack())
