"""A trained agent, as a library user wants it: load it, ask it for actions, judge it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.collect.episodes import EpisodePlayer
from manyhands.collect.policy import Policy, open_policy
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, UsageError
from manyhands.core.spaces import ObsSpec
from manyhands.envs import make as envs
from manyhands.envs.codec import Encoder, decoder, encoder, split_batch
from manyhands.envs.describe import describe
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.own_code import explained
from manyhands.runs.scores import Scores
from manyhands.runs.store import Run

JUDGED_SEED = 1_000_000
"""The seed of the episodes that judge an agent, unless another is asked for; far from those of training."""


@dataclass(frozen=True)
class Agent:
    """Acts on the environment's own observations and answers with its own kind of actions."""

    policy: Policy
    action: ActionSpec
    encode: Encoder
    decode: Any
    obs: ObsSpec
    noise: np.random.Generator
    space: spaces.Space[Any]  # of the observations

    def act(self, obs: Any, sample: bool = False) -> Any:
        """Return the best action for one observation, or for each of a batch of them as an array.

        A batch has one more axis in front than the observation space (a Dict of such arrays for a Dict), or
        is a list of observations. `sample` draws from the policy instead; some agents always play by chance.
        """
        rows, batch = self._rows(obs)
        outputs = self.policy.outputs(rows)
        noise_scale = self.action.noise_scale(sample)
        noise = noise_scale * self.action.noise(self.noise, len(rows)) if noise_scale else None
        actions = self.decode(self.policy.choose(outputs, noise))
        return np.array(actions) if batch else actions[0]

    def values(self, obs: Any) -> Array:
        """Return what each action is worth, in one observation or in each of a batch of them.

        For agents that learned that (dqn, apex).
        """
        if self.action.kind != "values":
            raise UsageError("this agent learned which actions to prefer, not what they are worth")
        rows, batch = self._rows(obs)
        worth: Array = self.action.values(self.policy.outputs(rows)["policy"])
        return worth if batch else worth[0]

    def _rows(self, obs: Any) -> tuple[Array, bool]:
        """Return observations as they are stored, [N, ...], and whether it was a batch."""
        one_list = isinstance(self.space, spaces.Box) and isinstance(obs, list | tuple)
        if one_list and _shape(obs) == self.space.shape:
            obs = np.asarray(obs, self.space.dtype)
        batch = split_batch(self.space, obs)
        each = [obs] if batch is None else batch
        rows = np.zeros((len(each), *self.obs.shape), self.obs.dtype)
        try:
            for one, row in zip(each, rows, strict=True):
                self.encode(one, row)
        except EnvError:
            is_array = isinstance(obs, np.ndarray)
            given = f"an array of shape {obs.shape} and dtype {obs.dtype}" if is_array else f"{obs!r:.100}"
            allowed = f"one observation of {self.space}, or a batch of them"
            raise UsageError(f"an agent acts on {allowed}; this is {given}") from None
        if not len(rows):
            raise UsageError("an agent cannot act on a batch of no observations")
        return rows, batch is not None


def _shape(obs: Any) -> tuple[int, ...]:
    """Return the shape of nested lists; () where they have none."""
    try:
        return np.shape(obs)
    except ValueError:  # their items differ in length
        return ()


def load(run: Run, which: str | None = None, callable_env: envs.MakeEnv | None = None) -> Agent:
    checkpoint, config = run.checkpoint(which), run.config().env
    with explained(run):
        env = envs.make(config, callable_env)
    try:
        return from_checkpoint(checkpoint, env, config.id)
    finally:
        envs.close(env)


def from_checkpoint(checkpoint: Checkpoint, env: envs.Env, name: str) -> Agent:
    """Return an agent for `env`, which is called `name` and must have the spaces of its training."""
    found = describe(env)
    if found.obs.shape != checkpoint.spec.input_shape or not checkpoint.action.fits(found.action):
        raise EnvError(f"{name} has other spaces now than when the agent was trained")
    policy = open_policy(checkpoint.spec, checkpoint.action)
    policy.load(checkpoint.weights)
    return Agent(
        policy,
        checkpoint.action,
        encoder(env.observation_space, found.obs),
        decoder(env.action_space, checkpoint.action),
        found.obs,
        np.random.default_rng(),
        env.observation_space,
    )


def judge(
    run: Run,
    episodes: int,
    seed: int = JUDGED_SEED,
    sample: bool = False,
    which: str | None = None,
    callable_env: envs.MakeEnv | None = None,
) -> Scores:
    """Play whole episodes with the run's agent."""
    if episodes < 1:
        raise UsageError(f"{episodes} episodes judge nothing; give 1 or more")
    checkpoint: Checkpoint = run.checkpoint(which)
    with explained(run):
        player = EpisodePlayer(run.config().env, checkpoint.spec, checkpoint.action, callable_env)
    try:
        found = player.play(checkpoint.weights, episodes, seed, sample)
        return Scores(found.returns, found.lengths, goal(run, callable_env))
    finally:
        player.close()


def goal(run: Run, callable_env: envs.MakeEnv | None = None) -> float | None:
    """Return the mean return at which the run's environment counts as solved, where there is one."""
    config = run.config()
    if config.run.solved_at is not None:
        return config.run.solved_at
    with explained(run):
        env = envs.make(config.env, callable_env)
    try:
        return describe(env).threshold
    finally:
        envs.close(env)
