"""Plans a run from its settings and its environment, and checks it before anything starts."""

from dataclasses import dataclass, replace

from manyhands.algos.algorithm import Algorithm
from manyhands.algos.replay_memory import RESERVE
from manyhands.config.settings import Config
from manyhands.core.arrays import Float32
from manyhands.core.errors import UsageError, need_library
from manyhands.core.networks import NetSpec
from manyhands.core.orders import Task
from manyhands.core.seeding import INIT, hash_seed
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import LIFE_LOST, Layout
from manyhands.core.weights import Weights, weights_nbytes
from manyhands.envs import make as envs
from manyhands.envs.describe import describe
from manyhands.hogwild.cores import SharedMemory
from manyhands.system.memory import free_memory

COPIES_OF_WEIGHTS = 8
"""Copies of a network in memory: weights, gradients, an optimizer's two, and the versions that are kept."""
COPIES_OF_BATCHES = 3
"""Copies of a batch in memory: one is learned from, the next is made, and the learner joins their parts."""


@dataclass(frozen=True)
class Plan:
    """A run before it starts: everything that can be wrong about it has been checked."""

    config: Config
    algorithm: Algorithm
    spaces: Spaces
    task: Task
    solved_at: float | None
    callable_env: envs.MakeEnv | None

    @property
    def spec(self) -> NetSpec:
        return self.task.spec

    def first_weights(self) -> Weights:
        vector = self.spec.initial_vector(hash_seed(self.config.run.seed, INIT), self.config.net.initial_std)
        return Weights(0, vector, self.spec.schema, first_beside(self.config, self.spec))


def first_beside(config: Config, spec: NetSpec) -> dict[str, Float32]:
    """Return what travels beside the first weights: the network's statistics, then the algorithm's."""
    return {**spec.initial_statistics(), **config.algorithm.beside(config.collect.all_lanes)}


def plan(config: Config, callable_env: envs.MakeEnv | None = None, learns_here: bool = True) -> Plan:
    """Plan a run. With `learns_here` it must fit in this machine's memory; a parent's children are elsewhere.

    Whoever holds the network all the same calls `check_network`.
    """
    env = envs.make(config.env, callable_env)
    try:
        found = describe(env)
    finally:
        envs.close(env)
    algorithm: Algorithm = config.algorithm
    algorithm.check_actions(found.action.space, config.run.algo, config.env.id)
    action = algorithm.action_spec(found.action, config.net, config.run.algo)
    if action.algo and config.collect.random:
        raise UsageError(f"collect.random stays 0: {config.run.algo} chooses its actions by itself")
    spaces = replace(found, action=action)
    solved_at = config.run.solved_at if config.run.solved_at is not None else spaces.threshold
    layout = Layout(
        steps=config.collect.steps,
        lanes=config.collect.lanes,
        obs_shape=spaces.obs.shape,
        obs_dtype=spaces.obs.dtype,
        action=spaces.action,
        columns=(*algorithm.columns, *([LIFE_LOST] if spaces.life_loss else [])),
        stack=spaces.obs.stack,
    )
    algorithm.check(config, spaces)
    if learns_here and not algorithm.uses_cores:
        need_library(config.run.algo, "torch")
    algorithm.check_memory(layout, config.collect.shards, learns_here)
    spec = algorithm.network(config.net, spaces)
    cores = algorithm.cores(config.collect.shards, config.run.algo)
    if learns_here:
        check_network(spec)
        _check_batches(config, layout)
    beside = first_beside(config, spec)
    task = Task(
        config.env,
        spec,
        layout,
        config.run.seed,
        config.collect.random_lanes,
        cores,
        tuple((name, len(array)) for name, array in beside.items()),
    )
    if cores is not None and learns_here:
        _check_room(config, task)
    return Plan(config, algorithm, spaces, task, solved_at, callable_env)


def check_network(spec: NetSpec) -> None:
    """Refuses a network that this machine's memory cannot hold, before any of it is made."""
    what = f"a network of {spec.size:,} numbers"
    _check_size(what, weights_nbytes(spec.size, spec.statistics) * COPIES_OF_WEIGHTS, "net.hidden")


def _check_batches(config: Config, layout: Layout) -> None:
    what = f"batches of {config.collect.batch:,} steps"
    wanted = config.collect.shards * layout.dense_nbytes * COPIES_OF_BATCHES
    _check_size(what, wanted, "collect.lanes or collect.steps")


def _check_size(what: str, wanted: int, setting: str) -> None:
    room = free_memory()
    if wanted > RESERVE * room:
        raise UsageError(
            f"{what} would take {wanted / 1e9:.1f} GB, and {room / 1e9:.1f} GB are free; "
            f"make {setting} smaller"
        )


def _check_room(config: Config, task: Task) -> None:
    wanted, room = SharedMemory.size(task), free_memory()
    if wanted > RESERVE * room:
        raise UsageError(
            f"the cores of {config.run.algo} would share {wanted / 1e9:.1f} GB, and {room / 1e9:.1f} GB are "
            f"free; make {config.algorithm.largest} smaller"
        )
