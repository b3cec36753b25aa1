"""Wires a run together: settings, environment, channel, algorithm, executor, directory."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from manyhands.algos.configs import ANYWHERE, AdqnConfig, DqnConfig, HogwildConfig
from manyhands.algos.replay import check_memory
from manyhands.averaging.maths import average
from manyhands.channels.base import ExecutorChannel
from manyhands.collect.streams import INIT, mix
from manyhands.config import Config
from manyhands.envs import lto
from manyhands.envs import make as envs
from manyhands.errors import RunError, UsageError
from manyhands.experience import LIFE_LOST, Evaluation, Layout, Trajectory
from manyhands.nets.build import actor_critic, q_network
from manyhands.orders import Hogwild, Task
from manyhands.policy import ActionSpec, Float32, NetSpec, Weights
from manyhands.roles.executor import Executor, Listener
from manyhands.roles.hogwild import HogwildLearner
from manyhands.runs import store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.journal import Journal
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.progress import Progress
from manyhands.runs.store import Run
from manyhands.runs.view import View
from manyhands.settings import usable_cores

CHANNEL_VARIABLE = "MANYHANDS_CHANNEL"
"""Where a broker's address may be given, too: unlike arguments, not everyone can read it."""
EXECUTOR_GRACE = 10.0
"""Seconds that another executor has to leave."""


@dataclass(frozen=True)
class Plan:
    """A run before it starts: everything that can be wrong about it has been checked."""

    config: Config
    spaces: envs.Spaces
    task: Task
    solved_at: float | None
    callable_env: envs.MakeEnv | None

    @property
    def spec(self) -> NetSpec:
        return self.task.spec

    def first_weights(self) -> Weights:
        vector = self.spec.initial_vector(mix(self.config.run.seed, INIT), self.config.net.initial_std)
        return Weights(0, vector, self.spec.schema)


def plan(config: Config, callable_env: envs.MakeEnv | None = None) -> Plan:
    env = envs.make(config.env, callable_env)
    try:
        found = envs.describe(env)
    finally:
        env.close()
    spaces = replace(found, action=_way_to_act(config, found.action))
    solved_at = config.run.solved_at if config.run.solved_at is not None else spaces.threshold
    layout = Layout(
        steps=config.collect.steps,
        lanes=config.collect.lanes,
        obs_shape=spaces.obs.shape,
        obs_dtype=spaces.obs.dtype,
        action=spaces.action,
        columns=(*config.algo.columns, *([LIFE_LOST] if spaces.life_loss else [])),
        stack=spaces.obs.stack,
    )
    if isinstance(config.algo, DqnConfig):
        check_memory(config.algo, layout, config.collect.shards)
        spec = q_network(config.net, spaces, config.collect.shards * config.collect.lanes)
    elif isinstance(config.algo, AdqnConfig):
        spec = q_network(config.net, spaces, 1)
    else:
        spec = actor_critic(config.net, spaces)
    hogwild = None
    if isinstance(config.algo, HogwildConfig):
        hogwild = Hogwild(config.collect.shards, config.run.algo, asdict(config.algo))
    if hogwild is not None and spaces.obs.image:
        raise UsageError(f"{config.run.algo} learns with dense networks, and {config.env.id} shows pictures")
    if hogwild is not None and (config.net.normalise or config.net.state_std):
        raise UsageError(f"{config.run.algo} knows neither net.normalise nor net.state_std; leave them out")
    task = Task(config.env, spec, layout, config.run.seed, config.collect.random_lanes, hogwild)
    return Plan(config, spaces, task, solved_at, callable_env)


def _way_to_act(config: Config, space: ActionSpec) -> ActionSpec:
    """What the settings make of an environment's actions."""
    if isinstance(config.algo, DqnConfig | AdqnConfig):
        if space.kind != "categorical" or len(space.sizes) != 1:
            raise UsageError(
                f"{config.run.algo} needs one choice among a few actions (Discrete), which {config.env.id} "
                "does not have; try --algo ppo"
            )
        if isinstance(config.algo, AdqnConfig):
            return replace(space, kind="values")
        return replace(space, kind="values", dueling=config.algo.dueling, epsilon=config.algo.epsilon_test)
    if space.kind == "gaussian":
        return replace(space, squash=config.net.squash, state_std=config.net.state_std)
    return space


def open_channel(plan: Plan, broker: str | None, path: Path) -> ExecutorChannel:
    """A broker's workers, worker processes, or none. More workers than shards would have nothing to do."""
    config = plan.config
    workers = config.run.workers if config.run.workers >= 0 else usable_cores()
    workers = min(workers, config.collect.shards)
    if broker is not None and broker.startswith("ray"):
        return _open_ray(plan, broker, max(1, workers))
    if broker is not None:
        return _open_broker(plan, broker, path)
    if workers == 0:
        from manyhands.channels.inline import InlineChannel

        return InlineChannel(plan.task, plan.callable_env)
    from manyhands.channels.processes import ProcessesChannel

    return ProcessesChannel(
        plan.task,
        config.collect.shards,
        workers,
        config.run.hang_timeout,
        config.run.worker_memory,
        plan.callable_env,
    )


def broker_name(path: Path) -> str:
    """A run's name at a broker: the same when it is resumed, and no other run's."""
    place = hashlib.sha256(f"{socket.gethostname()}:{path.resolve()}".encode()).hexdigest()[:8]
    return f"{path.name}-{place}"


def _open_broker(plan: Plan, broker: str, path: Path) -> ExecutorChannel:
    if plan.callable_env is not None:
        raise UsageError(
            "workers behind a broker take no code; give the environment as a Gymnasium id or module:callable"
        )
    try:
        from manyhands.channels.amqp import AmqpChannel
        from manyhands.channels.amqp_link import Address
    except ModuleNotFoundError as error:
        raise UsageError(f"--channel amqp needs {error.name}; pip install 'manyhands[amqp]'") from error
    return AmqpChannel(plan.task, Address.parse(broker), broker_name(path), plan.config)


def _open_ray(plan: Plan, address: str, workers: int) -> ExecutorChannel:
    try:
        from manyhands.channels.ray import RayChannel
    except ModuleNotFoundError as error:
        raise UsageError(f"--channel ray needs {error.name}; pip install 'manyhands[ray]'") from error
    run = plan.config.run
    return RayChannel(
        plan.task,
        plan.config.collect.shards,
        workers,
        run.hang_timeout,
        address,
        run.cpus_per_worker,
        plan.callable_env,
    )


Judge = Callable[[Weights], dict[str, float]]
"""Measures every new version of the weights by means of its own."""


def _judge(plan: Plan, run: Run, version: int) -> Judge | None:
    """Learn-to-optimise knows the true minimum of its own functions, though not of a user's."""
    env = plan.config.env
    if env.id != lto.ENV_ID or (problem := lto.Problem.of(env.kwargs)).imports:
        return None
    from manyhands.lto.judge import QualityLog

    return QualityLog(problem, plan.spec, run.path / "quality.jsonl", version)


class _LateLearner:
    """Stands for the algorithm until it is first asked to learn, so that workers play while torch loads."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        resumed: Checkpoint | None,
        journal: Journal,
        judge: Judge | None = None,
    ) -> None:
        self.plan, self.first, self.resumed = plan, weights, resumed
        self.journal, self.judge = journal, judge
        self.algorithm: Any = None
        assert not isinstance(plan.config.algo, HogwildConfig)
        self.algo = plan.config.algo

    def weights(self) -> Weights:
        made: Weights = self.algorithm.weights() if self.algorithm else self.first
        return made

    def learn(self, trajectories: Any) -> dict[str, float]:
        from manyhands.nets.torch_net import torch_threads

        with torch_threads(self.plan.config.algo.threads):
            metrics: dict[str, float] = self.load().learn(trajectories)
        return {**metrics, **self.judge(self.weights())} if self.judge is not None else metrics

    def mix(self, vector: Float32, share: float) -> None:
        net = self.load().net
        net.load(average(net.vector(), vector, share))

    def load(self) -> Any:
        if self.algorithm is None:
            from manyhands.algos.base import learner

            config = self.plan.config
            self.algorithm = learner(
                config.run.algo,
                config=self.algo,
                spec=self.plan.spec,
                layout=self.plan.task.layout,
                shards=config.collect.shards,
                weights=self.first,
                seed=config.run.seed,
                total_steps=config.run.steps,
                directory=self.journal.directory.parent,
            )
            if self.resumed is not None and self.resumed.learner:
                self.algorithm.load_state(self.first.version, self.resumed.learner)
                self.algorithm.recall(self.journal.read(until=self.algorithm.pieces))
        return self.algorithm


class Exchange(Protocol):
    """Who else has a say in the weights."""

    def after(self, learner: "_LateLearner | HogwildLearner", trajectories: list[Trajectory]) -> None:
        """Called after every update; may replace the learner's weights."""

    def bind(self, stop: Callable[[], None], said: Callable[[str], None]) -> None:
        """Told before the first update how to end the run, and how to say something."""


class _Exchanging:
    """A learner whose every update somebody else hears of."""

    def __init__(self, learner: "_LateLearner | HogwildLearner", exchange: Exchange) -> None:
        self.learner, self.exchange = learner, exchange

    def weights(self) -> Weights:
        return self.learner.weights()

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        metrics = self.learner.learn(trajectories)
        self.exchange.after(self.learner, trajectories)
        return metrics


def train(
    config: Config,
    name: str | None = None,
    directory: Path | None = None,
    resume: Run | None = None,
    callable_env: envs.MakeEnv | None = None,
    view: View | None = None,
    channel: str | None = None,
    executors: int = 1,
    exchange: Exchange | None = None,
    start: Weights | None = None,
) -> Run:
    """Trains, and returns the run. Ctrl-C stops cleanly. `channel` is a broker, a Ray cluster, or none.

    `start` is what a new run begins with instead of random weights.
    """
    path = store.choose_path(name, directory) if resume is None else resume.path
    planned = plan(config, callable_env)
    if channel is not None and config.run.algo not in ANYWHERE:
        raise UsageError(
            f"{config.run.algo} learns on the cores of one machine; for several, `manyhands parent --help`"
        )
    with ExitStack() as held:
        if resume is not None:
            held.enter_context(resume.lock())
        resumed = _last_checkpoint(resume, planned)
        first = resumed.weights if resumed is not None else start or planned.first_weights()
        run = resume or store.create(path, config)
        try:
            opened = open_channel(planned, channel, run.path)
        except BaseException:
            if resume is None:
                run.discard()
            raise
        held.callback(opened.finish, "the run is over")
        if resume is None:
            held.enter_context(run.lock())
        else:
            run.save_config(config)
        for number in range(2, executors + 1):
            assert channel is not None
            held.enter_context(_another_executor(channel, run.path, number))
        _execute(planned, run, opened, first, resumed, view or View(quiet=True), exchange)
        opened.finish("the run is over")
        run.save_books(opened.books())  # with the workers' last reports
    return run


@contextmanager
def _another_executor(channel: str, path: Path, number: int) -> Iterator[None]:
    """A second process that joins the run; it leaves when the run is over."""
    command = [sys.executable, "-m", "manyhands.cli", "train", "--join", broker_name(path), "--quiet"]
    command += ["--dir", str(path / f"executor-{number}")]
    process = subprocess.Popen(command, env={**os.environ, CHANNEL_VARIABLE: channel}, process_group=0)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(EXECUTOR_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def join(
    run_name: str,
    broker: str,
    name: str | None = None,
    directory: Path | None = None,
    view: View | None = None,
) -> Run:
    """Another executor for a run over a broker: shares its data, has an agent and a directory of its own."""
    from manyhands.channels.amqp_joined import JoinedChannel
    from manyhands.channels.amqp_link import Address

    path = store.choose_path(name, directory)
    with ExitStack() as held:
        channel = JoinedChannel(Address.parse(broker), run_name)
        held.callback(channel.finish, "the run is over")
        config = channel.config()
        seed = mix(config.run.seed, INIT, int(channel.agent, 16)) >> 33  # another agent, not the same twice
        config = replace(config, run=replace(config.run, seed=seed))
        planned = plan(config)
        run = store.create(path, config)
        held.enter_context(run.lock())
        channel.start(planned.task, config.collect.shards)
        executor = _execute(planned, run, channel, planned.first_weights(), None, view or View(quiet=True))
        if executor.counts.solved:
            channel.end_run(f"solved by its executor in {run.path}")
    return run


def _last_checkpoint(resume: Run | None, plan: Plan) -> Checkpoint | None:
    """What to go on from; None for a new run, and for one that ended before its first checkpoint."""
    if resume is None or not resume.checkpoint_path(store.LAST).exists():
        return None
    found = resume.checkpoint(store.LAST)
    if found.spec.schema != plan.spec.schema:
        raise RunError(f"{resume.path} holds another network than its config.yaml describes")
    return found


def _learner(
    plan: Plan,
    run: Run,
    channel: ExecutorChannel,
    first: Weights,
    resumed: Checkpoint | None,
    journal: Journal,
) -> _LateLearner | HogwildLearner:
    if plan.task.hogwild is None:
        return _LateLearner(plan, first, resumed, journal, _judge(plan, run, first.version))
    learner = HogwildLearner(channel.memory, plan.spec, first)  # type: ignore[attr-defined]
    if resumed is not None and resumed.learner:
        learner.load_state(resumed.learner)
    return learner


def _execute(
    plan: Plan,
    run: Run,
    channel: ExecutorChannel,
    first: Weights,
    resumed: Checkpoint | None,
    view: View,
    exchange: Exchange | None = None,
) -> Executor:
    config = plan.config
    journal = Journal(run.path / "memory", plan.task.layout, plan.spec.schema)
    learner = _learner(plan, run, channel, first, resumed, journal)

    def save(executor: Executor) -> None:
        learned = executor.weights.version > 0
        piece = learner.load().remembered() if learned else None
        if piece is not None:
            journal.append(piece)
        run.save(
            store.LAST,
            Checkpoint(
                plan.spec,
                plan.spaces.action,
                executor.weights,
                executor.previous,
                learner.load().state() if learned else {},
                executor.states,
                executor.counts.to_plain(),
            ),
        )
        if piece is not None:
            journal.forget(learner.load().needed())
        run.save_status(_status(executor, "running"))
        run.save_books(channel.books())

    def save_best(weights: Weights) -> None:
        run.save(store.BEST, Checkpoint(plan.spec, plan.spaces.action, weights))

    counts = Progress.from_plain(resumed.progress) if resumed is not None else None
    log = MetricsLog(run, counts.steps if counts else 0)
    listener = _Listeners(log, view)
    heard = learner if exchange is None else _Exchanging(learner, exchange)
    executor = Executor(config, plan.task.layout, channel, heard, plan.solved_at, listener, save, save_best)
    if exchange is not None:
        exchange.bind(executor.stop, listener.said)
    if resumed is not None and counts is not None:
        executor.resume(counts, resumed.previous, resumed.shards)
    view.start(run, config, plan.solved_at)
    status = "failed"
    try:
        with stop_signals(executor.stop):
            executor.prepare()
            if not channel.plays_here:
                learner.load()  # while the workers play; inline, the first rollout comes first
            executor.run()
        counts = executor.counts
        status = "solved" if counts.solved else "stopped" if executor.stopping else "finished"
    finally:
        view.stop()
        log.close()
        run.save_status(_status(executor, status))
    view.end(run, executor)
    return executor


def _status(executor: Executor, status: str) -> dict[str, Any]:
    counts = executor.counts.to_plain()
    del counts["recent"]
    return {"status": status, "version": executor.weights.version, "updated": store.now(), **counts}


class _Listeners:
    """The metrics file and the screen."""

    def __init__(self, log: MetricsLog, view: Listener) -> None:
        self.log, self.view = log, view

    def progress(self, row: Mapping[str, Any], executor: Executor) -> None:
        counts = executor.counts
        common = {
            "steps": counts.steps,
            "seconds": round(counts.seconds, 3),
            "version": executor.weights.version,
            "episodes": counts.episodes,
            "lag": executor.lag,
            "workers": len(executor.channel.workers()),
            "faults": counts.faults,
            "dropped": counts.dropped,
            **{
                name: round(getattr(counts, name), 3)
                for name in ("collecting", "waiting", "learning", "broadcasting", "testing")
            },
        }
        backlog = executor.channel.backlog()
        if backlog is not None:
            common["data_queue"] = backlog
        if counts.recent_mean is not None:
            common["return_mean"] = counts.recent_mean
        self.log.write({**common, **row})
        self.view.progress(row, executor)

    def tested(self, result: Evaluation, executor: Executor) -> None:
        self.log.write(
            {
                "steps": executor.counts.steps,
                "seconds": round(executor.counts.seconds, 3),
                "test_mean": result.mean,
                "test_sd": result.sd,
                "test_episodes": result.episodes,
            }
        )
        self.view.tested(result, executor)

    def waiting(self, executor: Executor) -> None:
        self.view.waiting(executor)

    def said(self, text: str) -> None:
        self.view.said(text)


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `stop`; a second Ctrl-C interrupts at once. Only a main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def continue_config(run: Run, steps: int | None, until: str | None, workers: int | None) -> Config:
    """A run's own settings; only how long and with how many workers may change on resume."""
    plain = run.config().to_plain()
    for name, value in (("steps", steps), ("until", until), ("workers", workers)):
        if value is not None:
            plain["run"][name] = value
    status = run.status()
    if status.get("solved") and plain["run"]["until"] == "solved":
        raise UsageError(f"{run.path} is solved already; go on with --until steps --steps N")
    used, tested = status.get("steps", 0), status.get("tested_at")
    if used >= plain["run"]["steps"] and used == tested:
        raise UsageError(f"{run.path} has used its {plain['run']['steps']} steps; give more: --steps N")
    return Config.from_plain(plain)
