"""Cores that learn together: gradients without torch, optimizers without a lock, and A3C."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import random_statistics

from manyhands import train
from manyhands.algos.distributions import distribution
from manyhands.algos.returns import gae
from manyhands.collect.episodes import EpisodePlayer
from manyhands.config.resolve import resolve
from manyhands.core.actions import ActionSpec
from manyhands.core.errors import UsageError
from manyhands.core.horizon import Horizon
from manyhands.core.networks import Dense, Head, NetSpec
from manyhands.hogwild.a3c import A3cConfig, A3cCore, bootstrapped, entropy_grad, log_prob_grad
from manyhands.hogwild.cores import SharedMemory
from manyhands.hogwild.learner import HogwildLearner
from manyhands.hogwild.shared_optimizer import KEPT, SharedOptimizer
from manyhands.hogwild.shared_replay import MARGIN, SharedReplay, width
from manyhands.nets.numpy_gradient import NumpyGradient
from manyhands.nets.torch_net import TorchNet
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST
from manyhands.runs.training import train as run_training

APART = NetSpec((3,), (Head("policy", 4, (Dense(8),)), Head("value", 1, (Dense(8), Dense(5, "relu")))))
SHARED = NetSpec((2, 3), (Head("policy", 4), Head("value", 1)), (Dense(7, "relu"), Dense(6)), normalise=True)


@pytest.mark.parametrize("spec", [APART, SHARED])
def test_gradients_are_torchs(spec: NetSpec) -> None:
    rng = np.random.default_rng(0)
    vector = rng.normal(0, 0.5, spec.size).astype(np.float32)
    obs = rng.normal(0, 1, (9, *spec.input_shape)).astype(np.float32)
    gradients = [rng.normal(0, 1, (9, size)).astype(np.float32) for size in (4, 1)]
    beside = random_statistics(spec)
    mine, theirs = NumpyGradient(spec), TorchNet(spec, vector, beside)
    mine.net.load(vector, beside)
    for _ in range(2):  # the second time sets, and does not add
        outputs = mine.forward(obs, "policy", "value")
        mine.backward(gradients)
    expected = theirs.forward(torch.from_numpy(obs), "policy", "value")
    theirs.backward([torch.from_numpy(gradient) for gradient in gradients])
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(mine.gradient, theirs.gradient.numpy(), atol=1e-4)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(-5, 5), st.floats(0, 1))
def test_returns_are_those_of_a_slow_sum(rewards: list[float], last: float, gamma: float) -> None:
    reward = np.array(rewards, np.float32)
    found = bootstrapped(reward, np.zeros_like(reward), last, gamma, 1.0)
    for t in range(len(rewards)):
        slow = sum(gamma**k * reward for k, reward in enumerate(rewards[t:]))
        slow += gamma ** (len(rewards) - t) * last
        assert found[t] == pytest.approx(slow, abs=1e-3)


@given(st.integers(1, 20), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_those_of_the_other_algorithms(steps: int, gamma: float, hash_seed: float) -> None:
    reward, value, last = np.random.default_rng(steps).normal(0, 1, (3, steps)).astype(np.float32)
    found = bootstrapped(reward, value, float(last[0]), gamma, hash_seed) - value
    next_obs = np.append(value[1:], last[0])[:, None]
    going_on = np.zeros((steps, 1), bool)
    expected = gae(reward[:, None], value[:, None], next_obs, going_on, gamma, hash_seed)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [
        ActionSpec("categorical", (4,)),
        ActionSpec("categorical", (3, 2)),
        ActionSpec("gaussian", (2,), (-1.0, -1.0), (1.0, 1.0)),
    ],
)
def test_gradients_of_policies_are_those_of_the_other_algorithms(spec: ActionSpec) -> None:
    rng = np.random.default_rng(1)
    outputs = rng.normal(0, 1, (11, spec.outputs)).astype(np.float32)
    log_std = rng.normal(0, 0.3, 2).astype(np.float32)
    weight = rng.normal(0, 1, 11).astype(np.float32)
    action = spec.choose(outputs, log_std, spec.noise(rng, 11))
    free = torch.from_numpy(log_std) if spec.kind == "gaussian" else None
    taken = torch.from_numpy(action)
    policy = distribution(spec, torch.from_numpy(outputs), free, taken.long() if free is None else taken)
    outputs_grad, log_std_grad = log_prob_grad(spec, outputs, log_std, action, weight)
    wanted, wanted_std = policy.gradient(torch.from_numpy(weight), 0.0)
    np.testing.assert_allclose(outputs_grad, wanted.numpy(), atol=1e-4)
    if wanted_std is not None:
        np.testing.assert_allclose(log_std_grad, wanted_std.numpy(), atol=1e-3)
    nothing = torch.zeros(11)
    with_entropy = policy.gradient(nothing, 1.0)[0].numpy()
    np.testing.assert_allclose(-entropy_grad(spec, outputs) / 11, with_entropy, atol=1e-5)


def optimizer(config: A3cConfig, vector: np.ndarray, left: float = 1.0) -> SharedOptimizer:
    kept = np.zeros((KEPT[config.optimizer], len(vector)), np.float32)
    return SharedOptimizer(config, vector, kept, np.zeros(1, np.int64), np.array([left], np.float32))


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "adam"])
def test_optimizers_are_torchs_when_one_process_uses_them(kind: str) -> None:
    rng = np.random.default_rng(2)
    config = A3cConfig(optimizer=kind, learning_rate=0.01, momentum=0.9, weight_decay=1e-3)  # type: ignore[arg-type]
    vector = rng.normal(0, 1, 50).astype(np.float32)
    theta = torch.from_numpy(vector.copy()).requires_grad_()
    mine = optimizer(config, vector)
    theirs = {
        "sgd": lambda: torch.optim.SGD([theta], 0.01, momentum=0.9, weight_decay=1e-3),
        "rmsprop": lambda: torch.optim.RMSprop([theta], 0.01, 0.99, eps=1e-6, weight_decay=1e-3),
        "adam": lambda: torch.optim.Adam([theta], 0.01, eps=1e-5, weight_decay=1e-3),
    }[kind]()
    for _ in range(20):
        gradient = rng.normal(0, 1, 50).astype(np.float32)
        theta.grad = torch.from_numpy(gradient.copy())
        theirs.step()
        mine.step(gradient)
    np.testing.assert_allclose(vector, theta.detach().numpy(), atol=1e-3)


def test_gradients_are_shortened() -> None:
    config = A3cConfig(learning_rate=1.0, momentum=0.0, max_grad_norm=2.0)
    vector = np.zeros(4, np.float32)
    optimizer(config, vector).step(np.full(4, 10.0, np.float32))
    assert np.linalg.norm(vector) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("kind", ["rmsprop", "adam"])
def test_steps_are_no_larger_than_allowed(kind: str) -> None:
    config = A3cConfig(optimizer=kind, learning_rate=0.1, max_update=0.5)  # type: ignore[arg-type]
    free, bound = np.zeros(50, np.float32), np.zeros(50, np.float32)
    gradient = np.random.default_rng(1).normal(size=50).astype(np.float32)
    optimizer(config, bound).step(gradient)
    optimizer(replace(config, max_update=0.0), free).step(gradient)
    assert np.sqrt(np.mean(bound**2)) == pytest.approx(0.05, rel=1e-4)
    assert np.sqrt(np.mean(free**2)) > 0.08
    np.testing.assert_allclose(bound / np.linalg.norm(bound), free / np.linalg.norm(free), atol=1e-5)


def test_what_is_left_of_the_rate_is_what_is_learned_with() -> None:
    whole, half = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for vector, left in ((whole, 1.0), (half, 0.5)):
        optimizer(A3cConfig(momentum=0.0), vector, left).step(np.arange(4, dtype=np.float32))
    np.testing.assert_allclose(half, whole / 2)


def test_a_horizon_is_where_the_first_limit_is_or_where_somebody_says() -> None:
    assert Horizon(100).left(25) == 0.75
    assert Horizon(100).left(25, updates=7) == 0.75
    assert Horizon(100, updates=10).left(25, updates=5) == 0.5
    assert Horizon(100, updates=10).left(125, updates=5) == 0.0
    assert Horizon(100, updates=10, told=0.9).left(125, updates=5) == 0.9


def replay(cores: int, capacity: int) -> SharedReplay:
    return SharedReplay(np.zeros((cores, capacity, width(2)), np.float32), np.zeros(cores, np.int64))


def fill(memory: SharedReplay, core: int, count: int) -> None:
    for number in range(count):
        obs = np.array([core, number], np.float32)
        memory.write(core, obs, number % 3, float(number), 0.9, obs + 1)


@pytest.mark.parametrize("replacement", [True, False])
def test_every_core_draws_from_what_all_have_written(replacement: bool) -> None:
    memory = replay(3, MARGIN + 6)
    for core, count in enumerate((4, 6, MARGIN + 25)):
        fill(memory, core, count)
    # The last share is full, so its oldest rows, which might be being overwritten, are left out.
    last = {(2, MARGIN + n) for n in range(19, 25)}
    expected = {(0, n) for n in range(4)} | {(1, n) for n in range(6)} | last
    assert memory.held == len(expected)
    rng = np.random.default_rng(0)
    seen: dict[tuple[int, int], int] = dict.fromkeys(expected, 0)
    for _ in range(400):
        drawn = memory.sample(rng, 10, replacement)
        pairs = [tuple(map(int, row)) for row in drawn.obs]
        assert replacement or len(set(pairs)) == 10
        np.testing.assert_array_equal(drawn.next_obs, drawn.obs + 1)
        np.testing.assert_array_equal(drawn.reward, drawn.obs[:, 1])
        np.testing.assert_array_equal(drawn.action, drawn.obs[:, 1].astype(int) % 3)
        for core, number in pairs:
            seen[core, number] += 1
    assert min(seen.values()) > 170  # of 250 on average
    assert max(seen.values()) < 330


@pytest.mark.parametrize("algo", ["a3c", "adqn"])
def test_one_core_learns_the_same_twice(algo: str, tmp_path: Path) -> None:
    def trained(name: str) -> np.ndarray:
        run = train(
            "CartPole-v1", algo, workers=0, steps=3000, until="steps", seed=2, directory=tmp_path / name
        )
        return run.checkpoint(LAST).weights.vector

    once, again = trained("once"), trained("again")
    assert np.array_equal(once, again)


@pytest.mark.parametrize("algo", ["a3c", "adqn"])
def test_one_core_that_stops_and_goes_on_learns_what_it_would_have(algo: str, tmp_path: Path) -> None:
    overrides = ({"run": {"workers": 0, "until": "steps", "seed": 2, "steps": 10**9}},)
    config = resolve("CartPole-v1", algo, overrides=overrides)
    half, whole = (replace(config, run=replace(config.run, updates=rounds)) for rounds in (60, 120))
    expected = run_training(whole, directory=tmp_path / "whole")
    found = run_training(whole, resume=run_training(half, directory=tmp_path / "half"))
    assert np.array_equal(found.checkpoint(LAST).weights.vector, expected.checkpoint(LAST).weights.vector)


def test_cores_slow_down_towards_the_end_and_remember_it() -> None:
    planned = plan(resolve("CartPole-v1", "a3c", overrides=({"run": {"workers": 1}},)))

    def learner() -> HogwildLearner:
        memory = SharedMemory(bytearray(SharedMemory.size(planned.task)), planned.task)
        return HogwildLearner(memory, planned.spec, planned.first_weights(), Horizon(100, 4), anneal=True)

    first = learner()
    assert first.memory.left[0] == 1.0
    left = []
    for _ in range(4):
        first.learn([])
        left.append(float(first.memory.left[0]))
    assert left == [0.75, 0.5, 0.25, 0.0]
    again = learner()
    again.load_state(0, {**first.state(), "steps": np.array([90])})
    assert again.memory.left[0] == pytest.approx(0.1)


def test_a_machine_takes_its_share_of_its_parent() -> None:
    planned = plan(resolve("CartPole-v1", "a3c", overrides=({"run": {"workers": 1}},)))
    memory = SharedMemory(bytearray(SharedMemory.size(planned.task)), planned.task)
    first = planned.first_weights()
    learner = HogwildLearner(memory, planned.spec, first, Horizon(1), anneal=False)
    learner.average_into(np.full(planned.spec.size, 2.0, np.float32), 0.25)
    np.testing.assert_allclose(memory.vector, 0.75 * first.vector + 0.5, atol=1e-6)


class Caught:
    """An optimizer that only remembers the gradient."""

    def step(self, gradient: np.ndarray) -> None:
        self.gradient = gradient.copy()


@pytest.mark.parametrize(("terminated", "limit_ends"), [(True, False), (False, False), (False, True)])
def test_the_gradient_of_a3c_is_that_of_its_loss(terminated: bool, limit_ends: bool) -> None:
    rng = np.random.default_rng(3)
    action = ActionSpec("categorical", (4,))
    config = A3cConfig(gae_lambda=0.8, batch=10, gamma=0.9, entropy=0.02, value_weight=0.7, epsilon=0.0)
    config = replace(config, limit_ends=limit_ends)
    vector = rng.normal(0, 0.5, APART.size).astype(np.float32)
    caught = Caught()
    core = A3cCore(config, APART, action, vector, caught)  # type: ignore[arg-type]
    core.begin(rng)
    seen, taken, rewards = rng.normal(0, 1, (8, 3)).astype(np.float32), [], rng.normal(0, 1, 7)
    for t in range(7):
        taken.append(core.act(seen[t]))
        core.step(seen[t], taken[-1], rewards[t], seen[t + 1], terminated and t == 6, t == 6)
    flat = torch.from_numpy(vector.copy()).requires_grad_()
    part = {p.name: flat[p.offset : p.end].view(p.shape) for p in APART.parameters}

    def head(obs: torch.Tensor, *names: str) -> torch.Tensor:
        for name, activation in zip(names, (torch.tanh, torch.relu), strict=False):
            obs = activation(obs @ part[f"{name}.weight"] + part[f"{name}.bias"])
        last = names[0][:-1]
        return obs @ part[f"{last}.weight"] + part[f"{last}.bias"]

    obs = torch.from_numpy(seen)
    log_probs = torch.log_softmax(head(obs[:7], "policy0"), 1)
    value = head(obs, "value0", "value1")[:, 0]
    next_obs = 0.0 if terminated or limit_ends else float(value[7].detach())
    values = value[:7].detach().numpy()
    returns = torch.from_numpy(bootstrapped(rewards.astype(np.float32), values, next_obs, 0.9, 0.8))
    advantage = (returns - value[:7]).detach()
    chosen = log_probs[torch.arange(7), torch.from_numpy(np.concatenate(taken)).long()]
    entropy = -(log_probs.exp() * log_probs).sum()
    loss = -(advantage * chosen).sum() - 0.02 * entropy + 0.7 * (value[:7] - returns).square().sum()
    loss.backward()
    assert flat.grad is not None
    np.testing.assert_allclose(caught.gradient, flat.grad.numpy(), atol=2e-4)


def test_a_core_takes_a_fresh_copy_every_second_time() -> None:
    action = ActionSpec("categorical", (4,))
    shared = np.zeros(APART.size, np.float32)
    core = A3cCore(A3cConfig(batch=2), APART, action, shared, Caught())  # type: ignore[arg-type]
    core.begin(np.random.default_rng(0))
    obs = np.zeros(3, np.float32)
    copies = []
    for _ in range(8):
        shared += 1
        core.step(obs, np.zeros(1, np.int32), 0.0, obs, False, False)
        copies.append(float(core.net.net.vector[0]))
    assert copies == [0, 0, 0, 4, 4, 4, 4, 8]


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"algo": {"memory": 10**12}}, "would share .* GB, and .* are free; make algo.memory"),
        ({"algo": {"memory": 2000}}, "algo.memory is 2000; .* at least 2256"),
        ({"net": {"normalise": True}}, "does not support net.normalise"),
    ],
)
def test_a_shared_memory_that_cannot_be_is_refused(layer: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(resolve("CartPole-v1", "adqn", overrides=({"algo": {"warmup": 2000}}, layer)))


def test_a_parent_has_room_for_what_its_children_remember() -> None:
    large = resolve("CartPole-v1", "adqn", overrides=({"algo": {"memory": 10**12}},))
    assert plan(large, learns_here=False).config == large


def test_an_agent_is_judged_by_sampling_where_its_settings_say_so() -> None:
    planned = plan(resolve("LunarLander-v3", "a3c"))
    first = planned.first_weights()
    sharper = replace(first, vector=10 * first.vector)
    assert planned.spaces.action == ActionSpec.from_json(planned.spaces.action.to_json())

    def returns(action: ActionSpec, sample: bool) -> tuple[float, ...]:
        player = EpisodePlayer(planned.config.env, planned.spec, action)
        try:
            return player.play(sharper, 2, 5, sample).returns
        finally:
            player.close()

    cold, warm, hot = (replace(planned.spaces.action, temperature=degree) for degree in (0.0, 0.6, 1.0))
    assert planned.spaces.action == warm
    assert len({returns(action, False) for action in (cold, warm, hot)}) == 3
    assert len({returns(action, True) for action in (cold, warm, hot)} | {returns(hot, False)}) == 1
