"""Wires a run together: settings, environment, channel, algorithm, executor, directory."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from manyhands.channels.base import ExecutorChannel
from manyhands.config import algorithms
from manyhands.config.settings import Config
from manyhands.core.errors import RunError, UsageError
from manyhands.core.horizon import Horizon
from manyhands.core.seeding import INIT, hash_seed
from manyhands.core.weights import Weights
from manyhands.envs import make as envs
from manyhands.roles.executor import Executor
from manyhands.roles.progress import Progress
from manyhands.runs import store
from manyhands.runs.callbacks import Callback
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.journal import Journal
from manyhands.runs.learners import Exchange, Exchanging, Measure, open_learner
from manyhands.runs.loggers.choose import Log
from manyhands.runs.open_channel import CHANNEL_VARIABLE, broker_name, check_channel, open_channel
from manyhands.runs.plan import Plan, plan
from manyhands.runs.saves import Saves, status_of
from manyhands.runs.store import Run
from manyhands.runs.view import View
from manyhands.runs.warm_start import Start, warm_start
from manyhands.runs.watchers import Watchers
from manyhands.system.signals import stop_signals, uninterrupted
from manyhands.system.threads import share_cores

Measures = Callable[[Plan, Run, int], Measure | None]
"""Makes the measure of a run's weights, from this version on."""
EXECUTOR_GRACE = 10.0
"""Seconds that another executor has to end by itself."""
JOINER = """
import sys
from manyhands.cli.main import main
from manyhands.system.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
main()
"""
"""A script that runs the command line in a process that does not outlive whoever started it."""


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
    measures: Measures | None = None,
    callbacks: Sequence[Callback] = (),
    log: Log = None,
    start_from: str | None = None,
) -> Run:
    """Train, and return the run. Ctrl-C stops cleanly. `channel` is a broker, a Ray cluster, or none.

    `start` is what a new run begins with instead of random weights, or `start_from`, another run's agent;
    `measures` makes what measures every new version of them; `log` chooses the loggers, as in
    `runs/loggers/choose.py`.
    """
    watchers = Watchers(view, callbacks, log, resume)
    share_cores(watchers.view.said)
    path = store.choose_path(name, directory) if resume is None else resume.path
    planned = plan(config, callable_env)
    _check(planned, channel, resume, start_from)
    with ExitStack() as held:
        if resume is not None:
            held.enter_context(resume.lock())
        resumed = _last_checkpoint(resume, planned)
        warm = Start(start) if start is not None else None
        if start_from is not None:
            warm = warm_start(start_from, planned)
        first = resumed.weights if resumed is not None else warm.weights if warm is not None else None
        run = replace(resume or store.create(path, config), make_env=callable_env, measures=measures)
        held.callback(watchers.close, "failed")  # where nobody has closed them by then
        try:
            watchers.begin(run, _steps_of(resumed) if resume is not None else None)
            opened = open_channel(planned, channel, run.path)
        except BaseException:
            watchers.close("failed")
            if resume is None:
                run.discard()
            raise
        held.callback(opened.finish, "the run is over")
        if resume is None:
            held.enter_context(run.lock())
        else:
            run.save_config(config)
        for _ in range(executors - 1):
            assert channel is not None
            held.enter_context(_another_executor(channel, run.path, _own_code(config)))
        first = first or planned.first_weights()
        measure = None if measures is None else measures(planned, run, first.version)
        _execute(planned, run, opened, first, resumed, watchers, exchange, measure, warm)
        opened.finish("the run is over")
        run.save_worker_stats(opened.worker_stats())  # with the workers' last reports
    return run


def _check(plan: Plan, channel: str | None, resume: Run | None, start_from: str | None) -> None:
    """Refuse what does not go together, before anything is made."""
    if channel is not None and plan.algorithm.uses_cores:
        algo = plan.config.run.algo
        raise UsageError(f"{algo} learns on the cores of one machine; for several, `manyhands parent --help`")
    if channel is not None:
        check_channel(channel)
    if resume is not None and start_from is not None:
        raise UsageError(f"{resume.path} goes on with its own agent; start_from is for new runs")


def _own_code(config: Config) -> list[str]:
    """Return the names of the user's own code that a run needs, as `--allow` takes them."""
    algo = [] if config.run.algo in algorithms.BUILT_IN else [config.run.algo]
    return envs.imported_names(config.env) + algo


@contextmanager
def _another_executor(channel: str, path: Path, allowed: Sequence[str]) -> Iterator[None]:
    """Start a second process that joins the run; it leaves when the run is over, and dies with this one."""
    places = (path / f"executor-{number}" for number in count(2))
    place = next(place for place in places if not place.exists())
    place.mkdir()  # so that the next one takes another
    command = [sys.executable, "-c", JOINER, str(os.getpid())]
    command += ["train", "--join", broker_name(path), "--quiet", "--dir", str(place)]
    command += [word for name in allowed for word in ("--allow", name)]
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
    allowed: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    log: Log = None,
) -> Run:
    """Run another executor for a run over a broker: it shares its data, and has its own agent and directory.

    The run's settings come over the network, so code that they name must be `allowed` here.
    """
    from manyhands.channels.amqp.address import Address
    from manyhands.channels.amqp.joined import JoinedChannel

    watchers = Watchers(view, callbacks, log)
    share_cores(watchers.view.said)
    path = store.choose_path(name, directory)
    with ExitStack() as held:
        channel = JoinedChannel(Address.parse(broker), run_name)
        held.callback(channel.finish, "the run is over")
        config = channel.config(allowed)
        envs.check_imports(config.env, allowed)
        # Another agent than the others, not the same again.
        seed = hash_seed(config.run.seed, INIT, int(channel.agent, 16)) >> 33
        config = replace(config, run=replace(config.run, seed=seed))
        planned = plan(config)
        first = planned.first_weights()
        run = store.create(path, config)
        held.enter_context(run.lock())
        channel.start(planned.task, config.collect.shards)
        held.callback(watchers.close, "failed")
        watchers.begin(run, None)
        executor = _execute(planned, run, channel, first, None, watchers)
        if executor.counts.solved:
            channel.end_run(f"solved by its executor in {run.path}")
    return run


def _last_checkpoint(resume: Run | None, plan: Plan) -> Checkpoint | None:
    """Return what to go on from; None for a new run, and for one that ended before its first checkpoint."""
    if resume is None or not resume.checkpoint_path(store.LAST).exists():
        return None
    found = resume.checkpoint(store.LAST)
    if found.spec.schema != plan.spec.schema:
        raise RunError(f"{resume.path} holds another network than its config.yaml describes")
    return found


def _steps_of(checkpoint: Checkpoint | None) -> int:
    return Progress.from_plain(checkpoint.progress).steps if checkpoint is not None else 0


def _execute(
    plan: Plan,
    run: Run,
    channel: ExecutorChannel,
    first: Weights,
    resumed: Checkpoint | None,
    watchers: Watchers,
    exchange: Exchange | None = None,
    measure: Measure | None = None,
    start: Start | None = None,
) -> Executor:
    config = plan.config
    journal = Journal(run.path / "memory", plan.task.layout, plan.spec.schema)
    horizon = Horizon(config.run.steps, config.run.updates) if exchange is None else exchange.horizon
    memory = getattr(channel, "memory", None)  # of channels to the cores of this machine
    learner = open_learner(plan, first, resumed, journal, horizon, memory, measure, start)
    listener = watchers.follow(run, _steps_of(resumed))
    saves = Saves(plan, run, channel, learner, journal, listener)
    heard = learner if exchange is None else Exchanging(learner, exchange)
    executor = Executor(
        config, plan.task.layout, channel, heard, plan.solved_at, listener, saves.last, saves.best
    )
    if exchange is not None:
        exchange.bind(executor.stop, listener.said)
    if resumed is not None:
        executor.resume(Progress.from_plain(resumed.progress), resumed.previous, resumed.shards)
    watchers.view.start(run, config, plan.solved_at)
    status = "failed"
    try:
        with stop_signals(executor.stop):
            listener.started(executor, resumed is not None)
            executor.prepare()
            if not channel.plays_here:
                learner.load()  # while the workers play; inline, the first rollout comes first
            executor.run()
        listener.callbacks.check()
        status = _how_it_ended(executor)
    except KeyboardInterrupt:  # a second one, while the first was being heeded
        status = "stopped"
        raise
    finally:
        try:
            status = listener.ended(status)
        finally:
            with uninterrupted():
                run.save_status(status_of(executor, status))
                watchers.stop(listener)
        watchers.close(status)
    listener.callbacks.check()
    watchers.view.end(run, executor)
    return executor


def _how_it_ended(executor: Executor) -> str:
    return "solved" if executor.counts.solved else "stopped" if executor.stopping else "finished"
