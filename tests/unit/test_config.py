"""Wrong settings are refused by name, with what is allowed and what was probably meant."""

import math
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from manyhands.algos.on_policy import OnPolicy, OnPolicyConfig
from manyhands.config import algorithms
from manyhands.config.algorithms import BUILT_IN
from manyhands.config.plain_yaml import read_yaml
from manyhands.config.resolve import merge, parse_override, recipe, resolve
from manyhands.config.settings import Config, NetConfig
from manyhands.core.errors import UsageError
from manyhands.envs import lto  # noqa: F401 (which registers its environment)


def refused(plain: Any, *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Config.from_plain(plain)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message


def test_an_unknown_section_is_refused_with_the_near_one() -> None:
    refused({"algos": {}}, "'algos'", "did you mean algo?", "collect")
    refused({"nothing like it": {}}, "'nothing like it'", "algo, collect, env, net, run")


def test_a_section_named_by_a_number_is_refused() -> None:
    refused({1: {}}, "1", "algo")


def test_an_unknown_setting_is_refused_with_the_near_one() -> None:
    refused({"algo": {"learning_rat": 1}}, "algo.learning_rat", "did you mean algo.learning_rate?")
    refused({"run": {"zzz": 1}}, "run.zzz", "max_lag", "workers")
    refused({"net": {3: 1}}, "net.3")
    refused({"run": {"mode": "asinc"}}, "run.mode is 'asinc'", "did you mean async")


def test_a_setting_in_place_of_a_section_is_refused_with_how_it_is_given() -> None:
    for given in ({"gamma": 0.9}, {"algo.gamma": 0.9}):
        refused(given, 'write {"algo": {"gamma": 0.9}}')
    refused({"steps": 100}, 'write {"run": {"steps": 100}}')
    refused({"collect.steps": 8}, 'write {"collect": {"steps": 8}}')
    refused({"double": True}, 'write {"algo": {"double": true}}')
    refused({"alg.gamma": 0.9}, "there is no section 'alg.gamma'")


def test_what_is_wrong_in_a_file_is_told_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for text, said in (
        ("algo: {gama: 0.9}", r"run.yaml: there is no setting algo.gama; did you mean algo.gamma\?"),
        ("algo: {gamma: 2}", "run.yaml: algo.gamma is 2"),
        ("gamma: 0.9", 'run.yaml: there is no section .*write {"algo": {"gamma": 0.9}}'),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            resolve("CartPole-v1", "ppo", file)
    file.write_text("algo: {gamma: 0.9}")
    for wrong, said in (({"algo": {"gama": 1}}, "^there is no setting"), ({"algos": {}}, "^there is no sec")):
        with pytest.raises(UsageError, match=said):
            resolve("CartPole-v1", "ppo", file, (wrong,))


def test_a_setting_of_another_algorithm_is_unknown() -> None:
    refused({"run": {"algo": "a2c"}, "algo": {"clip": 0.1}}, "a2c has no setting algo.clip; ppo has it")
    refused({"algo": {"double": True}}, "ppo has no setting algo.double; dqn, apex and adqn have it")
    assert Config.from_plain({"run": {"algo": "ppo"}, "algo": {"clip": 0.1}}).algo.clip == 0.1  # type: ignore[attr-defined]


def test_an_unknown_algorithm_is_refused_with_the_near_one() -> None:
    refused({"run": {"algo": "impalla"}}, "impalla", "ppo, a2c, reinforce, impala", "did you mean impala?")
    with pytest.raises(UsageError, match="did you mean ppo"):
        resolve("CartPole-v1", "pppo")


@pytest.mark.parametrize("algo", [["ppo"], {"a": 1}, 5, True, None])
def test_an_algorithm_that_is_no_text_is_refused(algo: Any) -> None:
    with pytest.raises(UsageError, match=r"run\.algo"):
        resolve("CartPole-v1", overrides=({"run": {"algo": algo}},))


@pytest.mark.parametrize("section", [None, 5, "text", [1]])
@pytest.mark.parametrize("name", ["env", "net", "collect", "algo", "run"])
def test_a_section_that_holds_no_settings_is_refused(name: str, section: Any) -> None:
    refused({name: section}, repr(name))
    with pytest.raises(UsageError, match=name):
        resolve("CartPole-v1", "ppo", overrides=({name: section},))


@pytest.mark.parametrize(
    ("section", "name", "value", "allowed"),
    [
        ("run", "steps", "many", "a whole number"),
        ("run", "steps", 1.5, "a whole number"),
        ("run", "steps", True, "a whole number"),
        ("run", "steps", None, "a whole number"),
        ("run", "steps", [1], "a whole number"),
        ("run", "steps", math.inf, "a whole number"),
        ("algo", "gamma", "high", "a number"),
        ("algo", "gamma", False, "a number"),
        ("algo", "gamma", {}, "a number"),
        ("algo", "anneal", 1, "true or false"),
        ("algo", "anneal", "yes", "true or false"),
        ("env", "id", 3, "text"),
        ("env", "kwargs", [1], "a mapping"),
        ("net", "hidden", "64", "a list such as [64, 64]"),
        ("net", "hidden", [64, "x"], "a whole number"),
        ("net", "hidden", [64, 1.5], "a whole number"),
        ("net", "activation", "gelu", "one of tanh, relu"),
        ("run", "mode", "fast", "one of sync, pipelined, async"),
        ("run", "until", True, "one of solved, steps"),
        ("run", "solved_at", "high", "a number or null"),
    ],
)
def test_wrong_types_are_refused(section: str, name: str, value: Any, allowed: str) -> None:
    refused({section: {name: value}}, f"{section}.{name}", allowed)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("algo", "gamma", 1.01),
        ("algo", "gamma", -0.1),
        ("algo", "gamma", math.nan),
        ("algo", "gae_lambda", 2),
        ("algo", "learning_rate", 0),
        ("algo", "learning_rate", -1e-3),
        ("algo", "learning_rate", math.nan),
        ("algo", "learning_rate", math.inf),
        ("algo", "entropy", -1),
        ("algo", "clip", 0),
        ("algo", "epochs", 0),
        ("algo", "minibatch", -5),
        ("algo", "threads", 0),
        ("algo", "target_kl", -0.1),
        ("collect", "shards", 0),
        ("collect", "lanes", -1),
        ("collect", "steps", 0),
        ("net", "hidden", [0]),
        ("net", "hidden", [64, 10**6]),
        ("net", "log_std", math.nan),
        ("net", "log_std", math.inf),
        ("run", "workers", -2),
        ("run", "workers", 5000),
        ("run", "seed", -1),
        ("run", "seed", 2**63),
        ("run", "steps", 0),
        ("run", "test_every", 0),
        ("run", "test_episodes", 0),
        ("run", "test_episodes", 200_000),
        ("run", "margin", -1),
        ("run", "max_lag", -1),
        ("run", "max_faults", -1),
        ("run", "hang_timeout", 0),
        ("run", "hang_timeout", math.nan),
        ("run", "solved_at", math.inf),
    ],
)
def test_impossible_numbers_are_refused(section: str, name: str, value: Any) -> None:
    refused({section: {name: value}}, f"{section}.{name}")


def test_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    for text, number in (("1e-3", 1e-3), ("3E-4", 3e-4), ("1", 1.0), ("1.5e-3", 1.5e-3)):
        plain = merge(parse_override(f"algo.learning_rate={text}"), parse_override("run.steps=2e6"))
        config = Config.from_plain(plain)
        assert config.algo.learning_rate == number
        assert (config.run.steps, type(config.run.steps)) == (2_000_000, int)


def test_whole_numbers_become_fractions_where_fractions_are_asked_for() -> None:
    config = Config.from_plain({"algo": {"gamma": 1}, "run": {"solved_at": 200}})
    assert type(config.algo.gamma) is float
    assert type(config.run.solved_at) is float


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gamma",
        "gamma=1",
        "algo.gamma",
        "=1",
        ".=1",
        "algo.=1",
        ".gamma=1",
        "a.b.c=1",
        "algo.gamma=[1",
        "env.kwargs={a",
    ],
)
def test_overrides_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_override(text)


def test_an_override_that_looks_like_an_impossible_date_is_refused() -> None:
    with pytest.raises(UsageError):
        Config.from_plain(parse_override("run.seed=2021-13-45"))


def test_overrides_are_yaml_values() -> None:
    assert parse_override("net.hidden=[8, 8]") == {"net": {"hidden": [8, 8]}}
    assert parse_override("env.kwargs={is_slippery: false}") == {"env": {"kwargs": {"is_slippery": False}}}
    assert parse_override("run.solved_at=") == {"run": {"solved_at": None}}
    assert parse_override("env.id=a=b") == {"env": {"id": "a=b"}}


@pytest.mark.parametrize("algo", BUILT_IN)
def test_configs_come_back_from_plain_data_and_from_yaml(algo: str) -> None:
    config = Config.from_plain(
        {
            "run": {"algo": algo, "seed": 2**63 - 1, "solved_at": -3.5, "mode": "async"},
            "env": {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False, "desc": ["SF", "HG"]}},
            "net": {"hidden": [3, 5, 7], "activation": "relu"},
            "algo": {"learning_rate": 1e-7},
        }
    )
    assert type(config.algo) is algorithms.find(algo).config
    assert Config.from_plain(config.to_plain()) == config
    assert Config.from_plain(yaml.safe_load(yaml.safe_dump(config.to_plain()))) == config


@pytest.mark.parametrize("algo", BUILT_IN)
def test_defaults_come_back_from_plain_data(algo: str) -> None:
    config = Config.from_plain({"run": {"algo": algo}})
    assert config == Config.from_plain(config.to_plain())
    assert Config() == Config.from_plain({})


def test_configs_are_frozen_and_checked_when_made() -> None:
    with pytest.raises(AttributeError):
        Config().run.seed = 3  # type: ignore[misc]
    with pytest.raises(UsageError, match="gamma"):
        OnPolicyConfig(gamma=2)
    with pytest.raises(UsageError, match="hidden"):
        NetConfig(hidden=(-1,))


RECIPES = sorted(
    file.name.removesuffix(".yaml")
    for file in resources.files("manyhands.config.recipes").iterdir()
    if file.name.endswith(".yaml")
)


def ids_of(name: str) -> list[str]:
    """The environments that a recipe file is chosen for."""
    families = {"Atari": ["ALE/Pong-v5", "MsPacmanNoFrameskip-v4"], "MinAtar": ["MinAtar/Asterix-v1"]}
    if name in families:
        return families[name]
    return [i for i in gymnasium.registry if i.rpartition("/")[2].rpartition("-v")[0] == name]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_for_its_environment(name: str) -> None:
    ids = ids_of(name)
    assert ids, f"no environment is called {name}"
    plain = read_yaml(Path(str(resources.files("manyhands.config.recipes") / f"{name}.yaml")))
    assert set(plain) <= {"default_algo", "all", *BUILT_IN}
    assert plain["default_algo"] in BUILT_IN
    assert resolve(ids[-1]).run.algo == plain["default_algo"]
    for algo in set(plain) & set(BUILT_IN):
        config = resolve(ids[-1], algo)
        assert config.run.algo == algo
        assert config.env.id == ids[-1]
        for section, settings in plain[algo].items():
            for setting, value in settings.items():
                found = getattr(getattr(config, section), setting)
                assert found == (tuple(value) if isinstance(value, list) else value)


def test_a_recipe_is_not_chosen_for_another_environment_or_a_callable() -> None:
    assert recipe("LunarLander-v3", None)
    assert recipe("LunarLander-v2", None)
    assert recipe("LunarLande-v3", None) == ()
    assert recipe("module:LunarLander-v3", None) == ()
    assert recipe("", None) == ()


def test_environments_without_a_recipe_get_the_general_settings() -> None:
    config = resolve("NobodyTunedThis-v0")
    assert config.net.normalise
    assert config.algo.normalise_reward
    assert OnPolicy.general["net"]["normalise"]
    for algo, epsilon in (("dqn", 0.05), ("apex", 0.4)):
        values = resolve("NobodyTunedThis-v0", algo)
        assert values.algo.epsilon == epsilon  # type: ignore[union-attr]
        assert values.net.normalise


def test_files_win_over_recipes_and_overrides_win_over_files(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("algo: {gamma: 0.5, learning_rate: 1e-2}\nrun: {seed: 4}\n")
    config = resolve("LunarLander-v3", None, file, (parse_override("algo.gamma=0.25"),))
    assert (config.algo.gamma, config.algo.learning_rate, config.run.seed) == (0.25, 1e-2, 4)
    assert config.env.id == "LunarLander-v3"
    by_file = tmp_path / "algo.yaml"
    by_file.write_text("run: {algo: a2c}\n")
    assert resolve("LunarLander-v3", None, by_file).run.algo == "a2c"


def test_environment_arguments_are_replaced_not_mixed() -> None:
    first, second = {"env": {"kwargs": {"a": 1}}}, {"env": {"kwargs": {"b": 2}}}
    assert merge(first, second) == {"env": {"kwargs": {"b": 2}}}


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"just text", b"[1, 2]", b"a: 2021-13-45"])
def test_files_that_hold_no_sections_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.yaml"):
        read_yaml(file)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml"):
        read_yaml(tmp_path / "missing.yaml")
    (tmp_path / "empty.yaml").touch()
    assert read_yaml(tmp_path / "empty.yaml") == {}
