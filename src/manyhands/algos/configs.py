"""The settings of every algorithm. Without torch, so that a command line reads them at once."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from manyhands.checks import not_negative, positive, require, unit


@dataclass(frozen=True)
class AlgoConfig:
    """What the on-policy algorithms share."""

    columns: ClassVar[tuple[str, ...]] = ()
    """What the actors must note down beside the usual."""

    learning_rate: float = 3e-4
    gamma: float = 0.99
    """Discount of future rewards."""
    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value estimate (Schulman et al. 2016)."""
    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    rank_advantage: bool = False
    """Let only the order of a batch's advantages count, not their sizes; ppo and reinforce. For rewards whose
    few largest would drown the rest."""
    anneal: bool = False
    """Let the learning rate fall to 0 over `run.steps`, or a parent's exchanges, as (1 - t)^anneal_power."""
    anneal_power: float = 1.0
    log_std_end: float | None = None
    """Let a gaussian policy's log standard deviation go to this in a straight line over `run.steps`, instead
    of learning it (what depends on the state is learned all the same)."""
    threads: int = 1
    """Of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "anneal_power")
        not_negative(self, "algo", "entropy", "value_weight", "reward_clip")
        unit(self, "algo", "gamma", "gae_lambda")


@dataclass(frozen=True)
class PpoConfig(AlgoConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    columns = ("logp",)

    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 256
    clip: float = 0.2
    """How far the probability of an action may move in one batch."""
    target_kl: float = 0.0
    """Stop the epochs once the policy has moved this far; 0 never stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "epochs", "minibatch", "clip")
        not_negative(self, "algo", "target_kl")


@dataclass(frozen=True)
class A2cConfig(AlgoConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step along the gradient of each short batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 7e-4
    gae_lambda: float = 1.0
    normalise_advantage: bool = False


@dataclass(frozen=True)
class ReinforceConfig(AlgoConfig):
    """REINFORCE with a baseline (Williams 1992): returns to the episode's end, one policy step a batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 1e-3
    gae_lambda: float = 1.0
    baseline_epochs: int = 4
    """Passes of the value network over each batch; the policy takes one."""
    minibatch: int = 512
    normalise_advantage: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "baseline_epochs", "minibatch")


@dataclass(frozen=True)
class ImpalaConfig(AlgoConfig):
    """IMPALA (Espeholt et al. 2018): actor-critic that corrects for old weights by V-trace."""

    columns = ("logp",)

    learning_rate: float = 6e-4
    entropy: float = 0.01
    gae_lambda: float = 1.0
    """V-trace's lambda."""
    rho_clip: float = 1.0
    c_clip: float = 1.0
    minibatches: int = 4
    """Steps along the gradient per batch, each on a part of the lanes."""
    normalise_advantage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "rho_clip", "c_clip", "minibatches")


@dataclass(frozen=True)
class CloneConfig(AlgoConfig):
    """Supervised learning of chosen actions: cross-entropy on pairs of observation and action."""

    choose: Literal[
        "advantage", "elite", "threshold", "published-1", "published-2", "published-3", "published-4"
    ] = "advantage"
    """advantage: every action by exp(its advantage / temperature). elite: the best episodes of late.
    threshold: episodes by keep and clean, with four presets as published for LunarLander."""
    temperature: float = 1.0
    """advantage: how sharply good actions are preferred, in deviations of the advantage."""
    weight_limit: float = 20.0
    """advantage: no action counts more than this (Peng et al. 2019 use 20)."""
    share: float = 0.1
    """elite: the part of recent episodes that is imitated."""
    window: int = 1000
    """elite: how many episodes are recent."""
    keep: float = 0.0
    """threshold: episodes with a score above this are taken whole."""
    clean: float | None = None
    """threshold: those above this are cleaned of actions with little reward; none are by default."""
    clean_level: float = 0.4
    """threshold: what little is, on a scale of 0 to 1. elite: the same for what followed an action, with
    discount gamma, so that a good episode does not teach its own end."""
    memory: int = 1_000_000
    """elite and threshold: pairs of observation and action that are held; the oldest go first."""
    epochs: int = 4
    minibatch: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "temperature", "share", "window", "memory", "epochs", "minibatch")
        unit(self, "algo", "share", "clean_level")
        require(self.weight_limit >= 1, "algo.weight_limit", self.weight_limit, "1 or more")


@dataclass(frozen=True)
class DqnConfig:
    """Deep Q-learning (Mnih et al. 2015), with the improvements that followed as switches."""

    columns: ClassVar[tuple[str, ...]] = ("q_taken", "q_max")
    """Q of the action and of the best one, as the actor saw them: from these come first priorities."""

    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    """Discount of future rewards."""
    max_grad_norm: float = 1.0
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    double: bool = False
    """The online network chooses the next action, the target network judges it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Q = V + A - mean A (Wang et al. 2016)."""
    n_step: int = 1
    """Rewards that are added up before the value estimate is trusted."""
    prioritised: bool = False
    """Replay more often what surprised more (Schaul et al. 2016)."""
    priority_power: float = 0.6
    """0 replays all alike, 1 in proportion to the error."""
    importance: float = 0.4
    """How far uneven replay is corrected for at first; wholly at `run.steps`."""
    memory: int = 100_000
    """Transitions that are held; the oldest go first."""
    memory_on_disk: bool = False
    """Hold the observations in a file beside the run instead of in memory; for more than memory can hold."""
    save_memory: bool = True
    """Save the transitions with the run, so that a resume is exact. Without, it fills the memory anew."""
    batch: int = 32
    steps_per_update: float = 4.0
    """Environment steps for one step of the optimizer, held exactly whatever the number of actors."""
    warmup: int = 1000
    """Environment steps, played at random, before learning begins."""
    target_every: int = 1000
    """Environment steps after which the target network becomes a copy of the online one."""
    epsilon: float = 0.1
    """Share of random actions in the end."""
    epsilon_steps: int = 100_000
    """Environment steps after the warm-up in which the share falls from 1 to `epsilon`."""
    epsilon_ladder: float = 0.0
    """Lane i of N explores with epsilon^(1 + ladder i / (N - 1)) (Horgan et al. 2018 use 7)."""
    epsilon_test: float = 0.0
    """Share of random actions when the agent is judged; some games never end without."""
    threads: int = 1
    """Of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "n_step")
        positive(self, "algo", "memory", "batch", "steps_per_update", "target_every")
        not_negative(self, "algo", "reward_clip", "warmup", "epsilon_steps", "epsilon_ladder")
        unit(self, "algo", "gamma", "priority_power", "importance", "epsilon", "epsilon_test")
        require(self.n_step <= 100, "algo.n_step", self.n_step, "at most 100")
        require(self.warmup >= self.batch, "algo.warmup", self.warmup, f"at least algo.batch, {self.batch}")
        require(self.memory >= self.batch, "algo.memory", self.memory, f"at least algo.batch, {self.batch}")


@dataclass(frozen=True)
class ApexConfig(DqnConfig):
    """Ape-X (Horgan et al. 2018): every switch of `dqn`, and lanes that explore to different degrees."""

    double: bool = True
    dueling: bool = True
    n_step: int = 3
    prioritised: bool = True
    epsilon: float = 0.4
    epsilon_steps: int = 10_000
    epsilon_ladder: float = 7.0


@dataclass(frozen=True)
class HogwildConfig:
    """What processes share that learn together on one vector without a lock (Niu et al. 2011)."""

    columns: ClassVar[tuple[str, ...]] = ()
    """They learn where they play, so nothing is noted down."""

    optimizer: Literal["sgd", "rmsprop", "adam"] = "sgd"
    """Its numbers are shared like the weights."""
    learning_rate: float = 1e-4
    momentum: float = 0.9
    """sgd only."""
    weight_decay: float = 0.0
    """This part of every weight is added to its gradient."""
    gamma: float = 0.99
    """Discount of future rewards."""
    max_grad_norm: float = 0.0
    """Gradients are shortened to this length; 0 never shortens."""
    max_update: float = 0.0
    """rmsprop and adam: a step's root mean square over the learning rate, at most; 0 is no limit."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning."""
    batch: int = 120
    """Steps of a core, or drawn transitions, for one step of the optimizer."""
    epsilon: float = 0.01
    """Share of random actions."""
    anneal: bool = False
    """Let the learning rate fall to 0 towards the run's end, or the parent's."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "reward_scale", "batch")
        not_negative(self, "algo", "weight_decay", "max_grad_norm", "max_update")
        unit(self, "algo", "gamma", "epsilon", "momentum")


@dataclass(frozen=True)
class A3cConfig(HogwildConfig):
    """Asynchronous advantage actor-critic (Mnih et al. 2016), with a barrier round every episode."""

    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 1.0
    average: bool = False
    """Gradients are means over the steps of a batch, not sums."""
    gae_lambda: float = 1.0
    """Trust in returns (1) against values (0), which vary less but may be wrong (Schulman et al. 2016)."""
    limit_ends: bool = False
    """Nothing is expected after an episode that a time limit has cut, as if it had ended by itself; so
    nothing is gained by waiting for the limit."""
    temperature: float = 0.0
    """How agents are judged: by their likeliest actions (0), as they learned (1), or between the two, by
    sampling from their policy sharpened, its logits divided by this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "algo", "entropy", "value_weight")
        unit(self, "algo", "gae_lambda", "temperature")


MARGIN = 256
"""Of a core's full share of a memory, the oldest rows, which are not drawn: they may be overwritten while
they are read."""


@dataclass(frozen=True)
class AdqnConfig(HogwildConfig):
    """Deep Q-learning by cores that share a network and a replay memory."""

    optimizer: Literal["sgd", "rmsprop", "adam"] = "adam"
    learning_rate: float = 5e-4
    batch: int = 64
    max_grad_norm: float = 10.0
    epsilon: float = 0.05
    epsilon_steps: int = 10_000
    """A core's steps in which the share of random actions falls from 1 to `epsilon`."""
    memory: int = 50_000
    """Transitions that each core's share of the memory holds."""
    replacement: bool = True
    """Whether one transition may be drawn twice for a batch."""
    steps_per_update: int = 2
    """A core's steps for one step of the optimizer."""
    warmup: int = 2000
    """Transitions of all cores before learning begins."""
    target_every: int = 500
    """A core's steps after which its target network becomes a copy of the shared one."""
    double: bool = True
    """The online network chooses the next action, the target network judges it (van Hasselt et al. 2016)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "memory", "steps_per_update", "target_every")
        not_negative(self, "algo", "epsilon_steps")
        require(self.warmup >= self.batch, "algo.warmup", self.warmup, f"at least algo.batch, {self.batch}")
        least = self.warmup + MARGIN
        require(self.memory >= least, "algo.memory", self.memory, f"at least {least}, for algo.warmup")


ALGORITHMS: dict[str, type[AlgoConfig] | type[DqnConfig] | type[HogwildConfig]] = {
    "ppo": PpoConfig,
    "a2c": A2cConfig,
    "reinforce": ReinforceConfig,
    "impala": ImpalaConfig,
    "clone": CloneConfig,
    "dqn": DqnConfig,
    "apex": ApexConfig,
    "a3c": A3cConfig,
    "adqn": AdqnConfig,
}
ANYWHERE = tuple(name for name, config in ALGORITHMS.items() if not issubclass(config, HogwildConfig))
"""Those that do not care where their data is made; the others learn on the cores of one machine."""
