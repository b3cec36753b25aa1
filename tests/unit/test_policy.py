"""How a head's outputs become actions, against torch.distributions and against the algorithms' own maths."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DISCRETE, GAUSSIAN, MULTI
from torch.distributions import Categorical, Normal

from manyhands.algos.distributions import distribution
from manyhands.core.actions import ActionSpec

ALL = [DISCRETE, MULTI, GAUSSIAN]


@given(st.sampled_from(ALL), st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 2**32))
def test_noise_drawn_in_pieces_equals_noise_drawn_at_once(
    spec: ActionSpec, pieces: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = np.concatenate([spec.noise(rng, rows) for rows in pieces])
    whole = spec.noise(np.random.default_rng(seed), sum(pieces))
    assert parts.dtype == whole.dtype == np.float32
    assert whole.shape == (sum(pieces), spec.outputs)
    assert np.array_equal(parts, whole)


def chi_square_is_plausible(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Within five standard deviations of the statistic's mean."""
    degrees = len(counts) - 1
    return bool(((counts - expected) ** 2 / expected).sum() < degrees + 5 * math.sqrt(2 * degrees))


def test_sampled_choices_have_the_frequencies_of_the_softmax() -> None:
    draws = 100_000
    logits = np.array([1.5, -0.5, 0.0, -2.0], np.float32)
    spec = ActionSpec("categorical", (4,))
    noise = spec.noise(np.random.default_rng(1), draws)
    action = spec.choose(np.broadcast_to(logits, (draws, 4)), np.zeros(1, np.float32), noise)
    expected = draws * np.exp(logits) / np.exp(logits).sum()
    counts = np.bincount(action, minlength=4)
    assert chi_square_is_plausible(counts, expected)
    assert not chi_square_is_plausible(counts, np.full(4, draws / 4)), "the check itself must be able to fail"


def test_parts_of_a_choice_are_sampled_independently_by_their_own_softmax() -> None:
    draws = 60_000
    logits = np.random.default_rng(2).normal(size=MULTI.outputs).astype(np.float32)
    action = MULTI.choose(
        np.broadcast_to(logits, (draws, MULTI.outputs)),
        np.zeros(1, np.float32),
        MULTI.noise(np.random.default_rng(3), draws),
    )
    assert action.shape == (draws, 3)
    assert action.dtype == np.int32
    parts = [np.exp(p) / np.exp(p).sum() for p in np.split(logits, np.cumsum(MULTI.sizes)[:-1])]
    joint = np.einsum("a,b,c->abc", *parts).reshape(-1) * draws
    counts = np.bincount(np.ravel_multi_index(action.T, MULTI.sizes), minlength=len(joint))
    assert chi_square_is_plausible(counts, joint)


def test_gaussian_samples_have_the_mean_and_the_spread() -> None:
    draws = 100_000
    mean, log_std = np.array([0.3, -2.0], np.float32), np.array([0.5, -1.0], np.float32)
    noise = GAUSSIAN.noise(np.random.default_rng(4), draws)
    action = GAUSSIAN.choose(np.broadcast_to(mean, (draws, 2)), log_std, noise)
    assert action.dtype == np.float32
    np.testing.assert_allclose(action.mean(axis=0), mean, atol=5 * 1.7 / math.sqrt(draws))
    np.testing.assert_allclose(action.std(axis=0), np.exp(log_std), rtol=0.02)
    assert abs(np.corrcoef(action.T)[0, 1]) < 0.02


def test_without_noise_the_most_likely_action_is_chosen() -> None:
    outputs = np.array([[0.1, 3.0, 2.0], [5.0, 1.0, 2.0]], np.float32)
    assert DISCRETE.choose(outputs, np.zeros(1, np.float32), None).tolist() == [1, 0]
    row = np.array([[0, 1, 3, 0, 9, 2, 7, 1, 1]], np.float32)
    assert MULTI.choose(row, np.zeros(1, np.float32), None).tolist() == [[1, 2, 0]]
    mean = np.array([[0.5, 0.25]], np.float32)
    assert np.array_equal(GAUSSIAN.choose(mean, np.ones(2, np.float32), None), mean)


class Draw:
    """Random outputs [T, B, n] and actions [T, B, ...] of a spec."""

    def __init__(self, spec: ActionSpec, seed: int, steps: int = 7, lanes: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.outputs = rng.normal(0, 3, (steps, lanes, spec.outputs)).astype(np.float32)
        self.log_std = rng.normal(0, 0.5, spec.outputs).astype(np.float32)
        noise = np.stack([spec.noise(rng, lanes) for _ in range(steps)])
        self.action = np.stack(
            [spec.choose(o, self.log_std, n) for o, n in zip(self.outputs, noise, strict=True)]
        )


def by_torch(spec: ActionSpec, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """log-probabilities and entropies [T, B] as torch.distributions has them, in doubles."""
    outputs, action = torch.from_numpy(draw.outputs).double(), torch.from_numpy(draw.action)
    if spec.kind == "gaussian":
        normal = Normal(outputs, torch.from_numpy(draw.log_std).double().exp())
        return normal.log_prob(action.double()).sum(-1).numpy(), normal.entropy().sum(-1).numpy()
    action = action[..., None] if len(spec.sizes) == 1 else action
    parts = [Categorical(logits=part) for part in outputs.split(spec.sizes, -1)]
    log_prob = sum(part.log_prob(action[..., i]) for i, part in enumerate(parts))
    return log_prob.numpy(), sum(part.entropy() for part in parts).numpy()


@given(st.sampled_from(ALL), st.integers(0, 2**32))
def test_log_probabilities_equal_those_of_torch_distributions(spec: ActionSpec, seed: int) -> None:
    draw = Draw(spec, seed)
    ours = spec.log_prob(draw.outputs, draw.log_std, draw.action)
    assert ours.dtype == np.float32
    assert ours.shape == (7, 3)
    np.testing.assert_allclose(ours, by_torch(spec, draw)[0], rtol=1e-4, atol=1e-4)


@given(st.sampled_from(ALL), st.integers(0, 2**32))
def test_the_algorithms_distribution_equals_the_actors(spec: ActionSpec, seed: int) -> None:
    draw = Draw(spec, seed)
    outputs = torch.from_numpy(draw.outputs).reshape(-1, spec.outputs)
    action = torch.from_numpy(draw.action).reshape(-1, *spec.shape)
    log_std = torch.from_numpy(draw.log_std) if spec.kind == "gaussian" else None
    policy = distribution(spec, outputs, log_std, action.long() if spec.dtype == "<i4" else action)
    log_prob, entropy = policy.log_prob.numpy().reshape(7, 3), policy.entropy().numpy().reshape(7, 3)
    expected_log_prob, expected_entropy = by_torch(spec, draw)
    np.testing.assert_allclose(log_prob, expected_log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, expected_entropy, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        log_prob, spec.log_prob(draw.outputs, draw.log_std, draw.action), rtol=1e-4, atol=1e-4
    )


def test_log_probabilities_stay_finite_for_extreme_outputs() -> None:
    outputs = np.array([[1e4, -1e4, 0.0]], np.float32)
    chosen = DISCRETE.log_prob(outputs, np.zeros(1, np.float32), np.array([1]))
    assert chosen.tolist() == [-2e4]


def wild_actions(width: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    extremes = np.array([-1e6, -1.0, -0.0, 0.0, 1.0, 1e6, 0.5], np.float32)
    return np.concatenate(
        [np.repeat(extremes[:, None], width, axis=1), rng.normal(0, 3, (50, width)).astype(np.float32)]
    )


LARGEST = float(np.finfo(np.float32).max)
BOUNDS = [
    (-2.0, 2.0),
    (0.0, 1.0),
    (-1.0, 3.0),
    (5.0, 5.5),
    (-math.inf, math.inf),
    (0.0, math.inf),
    (-math.inf, 1.0),
    (-LARGEST, LARGEST),
]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("bounds", [[b] for b in BOUNDS] + [BOUNDS, BOUNDS[4:7], BOUNDS[:4]])
def test_environments_get_actions_within_their_bounds(
    bounds: list[tuple[float, float]], squash: bool
) -> None:
    low, high = zip(*bounds, strict=True)
    spec = ActionSpec("gaussian", (len(low),), low, high, squash)
    action = wild_actions(len(low))
    before = action.copy()
    sent = spec.to_env(action)
    assert np.array_equal(action, before)
    assert sent.dtype == np.float32
    assert sent.shape == action.shape
    assert np.isfinite(sent).all()
    assert (sent >= np.array(low, np.float32)).all()
    assert (sent <= np.array(high, np.float32)).all()


def test_a_finite_range_is_addressed_as_minus_one_to_one() -> None:
    spec = ActionSpec("gaussian", (1,), (-1.0,), (3.0,))
    action = np.array([[-1.0], [0.0], [0.5], [1.0], [9.0]], np.float32)
    assert spec.to_env(action)[:, 0].tolist() == [-1.0, 1.0, 2.0, 3.0, 3.0]


def test_squashing_takes_tanh_instead_of_clipping() -> None:
    spec = ActionSpec("gaussian", (1,), (-2.0,), (2.0,), squash=True)
    action = np.array([[-1.0], [0.0], [0.3]], np.float32)
    np.testing.assert_allclose(spec.to_env(action), 2 * np.tanh(action), rtol=1e-6)


def test_dimensions_without_a_finite_range_are_only_clipped() -> None:
    spec = ActionSpec("gaussian", (3,), (-math.inf, 0.0, -1.0), (math.inf, math.inf, 3.0))
    sent = spec.to_env(np.array([[-7.0, -7.0, 0.0], [7.0, 7.0, 0.0]], np.float32))
    assert sent.tolist() == [[-7.0, 0.0, 1.0], [7.0, 7.0, 1.0]]


def test_categorical_actions_reach_the_environment_as_they_are() -> None:
    action = np.array([0, 2, 1], np.int32)
    assert np.array_equal(DISCRETE.to_env(action), action)


@pytest.mark.parametrize("spec", [*ALL, ActionSpec("gaussian", (1,), (0.0,), (1.0,), True)])
def test_action_specs_come_back_from_json(spec: ActionSpec) -> None:
    assert ActionSpec.from_json(spec.to_json()) == spec


def test_stored_shapes_and_dtypes() -> None:
    assert (DISCRETE.shape, DISCRETE.dtype, DISCRETE.outputs) == ((), "<i4", 3)
    assert (MULTI.shape, MULTI.dtype, MULTI.outputs) == ((3,), "<i4", 9)
    assert (GAUSSIAN.shape, GAUSSIAN.dtype, GAUSSIAN.outputs) == ((2,), "<f4", 2)
