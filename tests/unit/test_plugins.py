"""Algorithms and channels of installed packages, by entry points; and algorithms given as classes."""

import sys
from pathlib import Path
from typing import Any

import own_algos
import pytest
from installed_packages import install

import manyhands
from manyhands.algos.ppo import Ppo
from manyhands.cli.options import Parser, add_algo
from manyhands.config import algorithms, plugins
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError
from manyhands.runs.open_channel import check_channel
from manyhands.runs.store import find

TINY: dict[str, Any] = {"workers": 0, "steps": 256, "until": "steps", "settings": {"collect": {"steps": 16}}}
CHANNEL = """\
from manyhands.channels.inline import InlineChannel

OPENED = []


def open_here(plan, url, path):
    OPENED.append((url, path))
    return InlineChannel(plan.task, plan.callable_env)
"""


class NoSettings(Ppo):
    """One whose settings are not a dataclass."""

    config = int  # type: ignore[assignment]


def offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, *lines: str, package: str = "plugged"
) -> None:
    files = {f"{package}_module.py": CHANNEL}
    install(tmp_path, monkeypatch, package, files, {f"manyhands.{group}": list(lines)})


def test_an_algorithm_of_a_package_is_one_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, monkeypatch, "algorithms", "spo = own_algos:Spo")
    assert algorithms.find("spo") is own_algos.Spo
    with pytest.raises(UsageError, match=r"adqn, spo, or module:Class of your own; did you mean spo\?"):
        resolve("CartPole-v1", "spoo")
    parser = Parser()
    parser.helping = True
    add_algo(parser)
    assert "adqn, spo, or module:Class" in " ".join(parser.format_help().split())
    run = manyhands.train("CartPole-v1", "spo", directory=tmp_path / "run", **TINY)
    assert run.config().run.algo == "spo"
    again = manyhands.train("CartPole-v1", resume=run.path, steps=512)
    assert again.status()["steps"] == 512
    with pytest.raises(UsageError, match="spo is not allowed here; start this with --allow spo"):
        Config.from_plain({"run": {"algo": "spo"}}, [])


def test_names_of_our_own_are_found_without_a_look_for_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(group: str) -> Any:
        raise AssertionError(group)

    monkeypatch.setattr(plugins, "offered", looked)
    assert Config.from_plain({"run": {"algo": "ppo"}}).run.algo == "ppo"
    assert algorithms.find("own_algos:Spo") is own_algos.Spo
    resolve("CartPole-v1")


@pytest.mark.parametrize(
    ("line", "asked", "said"),
    [
        ("ppo = own_algos:Spo", "ppo", "the package plugged offers the algorithm 'ppo', which is one of"),
        ("bad = own_algos:Nothing", "bad", "the algorithm 'bad' of the package plugged cannot be imported"),
        ("bad = no_such_module:Spo", "bad", "cannot be imported from no_such_module:Spo"),
        ("bad = own_algos:NoAlgorithm", "bad", "is not a class derived from"),
        ("bad = test_plugins:NoSettings", "bad", "is not a dataclass"),
    ],
)
def test_a_package_that_offers_no_algorithm_or_takes_a_name_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, asked: str, said: str
) -> None:
    offer(tmp_path, monkeypatch, "algorithms", line)
    with pytest.raises(UsageError, match=said) as caught:
        resolve("CartPole-v1", asked)
    assert "\n" not in str(caught.value)


def test_two_packages_that_offer_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, monkeypatch, "algorithms", "spo = own_algos:Spo")
    offer(tmp_path, monkeypatch, "algorithms", "spo = another:Spo", package="second")
    with pytest.raises(
        UsageError, match="the package plugged and the package second both offer the algorithm 'spo'"
    ):
        resolve("CartPole-v1", "spo")


def test_a_channel_of_a_package_is_opened_by_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(
        tmp_path,
        monkeypatch,
        "channels",
        "here = plugged_module:open_here",
        "amqp = plugged_module:open_here",
    )
    from manyhands.runs.training import train

    given = (TINY["settings"], {"run": {"workers": 2, "steps": 256, "until": "steps"}})
    run = train(
        resolve("CartPole-v1", overrides=given), directory=tmp_path / "run", channel="here://some:thing"
    )
    opened = sys.modules["plugged_module"].OPENED
    assert opened == [("here://some:thing", tmp_path / "run")]
    assert run.status()["steps"] == 256
    with pytest.raises(UsageError, match="offers the channel 'amqp', which is one of manyhands' own"):
        check_channel("amqp://user:secret@host/")
    with pytest.raises(
        UsageError, match=r"no channel 'heer'; did you mean here\?; there are amqp, amqps, ray, "
    ):
        check_channel("heer://host")


def test_a_channel_that_is_none_is_refused_without_its_password_and_leaves_nothing(tmp_path: Path) -> None:
    from manyhands.runs.training import train

    with pytest.raises(UsageError, match=r"no channel 'amqqp'; did you mean amqp") as caught:
        train(resolve("CartPole-v1"), directory=tmp_path / "run", channel="amqqp://user:secret@host/")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_class_may_be_given_and_is_found_again_by_its_name(tmp_path: Path) -> None:
    run = manyhands.train("CartPole-v1", own_algos.Spo, directory=tmp_path / "own", **TINY)
    assert run.config().run.algo == "own_algos:Spo"
    algorithms.GIVEN.clear()
    assert manyhands.train("CartPole-v1", resume=run.path, steps=512).status()["steps"] == 512
    assert manyhands.train("CartPole-v1", Ppo, directory=tmp_path / "ppo", **TINY).config().run.algo == "ppo"


def test_a_class_that_cannot_be_imported_is_given_again_to_resume(tmp_path: Path) -> None:
    class Local(own_algos.Spo):
        pass

    run = manyhands.train("CartPole-v1", Local, directory=tmp_path / "run", **TINY)
    assert run.config().run.algo == "__main__:Local"
    algorithms.GIVEN.clear()
    with pytest.raises(
        UsageError, match=r"give it again, from Python: manyhands\.train\(\.\.\., algo=Local\)"
    ):
        manyhands.train("CartPole-v1", resume=run.path, steps=512)
    assert manyhands.train("CartPole-v1", Local, resume=run.path, steps=512).status()["steps"] == 512
    assert find(run.path).config().algorithm.settings.penalty == 0.2


def test_something_that_is_no_algorithm_is_refused_when_it_is_given() -> None:
    for wrong in (own_algos.NoAlgorithm, NoSettings, 3):
        with pytest.raises(UsageError, match=r"algo is .*, (which is not a class|whose `config` is not)"):
            manyhands.train("CartPole-v1", wrong)  # type: ignore[arg-type]
