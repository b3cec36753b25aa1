"""Every setting says what it is and where its value comes from; one's own recipes win."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed_packages import install
from rich.console import Console

from manyhands.cli.settings import Row, as_yaml, rows_of, tables
from manyhands.config.algorithms import BUILT_IN, find
from manyhands.config.recipe_files import RECIPES_VARIABLE
from manyhands.config.resolve import merge, parse_override, recipe, resolve, resolve_with_sources
from manyhands.config.sentences import sections_of, sentences, settings_of
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError

MINE = """\
default_algo: a2c
all: {run: {steps: 77000}}
a2c: {algo: {learning_rate: 5.0e-4}, net: {hidden: [32]}}
"""


def test_sentences_are_those_under_the_fields_and_a_subclass_keeps_its_base_ones() -> None:
    found = sentences(find("reinforce").config)
    assert found["epochs"].startswith("Passes of the value network over each batch; the policy")
    assert found["gamma"] == "Discount of future rewards."
    assert found["gae_lambda"].startswith("How far advantages look ahead"), "it has another default here"
    assert "\n" not in "".join(found.values())


def test_the_sentence_of_a_class_that_no_file_holds_is_missing_and_nothing_fails() -> None:
    typed: dict[str, Any] = {}
    code = "from dataclasses import dataclass\n@dataclass\nclass Typed:\n    a: int = 1\n    '''Said.'''\n"
    exec(code, typed)
    assert sentences(typed["Typed"]) == {}


@pytest.mark.parametrize("algo", BUILT_IN)
def test_every_setting_has_a_sentence_and_is_where_its_section_says(algo: str) -> None:
    settings = list(settings_of(algo))
    plain = Config.from_plain({"run": {"algo": algo}}).to_plain()
    assert [setting.path for setting in settings] == [
        f"{section}.{name}" for section, values in plain.items() for name in values
    ]
    assert [setting.path for setting in settings if not setting.sentence.endswith(".")] == []
    for setting in settings:
        default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        if setting.path != "run.algo":
            assert plain[setting.section][setting.name] == default
        assert " object at " not in setting.kind
        assert "typing" not in setting.kind


def test_every_layer_is_named_by_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algo: {gamma: 0.5, clip: 0.3}\nenv: {id: Other-v0}\n")
    found = resolve_with_sources("LunarLander-v3", None, file, (parse_override("algo.gamma=0.25"),))
    sources = found.sources
    assert (found.config.algo.gamma, sources["algo.gamma"]) == (0.25, "--set")
    assert (found.config.algo.clip, sources["algo.clip"]) == (0.3, str(file))
    assert (found.config.env.id, sources["env.id"]) == ("LunarLander-v3", "ENV")
    assert sources["algo.epochs"] == sources["run.algo"] == "recipe LunarLander.yaml"
    assert "algo.entropy" not in sources
    assert found.config == resolve("LunarLander-v3", None, file, (parse_override("algo.gamma=0.25"),))


def test_general_settings_and_the_argument_for_the_algorithm_are_sources() -> None:
    found = resolve_with_sources("LunarLander-v3", "dqn").sources
    assert found["run.algo"] == "--algo"
    assert resolve_with_sources("NobodyTunedThis-v0").sources["net.normalise"] == "general settings of ppo"
    assert resolve_with_sources(None, "dqn").sources["net.hidden"] == "general settings of dqn"
    assert "env.id" not in resolve_with_sources(None).sources
    cores = resolve_with_sources("CartPole-v1", "a3c", overrides=({"run": {"workers": 3}},))
    assert (cores.config.collect.shards, cores.sources["collect.shards"]) == (3, "a3c")


def test_a_file_names_the_environment_and_a_run_of_cores_begins_again_from_its_own(tmp_path: Path) -> None:
    first = resolve("CartPole-v1", "a3c", overrides=({"run": {"workers": 2}},))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(first.to_plain()))
    again = resolve_with_sources(None, None, file)
    assert again.config == first
    assert again.sources["env.id"] == str(file)
    with pytest.raises(UsageError, match=r"leave collect\.\* out"):
        resolve("CartPole-v1", "a3c", overrides=({"collect": {"shards": 3}},))


def test_a_recipe_of_ones_own_wins_by_option_and_by_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "LunarLander.yaml").write_text(MINE)
    found = resolve_with_sources("LunarLander-v3", recipes=tmp_path)
    config = found.config
    assert (config.run.algo, config.run.steps, config.algo.learning_rate) == ("a2c", 77_000, 5e-4)
    assert config.net.hidden == (32,)
    assert found.sources["net.hidden"] == f"recipe {tmp_path}/LunarLander.yaml"
    assert resolve("LunarLander-v3").run.algo == "ppo"
    assert resolve("CartPole-v1", recipes=tmp_path) == resolve("CartPole-v1"), "others stay"
    monkeypatch.setenv(RECIPES_VARIABLE, str(tmp_path))
    assert resolve("LunarLander-v3") == config
    empty = tmp_path / "empty"
    empty.mkdir()
    assert resolve("LunarLander-v3", recipes=empty).run.algo == "ppo", "the option wins over the variable"


def test_an_environment_of_ones_own_has_the_recipe_of_its_callable(tmp_path: Path) -> None:
    (tmp_path / "Robot.yaml").write_text(MINE)
    assert resolve("my_envs:Robot", recipes=tmp_path).run.algo == "a2c"
    assert resolve("my_envs:Robots", recipes=tmp_path).run.algo == "ppo"
    assert recipe("my_envs:CartPole", None, tmp_path) == ()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "my_envs:Grid-v2"])
def test_a_recipe_may_be_named_after_the_whole_id(tmp_path: Path, env_id: str) -> None:
    name = env_id.rpartition(":")[2].rpartition("/")[2]
    (tmp_path / f"{name}.yaml").write_text("default_algo: dqn")
    assert resolve(env_id, recipes=tmp_path).run.algo == "dqn"
    shorter = "Atari" if env_id.startswith("ALE/") else name.partition("-")[0]
    (tmp_path / f"{shorter}.yaml").write_text("default_algo: a2c")
    assert resolve(env_id, recipes=tmp_path).run.algo == "dqn", "the whole id wins"


def test_a_recipe_of_ones_own_lies_on_top_of_the_general_settings(tmp_path: Path) -> None:
    (tmp_path / "Robot.yaml").write_text("default_algo: ppo\nppo: {algo: {learning_rate: 5.0e-4}}")
    found = resolve_with_sources("my_envs:Robot", recipes=tmp_path)
    assert found.config.net.normalise
    assert found.config.algo.normalise_reward
    assert found.sources["net.normalise"] == "general settings of ppo"
    assert found.sources["algo.learning_rate"] == f"recipe {tmp_path}/Robot.yaml"
    (tmp_path / "Robot.yaml").write_text("default_algo: ppo\nall: {net: {normalise: false}}")
    found = resolve_with_sources("my_envs:Robot", recipes=tmp_path)
    assert not found.config.net.normalise
    assert found.sources["net.normalise"] == f"recipe {tmp_path}/Robot.yaml"
    (tmp_path / "CartPole.yaml").write_text("default_algo: ppo\nppo: {algo: {learning_rate: 5.0e-4}}")
    assert not resolve("CartPole-v1", recipes=tmp_path).net.normalise, "as the built-in one"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("ppo: {algo: {gamma: 0.5}}", ["default_algo"]),
        ("default_algo: pppo", ["pppo", "did you mean ppo"]),
        ("default_algo: ppo\npp0: {algo: {gamma: 1}}", ["'pp0'", "did you mean ppo"]),
        ("default_algo: ppo\nppo: {algo: {gama: 1}}", ["algo.gama", "did you mean algo.gamma"]),
        ("default_algo: ppo\nppo: {algo: {gamma: 7}}", ["algo.gamma", "between 0 and 1"]),
        ("default_algo: ppo\nppo: {alog: {gamma: 1}}", ["alog", "did you mean algo"]),
        ("default_algo: ppo\nppo: 3", ["ppo must hold sections"]),
        ("default_algo: ppo\nall: 3", ["all must hold sections"]),
        ("default_algo: ppo\nall: {run: 3}", ["'run' must hold settings"]),
        ("default_algo: [ppo", ["cannot be read as YAML"]),
        ("- ppo", ["must hold sections"]),
        ("", ["default_algo"]),
    ],
)
def test_what_is_wrong_with_a_recipe_is_told_by_its_file(
    tmp_path: Path, content: str, said: list[str]
) -> None:
    file = tmp_path / "CartPole.yaml"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        resolve("CartPole-v1", recipes=tmp_path)
    for word in [str(file), *said]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_of_recipes_that_is_none_is_refused_by_how_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--recipes is nowhere, which is not a directory"):
        resolve("CartPole-v1", recipes=Path("nowhere"))
    monkeypatch.setenv(RECIPES_VARIABLE, "nowhere")
    with pytest.raises(UsageError, match="MANYHANDS_RECIPES is nowhere"):
        resolve("CartPole-v1")


def test_recipes_of_installed_packages_fill_gaps_and_change_nothing_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"plugged_recipes/{name}": MINE for name in ("Gap.yaml", "CartPole.yaml")}
    files["plugged_recipes/__init__.py"] = ""
    points = {"manyhands.recipes": ["mine = plugged_recipes"]}
    install(tmp_path, monkeypatch, "first", files, points)
    found = resolve_with_sources("Gap-v0")
    assert found.config.run.algo == "a2c"
    assert found.sources["net.hidden"] == "recipe Gap.yaml of plugged_recipes"
    assert resolve("CartPole-v1").run.algo == "ppo"
    more = {"other_recipes/Gap.yaml": MINE, "other_recipes/__init__.py": ""}
    install(tmp_path, monkeypatch, "second", more, {"manyhands.recipes": ["other = other_recipes"]})
    with pytest.raises(UsageError, match=r"other_recipes and plugged_recipes both have a recipe Gap\.yaml"):
        resolve("Gap-v0")
    (tmp_path / "Gap.yaml").write_text(MINE)
    assert resolve("Gap-v0", recipes=tmp_path).run.algo == "a2c"


def drawn(width: int) -> list[str]:
    found = resolve_with_sources("LunarLander-v3", overrides=(parse_override("net.hidden=[7, 7]"),))
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(tables(list(rows_of(found.config, found.sources)), "ppo", width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_table_stands_beside_its_sentences_or_above_them() -> None:
    wide = drawn(120)
    assert max(map(len, wide)) <= 120
    (line,) = [line for line in wide if line.startswith("net.hidden")]
    assert line.split(None, 1)[1].rstrip().startswith("[7, 7]")
    assert "--set" in line
    assert "Sizes of the dense layers" in line
    narrow = drawn(80)
    assert max(map(len, narrow)) <= 80
    (place,) = [i for i, line in enumerate(narrow) if line.startswith("net.hidden")]
    assert narrow[place + 1].strip().startswith("Sizes of the dense layers")
    for section in sections_of("ppo"):
        assert any(line.startswith(f"{section}  ") for line in narrow)


def test_values_are_written_as_they_are_typed_behind_set() -> None:
    for value in (3, 0.5, 1e-5, True, None, "text", [64, 64], {"a": [1]}, (1, 2)):
        written = as_yaml(value)
        (back,) = parse_override(f"a.b={written}").values()
        assert back["b"] == (list(value) if isinstance(value, tuple) else value)
    assert as_yaml((64, 64)) == "[64, 64]"


def test_a_recipes_name_is_left_out_of_its_rows() -> None:
    setting = next(settings_of("ppo"))
    assert Row(setting, 1, "recipe some/where.yaml").short_source == "recipe"
    assert Row(setting, 1, "some/file with spaces.yaml").short_source == "some/file with spaces.yaml"


def test_merging_keeps_what_later_layers_do_not_name() -> None:
    layers = recipe("LunarLander-v3", None)
    assert merge(*(layer.plain for layer in layers))["run"]["algo"] == "ppo"
