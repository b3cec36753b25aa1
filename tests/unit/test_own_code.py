"""A user's own code that is not found: what its module has, where it was, how to give it again."""

from pathlib import Path

import pytest
from short_runs import short_run

import manyhands
from manyhands.cli import main as cli
from manyhands.core.errors import RunError, UsageError
from manyhands.envs.importing import imported


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_parts.py:Shape", r"leave out \.py: own_parts:Shape$"),
        ("some/where/own_parts.py:Shape", r"leave out \.py: own_parts:Shape, in the directory some/where"),
        ("own_parts:Shap", r"own_parts has no Shap; did you mean Shape\?"),
        ("own_parts:Missing", "own_parts has no Missing; it has Shape, make$"),
        ("no_such_parts:make", "there is no module no_such_parts in .* or among the installed packages"),
        ("needs_parts:make", "No module named 'no_such_parts'"),
    ],
)
def test_what_is_not_found_is_told_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    (tmp_path / "own_parts.py").write_text(
        "import os\nclass Shape: pass\ndef make(): pass\ndef _not(): pass\n"
    )
    (tmp_path / "needs_parts.py").write_text("import no_such_parts\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=said):
        imported(path, "environment")


def test_an_algorithm_and_a_callback_are_told_alike(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"small_envs has no Chian; did you mean Chain\?"):
        manyhands.train("CartPole-v1", "small_envs:Chian", directory=tmp_path / "run")
    with pytest.raises(UsageError, match=r"small_envs has no Chian; did you mean Chain\?"):
        manyhands.train("CartPole-v1", callbacks="small_envs:Chian", directory=tmp_path / "run")


def test_an_environment_that_is_elsewhere_is_told_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = short_run(tmp_path / "run", updates=1)
    made_in = str(Path.cwd())
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("small_envs:Chain", "gone_envs:Chain"))
    with pytest.raises(UsageError, match=rf"no module gone_envs in {made_in} or among.*packages$"):
        run.evaluate()
    monkeypatch.chdir(tmp_path)
    for use in (run.evaluate, run.agent, run.plot, lambda: manyhands.train(resume=run.path, steps=999)):
        with pytest.raises(UsageError, match=rf"no module gone_envs in .*made in {made_in}: cd {made_in}$"):
            use()
    with pytest.raises(SystemExit):
        cli.main(["eval", str(run.path)])
    assert f"cd {made_in}" in capsys.readouterr().err


def test_a_callable_is_to_be_given_again(tmp_path: Path) -> None:
    from small_envs import Chain

    run = short_run(tmp_path / "lam", env=lambda: Chain(), updates=1)
    said = r"lam was trained on a callable.*manyhands.load\('.*lam', env=f\) or manyhands.train\(f, resume="
    for use in (
        lambda: manyhands.load(run.path),
        lambda: manyhands.find(run.path).evaluate(),
        lambda: manyhands.train(resume=run.path, steps=999),
    ):
        with pytest.raises(UsageError, match=said):
            use()
    assert manyhands.load(run.path, env=Chain)


def test_a_run_without_a_checkpoint_says_why(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", updates=1)
    for path in (run.path / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(RunError, match=r"run has no checkpoint; it is finished$"):
        run.evaluate()
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"time": "2026", "kind": "end", "status": "failed", "error": "EnvError(\'it broke\')"}\n')
    with pytest.raises(RunError, match=r"has no checkpoint; it is failed: EnvError\('it broke'\)"):
        run.evaluate()
    with run.lock(), pytest.raises(RunError, match="has no checkpoint yet: it is running"):
        run.evaluate()
    (run.path / "events.jsonl").unlink()
    with pytest.raises(RunError, match="has no checkpoint: it was interrupted before its first one"):
        run.agent()
