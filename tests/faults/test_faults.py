"""Real kills, real hangs, real crashes: the run goes on, and where it can be exact it is."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from brokers import hears_hangups

import manyhands
from manyhands.collect.episodes import EpisodePlayer
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError, UsageError
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View

SMALL: dict[str, Any] = {
    "collect": {"shards": 2, "lanes": 4, "steps": 32},
    "algo": {"minibatch": 64, "epochs": 2},
    "run": {
        "steps": 8192,
        "until": "steps",
        "workers": 2,
        "mode": "sync",
        "seed": 3,
        "checkpoint_every": 0.0,
    },
}


def config(env_id: str = "small_envs:Chain", **layers: dict[str, Any]) -> Config:
    return Config.from_plain(merge(SMALL, {"env": {"id": env_id}}, layers))


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


class Heard(View):
    """Keeps what a run says."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def said(self, text: str) -> None:
        self.lines.append(text)


def command(directory: Path, *extra: str) -> list[str]:
    return [sys.executable, "-m", "manyhands", "train", *extra, "--dir", str(directory)]


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


SLOW_STEPS = 4096
SLOW = ("env.kwargs={delay: 0.001}", "run.checkpoint_every=0")
SLOW_RUN = [
    "small_envs:Slow",
    "--mode", "sync",
    "--workers", "2",
    "--steps", str(SLOW_STEPS),
    "--until", "steps",
    "--seed", "3",
    *settings("collect.lanes=4", "collect.steps=32", "algo.minibatch=64", *SLOW),
]  # fmt: skip


VALUES = [
    "small_envs:Slow",
    "--algo", "apex",
    "--workers", "2",
    "--steps", str(SLOW_STEPS),
    "--until", "steps",
    "--seed", "3",
    *settings("collect.lanes=4", "collect.steps=32", "algo.memory=2000", *SLOW),
]  # fmt: skip
"""With a memory that is overwritten several times."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def workers_of(process: int) -> list[psutil.Process]:
    return [
        child for child in psutil.Process(process).children() if "roles.worker" in " ".join(child.cmdline())
    ]


@pytest.mark.parametrize("mode", ["sync", "pipelined"])
def test_a_killed_worker_is_replaced_and_changes_no_bit(tmp_path: Path, mode: str) -> None:
    undisturbed = train(config(run={"mode": mode}), directory=tmp_path / "whole")
    view = Heard()
    killed: list[int] = []

    class Killer(Heard):
        def progress(self, row: Any, executor: Any) -> None:
            if executor.counts.steps > 2000 and not killed:
                killed.append(executor.channel.processes[0].process.pid)
                os.kill(killed[0], signal.SIGKILL)

    view = Killer()
    disturbed = train(config(run={"mode": mode}), directory=tmp_path / "killed", view=view)
    assert killed
    assert "worker-0 was lost (ended by SIGKILL" in view.lines[0]
    assert digest(disturbed) == digest(undisturbed)


@pytest.mark.parametrize("mode", ["sync", "pipelined", "async"])
def test_workers_killed_while_the_executor_is_busy_cost_nothing_but_time(tmp_path: Path, mode: str) -> None:
    """Replies and the end of a worker pile up while the executor learns; it must hear of both in order."""

    class Killer(Heard):
        def progress(self, row: Any, executor: Any) -> None:
            if len(killed) < 3:
                killed.append(executor.channel.processes[-1].process.pid)
                with suppress(ProcessLookupError):  # dead already, and buried, but not yet replaced
                    os.kill(killed[-1], signal.SIGKILL)
                time.sleep(0.3)  # also lets the next row of metrics be due

    killed: list[int] = []
    settings = {"collect": {"shards": 3}, "run": {"mode": mode, "workers": 3, "steps": 3 * 128 * 20}}
    view = Killer()
    disturbed = train(config(**settings), directory=tmp_path / "killed", view=view)
    assert 1 <= len(view.lines) <= 3  # one that is dead already may be killed again
    assert all("SIGKILL" in line for line in view.lines)
    if mode != "async":
        undisturbed = train(config(**settings), directory=tmp_path / "whole")
        assert digest(disturbed) == digest(undisturbed)


def test_a_worker_that_grows_too_large_is_replaced_and_changes_no_bit(tmp_path: Path) -> None:
    view = Heard()
    runs = [
        train(
            config(
                "small_envs:Leaky",
                env={"kwargs": {"leak": leak}},
                run={"worker_memory": 150, "steps": 65_536, "checkpoint_every": 1e6, "mode": "pipelined"},
            ),
            directory=tmp_path / str(leak),
            view=view,
        )
        for leak in (25_000, 0)
    ]
    assert "more than run.worker_memory" in view.lines[0]
    assert runs[0].status()["faults"] == 0
    assert digest(runs[0]) == digest(runs[1])


def test_slow_environments_are_not_taken_for_hung_ones(tmp_path: Path) -> None:
    view = Heard()
    settings = {"collect": {"steps": 4}, "run": {"hang_timeout": 1.5, "steps": 64, "test_episodes": 1}}
    train(
        config("small_envs:Slow", env={"kwargs": {"delay": 0.25}}, **settings),
        directory=tmp_path / "run",
        view=view,
    )
    assert view.lines == []


def test_a_run_is_not_solved_by_tests_that_crash(tmp_path: Path) -> None:
    """Each step costs 1, so an episode cut short by a crash looks better than it is."""
    run_settings = {"steps": 512, "workers": 0, "solved_at": -2.5, "test_episodes": 20, "max_faults": 1000}
    run = train(config("small_envs:Costly", run=run_settings), directory=tmp_path / "run")
    assert run.status()["faults"] > 0
    assert not run.status()["solved"]


def test_stopping_during_the_last_test_can_be_resumed(tmp_path: Path) -> None:
    class Stopper(Heard):
        def waiting(self, executor: Any) -> None:
            if executor.counts.steps >= 256:
                executor.stop()

    settings = {"steps": 256, "test_episodes": 40, "workers": 1}
    slow = config("small_envs:Slow", env={"kwargs": {"delay": 0.02}}, run=settings)
    run = train(slow, directory=tmp_path / "run", view=Stopper())
    assert run.status()["tests"] == 0
    manyhands.train("unused", resume=run.path)
    assert run.status()["tests"] == 1


@pytest.mark.parametrize(
    ("mode", "moment", "more"),
    [
        ("sync", 0.9, []),
        ("pipelined", 0.5, []),
        ("pipelined", 0.7, VALUES),
    ],
)
def test_kill_9_of_the_whole_group_then_resume_gives_the_same_weights(
    tmp_path: Path, mode: str, moment: float, more: list[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*(more or SLOW_RUN), "--mode", mode]
    subprocess.run(command(whole, *words), env=environment(), check=True, capture_output=True)
    process = subprocess.Popen(
        command(cut, *words), env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_for((cut / "checkpoints" / "last.safetensors").exists)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert Run(cut).status()["steps"] < SLOW_STEPS
    resume = [sys.executable, "-m", "manyhands", "train", "--resume", str(cut), "--workers", "1"]
    subprocess.run(resume, env=environment(), check=True, capture_output=True)
    assert digest(Run(cut)) == digest(Run(whole))
    steps = [row["steps"] for row in Run(cut).rows()]
    assert steps == sorted(steps), "rows after the checkpoint must not be there twice"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_saves_says_how_to_resume_and_leaves_no_process(tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        command(run, *SLOW_RUN),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears_hangups,
    )
    wait_for((run / "checkpoints" / "last.safetensors").exists)
    children = workers_of(process.pid)
    assert len(children) == 2
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"manyhands train --resume {run}" in said
    assert not any(child.is_running() for child in children)
    assert Run(run).status()["status"] == "stopped"


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_a_second_ctrl_c_stops_a_run_and_does_not_fail_it(tmp_path: Path, pause: float) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        command(run, *SLOW_RUN), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for((run / "checkpoints" / "last.safetensors").exists)
    children = workers_of(process.pid)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
    assert process.wait(20) in (0, 130)
    assert Run(run).status()["status"] == "stopped"
    wait_for(lambda: not any(child.is_running() for child in children), seconds=10)


def test_a_closed_terminal_saves_all_the_same(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keyboard, screen = os.openpty()
    process = subprocess.Popen(
        command(run, *SLOW_RUN), env=environment(), stdout=screen, stderr=screen, preexec_fn=hears_hangups
    )
    os.close(screen)
    drained = threading.Thread(target=drain, args=(keyboard,), daemon=True)
    drained.start()
    wait_for((run / "checkpoints" / "last.safetensors").exists)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.05)
    os.close(keyboard)
    assert process.wait(20) == 0
    assert Run(run).status()["status"] == "stopped"


def drain(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


def test_workers_do_not_outlive_a_killed_executor_even_inside_a_hung_step(tmp_path: Path) -> None:
    hanging = ["small_envs:Failing", "--workers", "2"]
    hanging += settings(f"env.kwargs={{how: hang, marker: {tmp_path}/m, after: 3, always: true}}")
    process = subprocess.Popen(
        command(tmp_path / "run", *hanging), env=environment(), stdout=subprocess.DEVNULL
    )
    wait_for((tmp_path / "m").exists)
    children = workers_of(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(child.is_running() for child in children), seconds=5)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the simulator exploded"),
        ("hang", "took longer than"),
        ("segfault", "SIGSEGV"),
        ("exit", "exit code 7"),
    ],
)
def test_a_misbehaving_environment_is_replaced_and_the_run_goes_on(
    tmp_path: Path, how: str, said: str
) -> None:
    view = Heard()
    kwargs = {"how": how, "marker": str(tmp_path / "marker")}
    run = train(
        config("small_envs:Failing", env={"kwargs": kwargs}, run={"hang_timeout": 1.0}),
        directory=tmp_path / "run",
        view=view,
    )
    assert said in "\n".join(view.lines)
    assert "lane" in view.lines[0]
    status = run.status()
    assert status["steps"] == 8192
    assert status["faults"] >= 1


@pytest.mark.parametrize(
    ("how", "said"), [("raise", "a test"), ("segfault", "in a test"), ("hang", "in a test")]
)
def test_an_environment_that_fails_in_a_test_is_replaced_too(tmp_path: Path, how: str, said: str) -> None:
    view = Heard()
    # Two rollouts make 64 steps in each environment; 50 episodes of the one test make more.
    kwargs = {"how": how, "marker": str(tmp_path / "marker"), "after": 70}
    run_settings = {"hang_timeout": 1.0, "test_every": 256, "steps": 256, "test_episodes": 800}
    run = train(
        config("small_envs:Failing", env={"kwargs": kwargs}, run=run_settings),
        directory=tmp_path / "run",
        view=view,
    )
    assert "a test" in view.lines[0]
    assert run.status()["tests"] == 1


@pytest.mark.parametrize(("how", "workers"), [("raise", 0), ("raise", 2), ("segfault", 2)])
def test_an_environment_that_always_fails_ends_the_run_with_one_line(
    tmp_path: Path, how: str, workers: int
) -> None:
    kwargs = {"how": how, "marker": str(tmp_path / "marker"), "always": True, "after": 3}
    with pytest.raises(EnvError, match="failed more than 2 times"):
        train(
            config("small_envs:Failing", env={"kwargs": kwargs}, run={"workers": workers, "max_faults": 2}),
            directory=tmp_path / "run",
        )
    assert Run(tmp_path / "run").status()["status"] == "failed"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "observation is not finite"),
        ("nan-reward", "reward is not finite"),
        ("shape", r"shape \(4,\)"),
        ("dtype", "dtype"),
        ("reward-text", "its reward is 'much'"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_named(
    tmp_path: Path, how: str, said: str, workers: int
) -> None:
    kwargs = {"how": how, "marker": str(tmp_path / "marker"), "after": 3}
    with pytest.raises(EnvError, match=said) as caught:
        train(
            config("small_envs:Failing", env={"kwargs": kwargs}, run={"workers": workers}),
            directory=tmp_path / "run",
        )
    assert "lane" in str(caught.value)
    assert "seed" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("env", ["Old", "limited_old"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "step",
            r"step returned 4 values, not \(observation, reward, terminated, truncated, info\); wr",
        ),
        ("reset", r"reset returned ndarray alone, not \(observation, info\); wrap it"),
        ("seed", r"reset takes no seed; it must be reset\(self, \*, seed=None, options=None\); wrap it"),
    ],
)
def test_an_environment_by_the_old_interface_ends_the_run_at_once(
    tmp_path: Path, env: str, what: str, said: str, workers: int
) -> None:
    with pytest.raises(EnvError, match=rf"^small_envs:{env} broke its contract: {said}") as caught:
        train(
            config(f"small_envs:{env}", env={"kwargs": {"what": what}}, run={"workers": workers}),
            directory=tmp_path / "run",
        )
    assert "\n" not in str(caught.value)
    assert not [event for event in Run(tmp_path / "run").events() if event["kind"] == "fault"]


@pytest.mark.parametrize("what", ["step", "reset"])
def test_cores_that_learn_refuse_the_old_interface(tmp_path: Path, what: str) -> None:
    given = {"env": {"kwargs": {"what": what}}}
    with pytest.raises(EnvError, match=rf"small_envs:Old broke its contract: {what} returned"):
        manyhands.train("small_envs:Old", "a3c", workers=1, settings=given, directory=tmp_path / "run")


@pytest.mark.parametrize("what", ["step", "reset"])
def test_a_test_refuses_the_old_interface(what: str) -> None:
    env = EnvConfig("small_envs:Old", {"what": what})
    planned = plan(Config(env=env))
    player = EpisodePlayer(env, planned.spec, planned.task.layout.action, lanes=1)
    with pytest.raises(EnvError, match=rf"small_envs:Old broke its contract: {what} returned"):
        player.play(planned.first_weights(), 1, seed=1)


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_an_environment_without_a_space_is_told_to_have_one(which: str) -> None:
    with pytest.raises(UsageError, match=rf"^Spaceless has no {which}; set self.{which} to one of gymnasium"):
        plan(Config(env=EnvConfig("small_envs:Spaceless", {"which": which})))


def test_an_unrepeatable_environment_is_resumed_with_new_episodes_and_this_is_said(tmp_path: Path) -> None:
    run = train(config("small_envs:Unrepeatable"), directory=tmp_path / "run")
    view = Heard()
    more = config("small_envs:Unrepeatable", run={"steps": 12000})
    train(more, resume=run, view=view)
    assert any("cannot be restarted exactly" in line for line in view.lines)
    assert run.status()["steps"] >= 12000


def test_a_callable_environment_reaches_the_workers(tmp_path: Path) -> None:
    from small_envs import Chain

    limit = 17
    run = manyhands.train(
        lambda: Chain(limit=limit), workers=2, steps=4096, until="steps", directory=tmp_path / "run"
    )
    assert run.status()["steps"] >= 4096
