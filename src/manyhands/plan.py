"""What a run will be, from its settings and its environment, checked before anything starts."""

from dataclasses import asdict, dataclass, replace

from manyhands.algos.configs import A3cConfig, AdqnConfig, DqnConfig, HogwildConfig
from manyhands.algos.replay import check_memory
from manyhands.algos.room import RESERVE, free_memory
from manyhands.collect.hogwild import SharedMemory
from manyhands.collect.streams import INIT, mix
from manyhands.config import Config
from manyhands.envs import make as envs
from manyhands.errors import UsageError
from manyhands.experience import LIFE_LOST, Layout
from manyhands.nets.build import actor_critic, q_network
from manyhands.orders import Hogwild, Task
from manyhands.policy import ActionSpec, NetSpec, Weights

COPIES_OF_WEIGHTS = 8
"""Of a network in memory: weights, gradients, an optimizer's two, and the versions that are kept."""
COPIES_OF_BATCHES = 3
"""Of a batch in memory: one is learned from, the next is made, and the learner joins their parts."""


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


def plan(config: Config, callable_env: envs.MakeEnv | None = None, learns_here: bool = True) -> Plan:
    """A run that `learns_here` must find room in this machine's memory; a parent's children are elsewhere.

    Whoever holds the network all the same calls `check_network`.
    """
    env = envs.make(config.env, callable_env)
    try:
        found = envs.describe(env)
    finally:
        envs.close(env)
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
        check_memory(config.algo, layout, config.collect.shards, learns_here)
        spec = q_network(config.net, spaces, config.collect.shards * config.collect.lanes)
    elif isinstance(config.algo, AdqnConfig):
        spec = q_network(config.net, spaces, 1)
    else:
        spec = actor_critic(config.net, spaces)
    hogwild = None
    if isinstance(config.algo, HogwildConfig):
        hogwild = Hogwild(config.collect.shards, config.run.algo, asdict(config.algo))
    if learns_here:
        check_network(spec)
        _check_batches(config, layout)
    task = Task(config.env, spec, layout, config.run.seed, config.collect.random_lanes, hogwild)
    if hogwild is not None:
        _check_hogwild(config, spaces)
        if learns_here:
            _check_room(config, task)
    return Plan(config, spaces, task, solved_at, callable_env)


def check_network(spec: NetSpec) -> None:
    """Refuses a network that this machine's memory cannot hold, before any of it is made."""
    what = f"a network of {spec.size:,} numbers"
    _check_size(what, 4 * spec.size * COPIES_OF_WEIGHTS, "net.hidden")


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


def _check_hogwild(config: Config, spaces: envs.Spaces) -> None:
    name = config.run.algo
    if spaces.obs.image:
        raise UsageError(f"{name} learns with dense networks, and {config.env.id} shows pictures")
    if config.net.normalise or config.net.state_std:
        raise UsageError(f"{name} knows neither net.normalise nor net.state_std; leave them out")


def _check_room(config: Config, task: Task) -> None:
    wanted, room = SharedMemory.size(task), free_memory()
    if wanted > RESERVE * room:
        largest = "algo.memory (steps of each core)" if isinstance(config.algo, AdqnConfig) else "net.hidden"
        raise UsageError(
            f"the cores of {config.run.algo} would share {wanted / 1e9:.1f} GB, and {room / 1e9:.1f} GB are "
            f"free; make {largest} smaller"
        )


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
    if isinstance(config.algo, A3cConfig):
        space = replace(space, temperature=config.algo.temperature)
    if space.kind == "gaussian":
        return replace(space, squash=config.net.squash, state_std=config.net.state_std)
    return space
