"""Deep Q-learning: its arithmetic, its ratio of updates to steps, and a memory that survives a resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import random_trajectory
from torch.nn import functional

from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.dqn import Dqn, DqnConfig
from manyhands.algos.q_learner import QLearner, epsilons, outputs_grad
from manyhands.algos.replay_rows import row_counts
from manyhands.config import algorithms
from manyhands.core.actions import ActionSpec
from manyhands.core.errors import RunError, UsageError
from manyhands.core.horizon import Horizon
from manyhands.core.networks import Dense, Head, NetSpec
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.nets.numpy_net import NumpyNet
from manyhands.runs.journal import Journal

SHARDS, LANES, STEPS = 2, 3, 8
NAMES = ("dqn", "apex")


def action_of(config: DqnConfig) -> ActionSpec:
    return ActionSpec("values", (3,), dueling=config.dueling)


def layout_of(config: DqnConfig) -> Layout:
    return Layout(STEPS, LANES, (4,), "<f4", action_of(config), Dqn.columns)


def make(name: str = "dqn", **settings: Any) -> QLearner:
    kind = algorithms.find(name)
    config = kind.config(**{"batch": 16, "warmup": 64, "memory": 300, "target_every": 40, **settings})
    heads = (Head("policy", action_of(config).outputs),)
    spec = NetSpec((4,), heads, (Dense(5, "relu"),), normalise=True)
    algorithm = kind(config)
    beside = {**spec.initial_statistics(), **algorithm.beside(SHARDS * LANES)}
    weights = Weights(0, spec.initial_vector(1), spec.schema, beside)
    setup = LearnerSetup(spec, layout_of(config), SHARDS, weights, seed=3, horizon=Horizon(2000))
    made = algorithm.learner(setup)
    assert isinstance(made, QLearner)
    return made


class Experience:
    """Rollouts of both shards, one after the other, whose episodes follow one another."""

    def __init__(self, config: DqnConfig) -> None:
        self.layout = layout_of(config)
        self.made: list[list[Trajectory]] = []

    def __getitem__(self, number: int) -> list[Trajectory]:
        while len(self.made) <= number:
            rollout = []
            for shard in range(SHARDS):
                before = self.made[-1][shard].episode if self.made else np.zeros(LANES, np.int64)
                number = len(self.made)
                made = random_trajectory(self.layout, 100 * number + shard, number, before)
                rollout.append(_of_shard(made, shard))
            self.made.append(rollout)
        return self.made[number]


def _of_shard(trajectory: Trajectory, shard: int) -> Trajectory:
    fields = {name: getattr(trajectory, name) for name in trajectory.__dataclass_fields__}
    return Trajectory(**{**fields, "shard": shard})


@pytest.mark.parametrize("dueling", [False, True])
def test_the_gradient_of_the_outputs_is_autograds(dueling: bool) -> None:
    torch.manual_seed(0)
    spec = ActionSpec("values", (3,), dueling=dueling)
    outputs = (3 * torch.randn(20, spec.outputs)).requires_grad_()
    action, goal, weight = torch.randint(0, 3, (20,)), torch.randn(20), torch.rand(20)
    q = spec.values(outputs).gather(1, action[:, None])[:, 0]
    (weight * functional.huber_loss(q, goal, reduction="none")).mean().backward()
    algorithm = Dqn(DqnConfig())
    assert torch.allclose(
        algorithm.loss(q, goal, weight), (weight * functional.huber_loss(q, goal, reduction="none")).mean()
    )
    gradient = algorithm.loss_grad(q.detach(), goal, weight)
    assert gradient is not None
    by_hand = outputs_grad(spec, action, gradient)
    assert torch.allclose(outputs.grad, by_hand, atol=1e-7)


def test_a_loss_without_a_formula_is_differentiated_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = []
    for formula in (True, False):
        agent = make()
        if not formula:
            monkeypatch.setattr(Dqn, "loss_grad", lambda *_: None)
        experience = Experience(agent.config)
        for number in range(8):
            agent.learn(experience[number])
        vectors.append(agent.net.vector())
        assert agent.updates > 0
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_the_goal_is_that_of_the_papers(double: bool) -> None:
    agent, experience = make(double=double, n_step=2), Experience(make(n_step=2).config)
    for number in range(8):
        agent.learn(experience[number])
    assert not np.array_equal(agent.net.vector(), agent.target.vector())
    drawn = agent.replay.draw(np.random.default_rng(0), 16)
    online, target = NumpyNet(agent.spec), NumpyNet(agent.spec)
    online.load(agent.net.vector(), agent.net.beside())
    target.load(agent.target.vector(), agent.target.beside())
    judged = target.forward(drawn.next_obs, "policy").copy()
    chosen = (online.forward(drawn.next_obs, "policy") if double else judged).argmax(1)
    expected = drawn.reward + drawn.discount * judged[np.arange(16), chosen]
    assert np.allclose(agent._td_target(drawn).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_learning_moves_the_weights_and_reports_numbers(name: str) -> None:
    agent = make(name)
    before, experience = agent.weights(), Experience(agent.config)
    for number in range(4):
        metrics = agent.learn(experience[number])
    assert agent.weights().version == 4
    assert not np.array_equal(before.vector[:20], agent.weights().vector[:20])
    assert np.isfinite(agent.weights().vector).all()
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())
    assert {"loss", "q_mean", "epsilon", "updates", "remembered"} <= set(metrics)


@pytest.mark.parametrize("per_update", [0.5, 4.0, 7.3])
def test_the_ratio_of_updates_to_steps_is_held_exactly(per_update: float) -> None:
    agent = make(steps_per_update=per_update)
    experience = Experience(agent.config)
    for number in range(6):
        agent.learn(experience[number])
        played = (number + 1) * SHARDS * LANES * STEPS
        assert agent.updates == max(0, int((played - 64) / per_update))


def test_exploration_falls_after_the_warm_up_and_lanes_form_a_ladder() -> None:
    config = DqnConfig(warmup=100, epsilon=0.4, epsilon_steps=100, epsilon_ladder=7)
    assert (epsilons(config, 99, 4) == 1).all()
    assert epsilons(config, 150, 4)[0] == pytest.approx(0.7)
    assert epsilons(config, 999, 4) == pytest.approx([0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8])


def save(agent: QLearner, journal: Journal) -> None:
    piece = agent.replay_chunk()
    assert piece is not None
    journal.append(piece)


@pytest.mark.parametrize("every", [1, 3, 20], ids=["often", "now and then", "when much is forgotten already"])
@pytest.mark.parametrize("name", NAMES)
def test_a_resume_with_its_journal_goes_on_to_the_same_weights(name: str, every: int, tmp_path: Path) -> None:
    whole, resumed = make(name), make(name)
    experience = Experience(whole.config)
    journal = Journal(tmp_path / "memory", layout_of(whole.config), whole.spec.schema)
    for number in range(40):  # the memory of 300 is overwritten several times
        whole.learn(experience[number])
        if (number + 1) % every == 0 or number == 39:
            save(whole, journal)
            journal.forget(whole.oldest_needed())
    state, version = {key: array.copy() for key, array in whole.state().items()}, whole.weights().version
    assert len(list((tmp_path / "memory").iterdir())) < 12  # the forgotten ones are gone
    killed = make(name)
    killed.load_state(version, state)
    killed.restore_replay(journal.read(until=killed.chunks))
    for number in range(40, 60):
        killed.learn(experience[number])
    save(killed, journal)  # by a process that died before its checkpoint
    resumed.load_state(version, state)
    resumed.restore_replay(journal.read(until=resumed.chunks))
    for net in (resumed.net, resumed.target):
        assert all(np.array_equal(net.beside()[name], array) for name, array in whole.net.beside().items())
    assert np.array_equal(whole.replay.ahead, resumed.replay.ahead)
    places = np.flatnonzero(whole.replay.ahead)
    for column in ("obs", "action", "reward", "discount", "age"):
        assert np.array_equal(getattr(whole.replay, column)[places], getattr(resumed.replay, column)[places])
    assert not resumed.unsaved
    for number in range(40, 44):
        assert whole.learn(experience[number]) == resumed.learn(experience[number])
    assert np.array_equal(whole.weights().vector, resumed.weights().vector)


def test_what_is_forgotten_before_it_was_saved_is_not_kept() -> None:
    agent = make()
    experience = Experience(agent.config)
    for number in range(60):
        agent.learn(experience[number])
    assert 300 <= sum(row_counts(trajectory).sum() for trajectory in agent.unsaved) < 800


def test_a_piece_that_is_missing_is_named(tmp_path: Path) -> None:
    agent = make()
    experience = Experience(agent.config)
    journal = Journal(tmp_path / "memory", layout_of(agent.config), agent.spec.schema)
    for number in range(4):
        agent.learn(experience[number])
        save(agent, journal)
    for missing in (3, 1):
        (tmp_path / "memory" / f"{missing:09d}.memory").unlink()
        resumed = make()
        resumed.load_state(4, agent.state())
        with pytest.raises(RunError, match=f"piece {missing} of the saved memory is missing"):
            resumed.restore_replay(journal.read(until=resumed.chunks))


def test_without_its_memory_a_resume_fills_it_anew_before_it_learns() -> None:
    whole, resumed = make(save_memory=False), make(save_memory=False)
    experience = Experience(whole.config)
    for number in range(6):
        whole.learn(experience[number])
    assert whole.replay_chunk() is None
    resumed.load_state(6, whole.state())
    resumed.restore_replay([])
    before = resumed.updates
    resumed.learn(experience[6])
    assert resumed.updates == before  # 48 steps are less than the warm-up of 64
    resumed.learn(experience[7])
    assert resumed.updates == before + int((96 - 64) / 4)


@pytest.mark.parametrize("damage", ["cut", "length", "bytes"])
def test_a_damaged_journal_is_named(tmp_path: Path, damage: str) -> None:
    agent = make()
    agent.learn(Experience(agent.config)[0])
    journal = Journal(tmp_path / "memory", layout_of(agent.config), agent.spec.schema)
    save(agent, journal)
    path = next((tmp_path / "memory").iterdir())
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        del raw[-50:]
    elif damage == "length":
        raw[6] = 1
    else:
        raw[-60] ^= 255
    path.write_bytes(raw)
    (path.parent / "notes.memory").write_text("not ours")
    with pytest.raises(RunError, match=r"is damaged .* fills its memory anew"):
        list(journal.read(1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"warmup": 3}, "at least algo.batch"),
        ({"n_step": 0}, "greater than 0"),
        ({"epsilon": 1.5}, "between 0 and 1"),
        ({"steps_per_update": 0.0}, "greater than 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(**settings)
