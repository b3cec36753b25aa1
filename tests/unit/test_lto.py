"""The functions and their scaling, the samplers, the truth, and the environment for other libraries."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

from manyhands.collect import starts
from manyhands.core.errors import EnvError, UsageError
from manyhands.envs import lto
from manyhands.envs.lto import Problem
from manyhands.envs.lto_functions import KNOWN, ackley, levy, rosenbrock
from manyhands.lto.truth import Search, minimum

DOMAINS = {
    "ackley": 32.768,
    "rosenbrock": 2.048,
    "sphere": 5.12,
    "rastrigin": 5.12,
    "griewank": 600,
    "levy": 10,
}


@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("name", KNOWN)
def test_every_function_has_its_minimum_of_0_where_it_should(name: str, size: int) -> None:
    function, reach, place = KNOWN[name]
    assert reach == DOMAINS[name]
    assert function(np.full((1, size), place))[0] == pytest.approx(0, abs=1e-12)
    problem = Problem((name,), x=size - 1, c=1)
    assert problem.evaluate(np.full((1, size), place / reach))[0] == pytest.approx(0, abs=1e-12)
    elsewhere = np.random.default_rng(0).uniform(-1, 1, (1000, size))
    assert problem.evaluate(elsewhere).min() > 0


@pytest.mark.parametrize("name", KNOWN)
def test_the_cube_is_the_whole_domain(name: str) -> None:
    problem = Problem((name,), x=1, c=1)
    reach = DOMAINS[name]
    corners = np.array([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(problem.to_units(corners), reach * corners)
    np.testing.assert_allclose(problem.from_units(problem.to_units(corners)), corners, atol=1e-12)
    np.testing.assert_allclose(problem.evaluate(corners), KNOWN[name][0](reach * corners))


def test_bounds_of_ones_own_scale_each_variable() -> None:
    problem = Problem(("sphere",), x=1, c=1, bounds=((0, 10), (-1, 3)))
    np.testing.assert_allclose(problem.to_units(np.array([[-1.0, 1.0], [0.0, 0.0]])), [[0, 3], [5, 1]])
    np.testing.assert_allclose(problem.evaluate(np.array([[-1.0, 1.0]])), [9.0])


def test_known_values() -> None:
    assert ackley(np.array([[1.0, 1.0]]))[0] == pytest.approx(3.6253849384403627)
    assert rosenbrock(np.array([[0.0, 0.0]]))[0] == 1.0
    expected = 0.5 + (1 + 10 * np.sin(0.75 * np.pi + 1) ** 2) / 16 + 2 / 16
    assert levy(np.array([[0.0, 0.0]]))[0] == pytest.approx(expected)


def counts(points: np.ndarray, intervals: int) -> np.ndarray:
    """How often every interval of every variable was used, [variable, interval]."""
    places = np.clip(((points + 1) / 2 * intervals).astype(int), 0, intervals - 1)
    return np.stack([np.bincount(column, minlength=intervals) for column in places.T])


@given(st.integers(0, 200), st.integers(1, 70), st.integers(1, 4), st.integers(1, 30))
def test_latin_draws_from_the_interval_used_least(first: int, count: int, size: int, intervals: int) -> None:
    rng = np.random.default_rng(0)
    before = starts.latin(rng, first, size, 7, 0, intervals) if first else np.zeros((0, size))
    used = counts(before, intervals)
    for point in starts.latin(rng, count, size, 7, first, intervals):
        now = counts(point[None], intervals)
        assert (used[now == 1] == used.min(1)).all()
        used += now


def test_latin_is_as_even_as_scipys() -> None:
    """The centred discrepancy of a whole block lies among those of SciPy's latin hypercubes."""
    rng = np.random.default_rng(1)
    ours = [qmc.discrepancy((starts.latin(rng, 40, 2, seed, 0, 40) + 1) / 2) for seed in range(40)]
    theirs = [qmc.discrepancy(qmc.LatinHypercube(2, rng=seed).random(40)) for seed in range(40)]
    uniform = [qmc.discrepancy((starts.uniform(rng, 40, 2) + 1) / 2) for _ in range(40)]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.15)
    assert np.mean(ours) < 0.6 * np.mean(uniform)


def test_latin_breaks_ties_at_random() -> None:
    firsts = {
        int((starts.latin(np.random.default_rng(0), 1, 1, seed, 0, 10)[0, 0] + 1) * 5) for seed in range(99)
    }
    assert len(firsts) == 10


def test_uncertain_starts_where_the_entropy_is_highest() -> None:
    def entropy(points: np.ndarray) -> np.ndarray:
        return -np.abs(points[:, 0] - 0.5)

    found = starts.uncertain(np.random.default_rng(0), 8, 2, 500, entropy)
    assert np.abs(found[:, 0] - 0.5).max() < 0.02
    assert found[:, 1].std() > 0.2


@pytest.mark.parametrize(("name", "condition", "x"), [("ackley", 0.37, 0.0), ("sphere", -0.9, 0.0)])
def test_the_truth_of_functions_whose_minimum_does_not_move(name: str, condition: float, x: float) -> None:
    found, value = minimum(Problem((name,)), np.array([condition]))
    assert found[0] == pytest.approx(x, abs=1e-6)
    assert value == pytest.approx(Problem((name,)).evaluate(np.array([[x, condition]]))[0], rel=1e-9)


@pytest.mark.parametrize("condition", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_the_truth_of_rosenbrock_is_a_root_of_its_derivative(condition: float) -> None:
    """With x = z1 and c = z2 fixed, 400 z1^3 - 400 z1 c + 2 z1 - 2 = 0 at the best of up to three roots."""
    own = 2.048 * condition
    roots = np.roots([400, 0, 2 - 400 * own, -2])
    real = roots[np.abs(roots.imag) < 1e-9].real
    best = min(real, key=lambda z: 100 * (own - z * z) ** 2 + (1 - z) ** 2)
    found, _ = minimum(Problem(("rosenbrock",)), np.array([condition]))
    assert 2.048 * found[0] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("x", [2, 4])
def test_the_truth_with_several_x(x: int) -> None:
    found, value = minimum(Problem(("sphere",), x=x, c=1), np.array([0.5]))
    np.testing.assert_allclose(found, 0, atol=1e-4)
    assert value == pytest.approx(2.56**2, rel=1e-6)


def test_variants_differ_and_the_next_ones_are_new() -> None:
    problem = Problem(("sphere",), variants=3, jitter=0.1)
    point = np.zeros((1, 2))
    values = [problem.evaluate(point, member)[0] for member in range(3)]
    assert len(set(values)) == 3
    wider = problem.fresh_variants(2)
    assert [wider.evaluate(point, member)[0] for member in range(3)] == values
    assert wider.members == 5


def test_the_environment_passes_gymnasiums_checker() -> None:
    env = gymnasium.make(f"manyhands.envs.lto:{lto.ENV_ID}", functions=("ackley",), x=2, c=1)
    check_env(env.unwrapped, skip_render_check=True)


def test_the_rewards_are_the_drops_of_f() -> None:
    env = gymnasium.make(lto.ENV_ID, functions=("rosenbrock",)).unwrapped
    obs, info = env.reset(options={"start": [0.5, -0.25]})
    first = info["f"]
    assert first == pytest.approx(rosenbrock(2.048 * np.array([[0.5, -0.25]]))[0])
    obs, reward, over, cut, info = env.step(np.array([0.1], np.float32))
    assert reward == pytest.approx(first - info["f"])
    np.testing.assert_allclose(obs, [0.1, -0.25])
    assert not over
    assert not cut
    assert env.step(np.array([9.0], np.float32))[0][0] == 1.0  # cut to the bounds
    assert env.moves == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"functions": ("ackly",)}, "did you mean ackley"),
        ({"functions": ("small_envs:square",)}, "needs --bounds"),
        ({"functions": ("sphere",), "bounds": ((5, -5),)}, "not a low and a higher"),
        ({"functions": ("sphere",), "bounds": ((1, 2),) * 3}, "3 pairs for 2 variables"),
        ({"functions": ("sphere",), "x": 0}, "--x is 0"),
        ({"functions": ("rosenbrock",), "c": 0}, "two variables"),
        ({"functions": ("sphere",), "starts": ("latn",)}, "did you mean latin"),
        ({"functions": ("sphere",), "jitter": 2.0}, "between 0 and 1"),
        ({"functions": ("a:b",), "bounds": ((0, 1),), "jitter": 0.1}, "leave the bounds"),
    ],
)
def test_a_wrong_problem_is_refused_by_name(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Problem(**wrong)


def test_the_truth_with_many_x_and_many_valleys() -> None:
    _, value = minimum(Problem(("rastrigin",), x=5, c=0), np.zeros(0))
    assert value == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "said"),
    [("nan", "returned nan"), ("infinite", "returned inf"), ("vector", "ndarray"), ("text", "str 'low'")],
)
def test_a_function_that_returns_no_number_is_named(name: str, said: str) -> None:
    problem = Problem((f"small_functions:{name}",), bounds=((-1, 1),))
    with pytest.raises(EnvError, match=said):
        problem.evaluate(np.zeros((1, 2)))


def test_a_search_finds_the_minimum_of_a_users_function_within_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(("small_functions:square",), bounds=((-5.0, 5.0),))
    calls: list[int] = []
    evaluate = Problem.evaluate

    def counted(self: Problem, unit: Any, *more: Any, **others: Any) -> Any:
        calls.append(len(unit))
        return evaluate(self, unit, *more, **others)

    monkeypatch.setattr(Problem, "evaluate", counted)
    condition = np.array([0.4])
    x, value = Search(lambda c: np.full((len(c), 1), 0.9, np.float32), 400)(problem, condition)
    assert value < 1e-4
    assert x[0] == pytest.approx(0.2, abs=0.01)
    assert sum(calls) <= 400
    calls.clear()
    _, value = Search(lambda c: np.full((len(c), 1), 0.2, np.float32), 20)(problem, condition)
    assert value < 1e-12, "the law's own x is among those that are tried"
    assert sum(calls) <= 20
