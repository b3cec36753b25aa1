"""A trained agent, as a library user wants it: load it, ask it for actions, judge it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.collect.episodes import EpisodePlayer
from manyhands.collect.policy import Policy, open_policy
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, UsageError
from manyhands.core.evaluation import Evaluation
from manyhands.core.spaces import ObsSpec
from manyhands.envs import make as envs
from manyhands.envs.codec import Encoder, decoder, encoder
from manyhands.envs.describe import describe
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.store import Run

JUDGED_SEED = 1_000_000
"""Of the episodes that judge an agent, unless another is asked for; far from those of training."""


@dataclass(frozen=True)
class Agent:
    """Acts on the environment's own observations and answers with its own kind of actions."""

    policy: Policy
    action: ActionSpec
    encode: Encoder
    decode: Any
    obs: ObsSpec
    noise: np.random.Generator

    def act(self, obs: Any, sample: bool = False) -> Any:
        """The best action for one observation, or a sampled one; some agents are meant to play by chance."""
        row = self._row(obs)
        outputs = self.policy.outputs(row)
        noise_scale = self.action.noise_scale(sample)
        noise = noise_scale * self.action.noise(self.noise, 1) if noise_scale else None
        return self.decode(self.policy.choose(outputs, noise))[0]

    def values(self, obs: Any) -> Array:
        """What each action is worth in one observation; for agents that learned that (dqn, apex)."""
        if self.action.kind != "values":
            raise UsageError("this agent learned which actions to prefer, not what they are worth")
        worth: Array = self.action.values(self.policy.outputs(self._row(obs))["policy"])[0]
        return worth

    def _row(self, obs: Any) -> Array:
        row = np.zeros((1, *self.obs.shape), self.obs.dtype)
        self.encode(obs, row[0])
        return row


def load(run: Run, which: str | None = None, callable_env: envs.MakeEnv | None = None) -> Agent:
    checkpoint, config = run.checkpoint(which), run.config().env
    env = envs.make(config, callable_env)
    try:
        return from_checkpoint(checkpoint, env, config.id)
    finally:
        envs.close(env)


def from_checkpoint(checkpoint: Checkpoint, env: envs.Env, name: str) -> Agent:
    """An agent for `env`, which is called `name` and must have the spaces that it was trained with."""
    spaces = describe(env)
    if spaces.obs.shape != checkpoint.spec.input_shape or not checkpoint.action.fits(spaces.action):
        raise EnvError(f"{name} has other spaces now than when the agent was trained")
    policy = open_policy(checkpoint.spec, checkpoint.action)
    policy.load(checkpoint.weights)
    return Agent(
        policy,
        checkpoint.action,
        encoder(env.observation_space, spaces.obs),
        decoder(env.action_space, checkpoint.action),
        spaces.obs,
        np.random.default_rng(),
    )


def judge(
    run: Run,
    episodes: int,
    seed: int = JUDGED_SEED,
    sample: bool = False,
    which: str | None = None,
    callable_env: envs.MakeEnv | None = None,
) -> tuple[Evaluation, float | None]:
    """Whole episodes with the run's agent, and the mean at which its environment counts as solved."""
    checkpoint: Checkpoint = run.checkpoint(which)
    player = EpisodePlayer(run.config().env, checkpoint.spec, checkpoint.action, callable_env)
    try:
        return player.play(checkpoint.weights, episodes, seed, sample), goal(run, callable_env)
    finally:
        player.close()


def goal(run: Run, callable_env: envs.MakeEnv | None = None) -> float | None:
    """The mean return at which the run's environment counts as solved, where there is one."""
    config = run.config()
    if config.run.solved_at is not None:
        return config.run.solved_at
    env = envs.make(config.env, callable_env)
    try:
        return describe(env).threshold
    finally:
        envs.close(env)
