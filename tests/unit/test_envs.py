"""Spaces as plain data, observations into rows, stored actions into what `step` takes."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys import Clock, SpacesOnly

from manyhands.core.actions import ActionSpec
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError, UsageError
from manyhands.core.spaces import ObsSpec
from manyhands.envs.codec import decoder, encoder, outside, reward_number
from manyhands.envs.describe import describe
from manyhands.envs.make import make

ANY_OBS = spaces.Box(-1, 1, (2,))
ANY_ACTION = spaces.Discrete(2)


def encoded(space: spaces.Space[Any], obs: Any) -> np.ndarray:
    spec = describe(SpacesOnly(space, ANY_ACTION)).obs
    row = np.full(spec.shape, 77, spec.dtype)
    encoder(space, spec)(obs, row)
    return row


@pytest.mark.parametrize("reward", [1.5, np.float32(1.5), np.array(1.5), np.array([1.5]), np.array([[1.5]])])
def test_a_reward_may_be_an_array_of_one_number(reward: Any) -> None:
    assert reward_number(reward) == 1.5
    assert type(reward_number(reward)) is float


def test_a_reward_that_is_not_one_number_is_shown() -> None:
    for reward, shown in (
        (np.array([1.0, 2.0]), r"\[1\. 2\.\]"),
        (None, "None"),
        ("much", "'much'"),
        ([1], r"\[1\]"),
    ):
        with pytest.raises(EnvError, match=f"its reward is {shown}; it must be one number"):
            reward_number(reward)


def test_observations_outside_of_their_box_are_found_but_for_rounding() -> None:
    space = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 5], np.float32))
    inside = np.array([[[1.00001, -1e9], [-1.0, 5.0001]]], np.float32)
    assert outside(space, inside) == ""
    inside[0, 1, 1] = 7.5
    assert outside(space, inside) == "7.5 at [1], where its space goes from -inf to 5"
    assert outside(spaces.Discrete(3), inside) == ""
    assert "3 at []" in outside(spaces.Box(0, 1, ()), np.array([[3.0]], np.float32))


IMAGE = np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3)
CASES: dict[str, tuple[spaces.Space[Any], Any, ObsSpec, Any]] = {
    "Box 1-D": (
        spaces.Box(-1, 1, (3,)),
        np.array([0.5, 0, -1], np.float32),
        ObsSpec((3,), "<f4"),
        [0.5, 0, -1],
    ),
    "Box of doubles": (
        spaces.Box(-1, 1, (2,), np.float64),
        np.array([0.5, 0.25]),
        ObsSpec((2,), "<f4"),
        [0.5, 0.25],
    ),
    "Box 0-d": (spaces.Box(-1, 1, ()), np.float32(0.5), ObsSpec((1,), "<f4"), [0.5]),
    "Box 2-D": (
        spaces.Box(0, 9, (2, 3)),
        np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        ObsSpec((6,), "<f4"),
        [1, 2, 3, 4, 5, 6],
    ),
    "Box of whole numbers": (
        spaces.Box(0, 99, (3,), np.int64),
        np.array([1, 2, 99]),
        ObsSpec((3,), "<f4"),
        [1, 2, 99],
    ),
    "Box 4-D": (
        spaces.Box(0, 9, (1, 2, 1, 2)),
        np.ones((1, 2, 1, 2), np.float32),
        ObsSpec((4,), "<f4"),
        [1] * 4,
    ),
    "image hwc": (spaces.Box(0, 255, (8, 9, 3), np.uint8), IMAGE, ObsSpec((8, 9, 3), "|u1", "hwc"), IMAGE),
    "image chw": (
        spaces.Box(0, 255, (3, 8, 9), np.uint8),
        IMAGE.transpose(2, 0, 1),
        ObsSpec((3, 8, 9), "|u1", "chw"),
        IMAGE.transpose(2, 0, 1),
    ),
    "image of floats": (
        spaces.Box(0, 1, (8, 9, 3)),
        IMAGE.astype(np.float32) / 255,
        ObsSpec((8, 9, 3), "<f4", "hwc"),
        IMAGE.astype(np.float32) / 255,
    ),
    "board of booleans": (
        spaces.Box(0, 1, (10, 10, 4), bool),
        np.eye(10)[..., None].repeat(4, 2).astype(bool),
        ObsSpec((10, 10, 4), "<f4", "hwc"),
        np.eye(10)[..., None].repeat(4, 2),
    ),
    "Discrete": (spaces.Discrete(4), 2, ObsSpec((4,), "<f4"), [0, 0, 1, 0]),
    "Discrete as numpy": (spaces.Discrete(4), np.int64(3), ObsSpec((4,), "<f4"), [0, 0, 0, 1]),
    "Discrete with start": (spaces.Discrete(4, start=-1), -1, ObsSpec((4,), "<f4"), [1, 0, 0, 0]),
    "MultiBinary": (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), ObsSpec((3,), "<f4"), [1, 0, 1]),
    "MultiBinary 2-D": (
        spaces.MultiBinary((2, 2)),
        np.array([[1, 0], [1, 1]], np.int8),
        ObsSpec((4,), "<f4"),
        [1, 0, 1, 1],
    ),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), ObsSpec((5,), "<f4"), [0, 1, 0, 0, 1]),
    "MultiDiscrete with start": (
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        np.array([5, 0]),
        ObsSpec((5,), "<f4"),
        [1, 0, 0, 1, 0],
    ),
    "Dict": (
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(-1, 1, (2,))}),
        {"a": np.array([0.5, -0.5], np.float32), "b": 1},
        ObsSpec((4,), "<f4"),
        [0.5, -0.5, 0, 1],
    ),
    "Tuple": (
        spaces.Tuple((spaces.Discrete(2, start=3), spaces.MultiBinary(2))),
        (4, np.array([1, 0], np.int8)),
        ObsSpec((4,), "<f4"),
        [0, 1, 1, 0],
    ),
    "nested": (
        spaces.Dict({"t": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(0, 1, (1, 2))})))}),
        {"t": (0, {"x": np.array([[0.25, 0.75]], np.float32)})},
        ObsSpec((4,), "<f4"),
        [1, 0, 0.25, 0.75],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_observations_are_described_and_encoded(case: str) -> None:
    space, obs, spec, row = CASES[case]
    assert describe(SpacesOnly(space, ANY_ACTION)).obs == spec
    assert np.array_equal(encoded(space, obs), np.asarray(row, spec.dtype))


@pytest.mark.parametrize("case", CASES)
def test_samples_of_every_space_can_be_encoded(case: str) -> None:
    space, _, spec, _ = CASES[case]
    space.seed(3)
    for _ in range(5):
        assert encoded(space, space.sample()).shape == spec.shape


def test_a_row_forgets_the_observation_before() -> None:
    space = spaces.Discrete(3)
    write = encoder(space, ObsSpec((3,), "<f4"))
    row = np.zeros(3, np.float32)
    for obs in (0, 2, 1):
        write(obs, row)
        assert row.tolist() == np.eye(3)[obs].tolist()


def test_encoded_observations_are_copies() -> None:
    obs = np.zeros(3, np.float32)
    row = encoded(spaces.Box(-1, 1, (3,)), obs)
    obs[:] = 1
    assert (row == 0).all()


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph"),
        (spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), "OneOf"),
        (spaces.Dict({"a": spaces.Text(5)}), "Text inside Dict"),
        (spaces.Tuple((spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}),)), "Sequence inside Tuple"),
    ],
)
def test_unsupported_observations_are_refused_by_name(space: spaces.Space[Any], name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        describe(SpacesOnly(space, ANY_ACTION))
    assert "MultiDiscrete" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "Dict"),
        (spaces.Tuple((spaces.Discrete(2),)), "Tuple"),
        (spaces.Box(0, 5, (2,), np.int32), "Box"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "MultiDiscrete"),
        (spaces.MultiBinary((2, 2)), "MultiBinary"),
    ],
)
def test_unsupported_actions_are_refused_by_name(space: spaces.Space[Any], name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        describe(SpacesOnly(ANY_OBS, space))
    assert "ActionWrapper" in str(caught.value)


ACTIONS: dict[str, tuple[spaces.Space[Any], ActionSpec, Any, Any]] = {
    "Discrete": (spaces.Discrete(4), ActionSpec("categorical", (4,)), [0, 3], [0, 3]),
    "Discrete with start": (spaces.Discrete(4, start=2), ActionSpec("categorical", (4,)), [0, 3], [2, 5]),
    "MultiDiscrete": (
        spaces.MultiDiscrete([2, 3]),
        ActionSpec("categorical", (2, 3)),
        [[1, 2], [0, 0]],
        [[1, 2], [0, 0]],
    ),
    "MultiDiscrete with start": (
        spaces.MultiDiscrete([2, 3], start=[10, -1]),
        ActionSpec("categorical", (2, 3)),
        [[1, 2], [0, 0]],
        [[11, 1], [10, -1]],
    ),
    "MultiBinary": (spaces.MultiBinary(3), ActionSpec("categorical", (2, 2, 2)), [[1, 0, 1]], [[1, 0, 1]]),
    "Box bounded": (
        spaces.Box(-2, 4, (2,)),
        ActionSpec("gaussian", (2,), (-2.0, -2.0), (4.0, 4.0)),
        [[0.0, -5.0], [1.0, 0.5]],
        [[1.0, -2.0], [4.0, 2.5]],
    ),
    "Box of doubles": (
        spaces.Box(-1, 1, (1,), np.float64),
        ActionSpec("gaussian", (1,), (-1.0,), (1.0,)),
        [[0.5]],
        [[0.5]],
    ),
    "Box unbounded": (
        spaces.Box(-np.inf, np.inf, (2,)),
        ActionSpec("gaussian", (2,), (-math.inf,) * 2, (math.inf,) * 2),
        [[-7.0, 9.0]],
        [[-7.0, 9.0]],
    ),
    "Box 2-D": (
        spaces.Box(0, 1, (2, 2)),
        ActionSpec("gaussian", (4,), (0.0,) * 4, (1.0,) * 4),
        [[-1.0, 0.0, 1.0, 3.0]],
        [[[0.0, 0.5], [1.0, 1.0]]],
    ),
}


@pytest.mark.parametrize("case", ACTIONS)
def test_actions_are_described_and_decoded(case: str) -> None:
    space, spec, stored, expected = ACTIONS[case]
    assert describe(SpacesOnly(ANY_OBS, space)).action == spec
    actions = decoder(space, spec)(np.asarray(stored, spec.dtype))
    assert len(actions) == len(expected)
    for action, wanted in zip(actions, expected, strict=True):
        assert space.contains(action)
        assert np.array_equal(action, wanted)


@pytest.mark.parametrize("case", ACTIONS)
def test_whatever_a_policy_samples_is_inside_the_action_space(case: str) -> None:
    space, spec, _, _ = ACTIONS[case]
    rng = np.random.default_rng(1)
    outputs = rng.normal(0, 3, (50, spec.outputs)).astype(np.float32)
    stored = spec.choose(outputs, np.zeros(spec.outputs, np.float32), spec.noise(rng, 50))
    assert stored.shape[1:] == spec.shape
    assert all(space.contains(action) for action in decoder(space, spec)(stored))


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(4, np.float32)),
        (spaces.Box(-1, 1, (3,)), np.zeros((1, 3), np.float32)),
        (spaces.Box(-1, 1, (3,)), np.zeros((), np.float32)),
        (spaces.Box(-1, 1, (2, 3)), np.zeros((3, 2), np.float32)),
        (spaces.Box(-1, 1, (2, 3)), np.zeros(6, np.float32)),
        (spaces.Box(-1, 1, (3,)), [0.0, 0.0, 0.0]),
        (spaces.Box(-1, 1, (3,)), None),
        (spaces.Box(-1, 1, (3,)), "text"),
        (spaces.Box(-1, 1, (1,)), np.array(["1"])),
        (spaces.Box(-1, 1, (1,)), np.array([1j])),
        (spaces.Box(-1, 1, (1,)), np.array([None])),
        (spaces.Box(0, 255, (8, 9, 3), np.uint8), np.zeros((9, 8, 3), np.uint8)),
        (spaces.Box(0, 255, (8, 9, 3), np.uint8), np.full((8, 9, 3), 0.5)),
        (spaces.Box(0, 255, (8, 9, 3), np.uint8), np.full((8, 9, 3), 300)),
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3, start=1), 0),
        (spaces.Discrete(3), None),
        (spaces.Discrete(3), "x"),
        (spaces.Discrete(3), 1.5),
        (spaces.Discrete(3), np.zeros(2)),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8)),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 2])),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 0}),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 2}),
        (spaces.Tuple((spaces.Discrete(2),)), (0, 0)),
    ],
)
def test_observations_of_a_wrong_shape_or_dtype_are_refused(space: spaces.Space[Any], obs: Any) -> None:
    with pytest.raises(EnvError, match="observation space"):
        encoded(space, obs)


def test_floats_of_another_width_are_accepted() -> None:
    assert encoded(spaces.Box(-1, 1, (2,)), np.array([0.5, 0.25], np.float64)).tolist() == [0.5, 0.25]
    assert encoded(spaces.Box(-9, 9, (2,)), np.array([1, 2])).tolist() == [1, 2]


def test_the_threshold_comes_from_the_registration() -> None:
    env = make(EnvConfig("CartPole-v1"))
    assert describe(env).threshold == 475.0
    assert describe(Clock()).threshold is None
    env.close()


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", ["CartPol-v1", "did you mean CartPole-v1"]),
        ("lunarlander-v3", ["LunarLander-v3"]),
        ("CartPole-v99", ["CartPole-v99", "CartPole-v1"]),
        ("qqqqqqqqqqq", ["qqqqqqqqqqq", "module:callable"]),
        ("", ["''"]),
        ("no space allowed", ["no space allowed"]),
        ("nobody/knows-v0", ["nobody/knows-v0"]),
        ("no_such_module:Cart-v0", ["no_such_module"]),
    ],
)
def test_an_unknown_environment_is_refused_with_a_hint(env_id: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        make(EnvConfig(env_id))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="no_such_argument"):
        make(EnvConfig("CartPole-v1", {"no_such_argument": 1}))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module:make", "no_such_module"),
        ("toys:no_such_name", "no_such_name"),
        ("toys:Clock.no_such_part", "no_such_part"),
        ("toys:LONGEST", "not a callable"),
        ("toys:", "toys:"),
        (":Clock", ":Clock"),
        ("builtins:dict", "dict, not a gymnasium.Env"),
    ],
)
def test_callables_that_make_no_environment_are_refused(path: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(EnvConfig(path))


def test_a_callable_that_raises_is_named_with_what_it_raised() -> None:
    with pytest.raises(EnvError, match=r"toys:length_of.*TypeError.*seed"):
        make(EnvConfig("toys:length_of"))


def test_callables_make_environments_with_their_arguments() -> None:
    assert isinstance(make(EnvConfig("toys:Clock")), Clock)
    space = spaces.Discrete(3)
    env = make(EnvConfig("toys:SpacesOnly", {"observation_space": space}), action_space=ANY_ACTION)
    assert env.observation_space is space
    assert isinstance(make(EnvConfig("any name"), Clock), gymnasium.Env)
