"""Losses as in the papers, differentiated by autograd, against the formulas that learners use instead."""

from typing import Any

import numpy as np
import pytest
import torch
from samples import DISCRETE, GAUSSIAN, MULTI, small_spec

from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.on_policy import Minibatch, OnPolicy
from manyhands.algos.on_policy_learner import OnPolicyLearner
from manyhands.config import algorithms
from manyhands.core.actions import ActionSpec
from manyhands.core.horizon import Horizon
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Weights

ON_POLICY = [name for name in algorithms.BUILT_IN if issubclass(algorithms.find(name), OnPolicy)]
ROWS = 200


def learner(name: str, action: ActionSpec, formula: bool) -> OnPolicyLearner:
    spec = small_spec(4, action)
    weights = Weights(0, np.random.default_rng(3).normal(0, 0.5, spec.size).astype(np.float32), spec.schema)
    setup = LearnerSetup(spec, Layout(8, 3, (4,), "<f4", action, ()), 2, weights, 3, Horizon(99))
    kind = algorithms.find(name)
    algorithm = kind(kind.config(entropy=0.03))
    if not formula:
        algorithm.policy_loss_grad = lambda logp, batch: None
    made = algorithm.learner(setup)
    assert isinstance(made, OnPolicyLearner)
    made.optimizer.step = lambda rate: None  # type: ignore[method-assign]
    return made


def minibatch(made: OnPolicyLearner, action: ActionSpec, target: bool) -> Minibatch:
    torch.manual_seed(5)
    obs = torch.randn(ROWS, 4)
    if action.kind == "gaussian":
        taken = torch.randn(ROWS, action.sizes[0])
    else:
        taken = torch.stack([torch.randint(size, (ROWS,)) for size in action.sizes], -1)
        taken = taken[:, 0] if len(action.sizes) == 1 else taken
    old = made.log_prob(obs, taken).clone() + 0.3 * torch.randn(ROWS)
    targets = torch.randn(ROWS) if target else None
    return Minibatch(obs, taken, torch.randn(ROWS), targets, {"logp": old}, action)


@pytest.mark.parametrize("target", [True, False], ids=["with values", "policy alone"])
@pytest.mark.parametrize("action", [DISCRETE, MULTI, GAUSSIAN], ids=["discrete", "multi", "gaussian"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_a_formula_gives_the_gradient_of_the_loss(name: str, action: ActionSpec, target: bool) -> None:
    gradients, seen = [], []
    for formula in (True, False):
        made = learner(name, action, formula)
        seen.append(made.update(minibatch(made, action, target)).metrics())
        gradients.append(made.net.gradient.clone())
    assert gradients[0].abs().max() > 1e-4
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    assert seen[0] == pytest.approx(seen[1])


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_what_a_run_logs_of_a_step_is_what_the_papers_call_so(name: str) -> None:
    made = learner(name, DISCRETE, True)
    batch = minibatch(made, DISCRETE, True)
    found = made.measured(made.update(batch), batch)
    logp = made.log_prob(batch.obs, batch.action).tolist()  # the optimizer moves nothing here
    before = batch.columns["logp"].tolist()
    terms = []
    for new, old, advantage in zip(logp, before, batch.advantage.tolist(), strict=True):
        ratio = float(np.exp(new - old))
        clipped = min(max(ratio, 0.8), 1.2)
        terms.append(min(ratio * advantage, clipped * advantage) if name == "ppo" else new * advantage)
    assert found["policy_loss"] == pytest.approx(-np.mean(terms), rel=1e-4)
    assert found["gradient_norm"] == pytest.approx(float(made.net.gradient.norm()), rel=1e-5)
    assert found["gradient_norm"] > 0
    assert found["learning_rate"] == made.common.learning_rate
    assert {"value_loss", "entropy"} <= set(found)


def test_an_algorithm_with_a_loss_of_its_own_has_no_part_that_is_called_the_policys() -> None:
    kind = algorithms.find("a2c")

    class Whole(kind):  # type: ignore[misc, valid-type]
        def loss(self, outputs: Any, batch: Minibatch) -> Any:
            return batch.distribution(outputs).entropy().mean()

    made = learner("a2c", DISCRETE, False)
    made.algorithm = Whole(made.common)
    batch = minibatch(made, DISCRETE, True)
    assert "policy_loss" not in made.measured(made.update(batch), batch)


def test_the_clip_of_ppo_is_seen_from_both_sides() -> None:
    made = learner("ppo", DISCRETE, True)
    batch = minibatch(made, DISCRETE, True)
    logp = made.log_prob(batch.obs, batch.action).clone()
    found = made.algorithm.policy_loss_grad(logp, batch)
    assert found is not None
    for sign in (1, -1):
        clipped = (found == 0) & (batch.advantage.sign() == sign)
        assert 0 < clipped.sum() < (batch.advantage.sign() == sign).sum()


def test_an_algorithm_without_a_formula_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own needs no more than a loss."""
    kind = algorithms.find("a2c")

    class Plain(kind):  # type: ignore[misc, valid-type]
        def policy_loss_grad(self, logp: Any, batch: Any) -> None:
            return None

        def loss(self, outputs: Any, batch: Minibatch) -> Any:
            policy, value = batch.distribution(outputs), outputs["value"][:, 0]
            return -(batch.advantage * policy.log_prob).mean() + (value - batch.target).square().mean()

    spec = small_spec(4, GAUSSIAN)
    weights = Weights(0, spec.initial_vector(1), spec.schema)
    setup = LearnerSetup(spec, Layout(8, 3, (4,), "<f4", GAUSSIAN, ()), 2, weights, 3, Horizon(99))
    made: Any = Plain(kind.config()).learner(setup)
    before = made.net.vector()
    losses = made.update(minibatch(made, GAUSSIAN, True))
    assert not np.array_equal(before, made.net.vector())
    assert losses.metrics()["value_loss"] > 0
