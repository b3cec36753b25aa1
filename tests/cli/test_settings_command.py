"""`manyhands settings` and `manyhands recipe` as a person types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_cli import call, refused

from manyhands.config.resolve import resolve
from manyhands.runs import store


def test_settings_are_lines_for_grep_and_one_list_as_json(tmp_path: Path) -> None:
    words = ("settings", "LunarLander-v3", "--set", "net.hidden=[7]")
    shown = call(*words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("net.hidden")]
    assert line.split()[1:3] == ["[7]", "--set"]
    assert line.endswith("Sizes of the dense layers (after the convolutions, for images).")
    listed = json.loads(call(*words, "--json", cwd=tmp_path).stdout)
    assert [each["setting"] for each in listed] == [line.split()[0] for line in shown.stdout.splitlines()]
    (epochs,) = [each for each in listed if each["setting"] == "algo.epochs"]
    assert (epochs["value"], epochs["default"]) == (8, 4)
    assert epochs["source"] == "recipe LunarLander.yaml"
    assert epochs["sentence"] == "Passes over each batch."


def test_a_printed_recipe_trains_the_same_with_config(tmp_path: Path) -> None:
    for algo in ("ppo", "dqn"):
        printed = call("recipe", "CartPole-v1", "--algo", algo, cwd=tmp_path).stdout
        file = tmp_path / "mine.yaml"
        file.write_text(printed)
        assert yaml.safe_load(printed)["env"] == {"id": "CartPole-v1"}
        plain = yaml.safe_load(printed)
        assert resolve(plain["env"]["id"], None, file) == resolve("CartPole-v1", algo)
    done = call("train", "--config", "mine.yaml", "--steps", "512", "--dir", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = call("settings", "--config", "run/config.yaml", "--json", cwd=tmp_path)
    (steps,) = [each for each in json.loads(again.stdout) if each["setting"] == "run.steps"]
    assert (steps["value"], steps["source"]) == (512, "run/config.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["settings", "LunarLandr-v3"], ["LunarLandr-v3", "did you mean LunarLander-v3"]),
        (["settings", "--algo", "pppo"], ["did you mean ppo"]),
        (["settings", "CartPole-v1", "--set", "algo.gama=1"], ["did you mean algo.gamma"]),
        (["settings", "CartPole-v1", "--recipes", "nowhere"], ["--recipes is nowhere"]),
        (["recipe"], ["ENV", "manyhands recipe --help"]),
        (["recipe", "LunarLandr-v3"], ["did you mean LunarLander-v3"]),
        (["settings", "--config", "none.yaml"], ["none.yaml"]),
    ],
)
def test_wrong_calls_are_one_line(tmp_path: Path, words: list[str], said: list[str]) -> None:
    refused(call(*words, cwd=tmp_path), 2, *said)


def listed(*words: str, cwd: Path) -> dict[str, tuple[object, str]]:
    done = call("settings", *words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}


def test_options_of_train_are_taken_and_named_as_sources(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--seed", "3", "--steps", "1e5", "--cpus-per-worker", "2", "--barrier", "off"]
    found = listed(*words, "--algo", "a3c", cwd=tmp_path)
    assert found["run.seed"] == (3, "--seed")
    assert found["run.steps"] == (100_000, "--steps")
    assert found["run.cpus_per_worker"] == (2.0, "--cpus-per-worker")
    assert found["run.mode"] == ("async", "--barrier")
    refused(call("settings", "CartPole-v1", "--mode", "sync", "--barrier", "on", cwd=tmp_path), 2, "give one")


def test_only_what_differs_from_the_defaults_is_listed_when_asked_for(tmp_path: Path) -> None:
    whole, changed = listed("CartPole-v1", cwd=tmp_path), listed("CartPole-v1", "--changed", cwd=tmp_path)
    assert changed.items() < whole.items()
    assert "env.id" not in changed, "it is the default"
    assert changed == {name: whole[name] for name in changed}
    given = listed("--changed", "--seed", "0", "--set", "net.hidden=[64, 64]", "--workers", "1", cwd=tmp_path)
    assert given["run.workers"] == (1, "--workers")
    assert not {"run.seed", "net.hidden", "run.algo"} & set(given), "their values are the defaults"


def test_the_settings_of_a_run_are_shown_by_its_name_or_path(tmp_path: Path) -> None:
    run = store.create(tmp_path / "runs" / "mine", resolve("CartPole-v1", "dqn"))
    for name in ("mine", "runs/mine", str(run.path)):
        found = listed(name, cwd=tmp_path)
        assert found["run.algo"][0] == "dqn"
        assert found["algo.batch"][1].endswith("mine/config.yaml")
    refused(call("settings", "mine", "--config", "x.yaml", cwd=tmp_path), 2, "mine is a run")
    refused(call("settings", "nothing", cwd=tmp_path), 2, "there is no environment 'nothing'")


@pytest.mark.parametrize("more", ["", "--json"])
def test_a_reader_who_has_had_enough_is_no_error(tmp_path: Path, more: str) -> None:
    command = f"{sys.executable} -m manyhands settings CartPole-v1 {more} | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_help_of_all_commands_imports_little(tmp_path: Path) -> None:
    code = "import sys; from manyhands.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'numpy', 'torch', 'yaml', 'rich', 'importlib.metadata'} & set(sys.modules)\n"
    code += "print(*heavy, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "settings" in done.stdout
    assert done.stderr.strip() == ""


def test_help_tells_the_sentences_and_defaults_of_the_fields(tmp_path: Path) -> None:
    shown = " ".join(call("train", "--help", cwd=tmp_path, COLUMNS="200").stdout.split())
    assert "stop after the update that reaches this many environment steps (default: 1,000,000, or" in shown
    assert "(sync, pipelined or async; default: pipelined, or the recipe's)" in shown
    assert "lag bounded, not reproducible" in shown
