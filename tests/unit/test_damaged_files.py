"""Files of a run that were damaged: one line, and whatever is sound is still shown."""

import json
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from manyhands.cli import main as cli
from manyhands.config.plain_yaml import MAX_LETTERS, parse_yaml
from manyhands.config.resolve import parse_override, resolve
from manyhands.core.errors import RunError, UsageError
from manyhands.lto.judge import read
from manyhands.runs.soundness import BOOKED
from manyhands.runs.store import Run
from manyhands.system.secret_files import read_secret

ROW = {"steps": 5, "seconds": 0.5, "version": 1}
TEST_ROW = {"steps": 5, "seconds": 0.5, "test_mean": 1.0, "test_sd": 0.0}
HUGE = "9" * 400


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("sound", "damaged"):
        place = tmp_path / "runs" / name
        place.mkdir(parents=True)
        (place / "config.yaml").write_text("env: {id: CartPole-v1}\n")
        (place / "state.json").write_text(json.dumps({"status": "finished", "steps": 77, "seconds": 1.5}))
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "null", '{"steps": "x"}', '{"seconds": NaN}', "\udcff"),
        *(f'{{"steps": {HUGE}}}', '{"best_mean": "x"}', f'{{"last_mean": {HUGE}}}'),
    ],
)
def test_runs_shows_the_sound_ones_beside_a_damaged_state(
    home: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "damaged" / "state.json").write_bytes(text.encode(errors="surrogateescape"))
    cli.main(["runs"])
    shown = capsys.readouterr()
    rows = {line.split()[0]: line for line in shown.out.splitlines()}
    assert "77" in rows["sound"]
    assert "damaged" in rows["damaged"].split()[1:]
    assert shown.err.count("\n") == 1
    assert "state.json is damaged" in shown.err
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        Run(home / "damaged").status()


@pytest.mark.parametrize("status", ["[/x]", "[red]", "\x1b[2J", ["[/x]"], {"a": HUGE}])
def test_whatever_a_state_calls_itself_is_shown_as_it_is(
    home: Path, status: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "damaged" / "state.json").write_text(json.dumps({"status": status, "steps": 78}))
    cli.main(["runs"])
    shown = capsys.readouterr()
    assert "77" in shown.out
    assert "78" in shown.out
    assert str(status)[:3].replace("\x1b", r"\x1b") in shown.out
    assert "\x1b" not in shown.out


def test_runs_are_listed_by_status_and_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "damaged" / "config.yaml").write_text("run: {algo: nonsense}")
    cli.main(["runs", "--json"])
    listed = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["damaged"]["status"] == "damaged"
    (sound,) = (row for row in listed.values() if row["status"] != "damaged")
    assert (sound["steps"], sound["algo"], sound["path"]) == (77, "ppo", f"runs/{sound['run']}")
    cli.main(["runs", "--status", "damaged"])
    assert "77" not in capsys.readouterr().out
    cli.main(["runs", "--status", "failed"])
    assert capsys.readouterr().out == "No run under runs/ is failed.\n"


@pytest.mark.parametrize("text", ["run: {algo: nonsense}", "env: [", "- a"])
def test_runs_shows_the_sound_ones_beside_damaged_settings(
    home: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "damaged" / "config.yaml").write_text(text)
    cli.main(["runs"])
    shown = capsys.readouterr()
    assert "77" in shown.out
    assert shown.err.count("\n") == 1
    assert "damaged/config.yaml" in shown.err, "the run is named"


BAD_COLUMNS: list[dict[str, object]] = [
    *({"steps": 10**400}, {"seconds": None}, {"seconds": "x"}, {"version": "x"}, {"version": [1]}),
    *({"return_mean": "x"}, {"return_mean": True}, {"learning": 1.0}, {"waiting": "x"}),
    *({"test_mean": 1.0}, {"test_mean": "x", "test_sd": 1.0}, {"test_sd": {}}),
]


@pytest.mark.parametrize(
    "bad",
    [
        *(b"5", b"\xff\xfe", b"{}", b'{"steps": "x"}', b"[" * 100_000, b"null"),
        b'{"steps": 5, "version": 1}',
        *(json.dumps({**ROW, **columns}).encode() for columns in BAD_COLUMNS),
    ],
)
def test_damaged_rows_of_metrics_are_left_out_and_told_of(
    home: Path, bad: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(home / "sound")
    row = json.dumps(ROW).encode()
    run.metrics_path.write_bytes(row + b"\n" + bad + b"\n" + row + b"\n")
    assert run.rows() == [ROW, ROW]
    assert "left out 1 damaged rows" in capsys.readouterr().err
    run.metrics_path.write_bytes(row + b"\n" + row[:7])  # cut by a crash
    assert run.rows() == [ROW]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [{}, *BAD_COLUMNS, {"return_mean": -1e99, "steps": 1e99}])
def test_what_is_sound_in_damaged_metrics_is_shown(
    home: Path, columns: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    booked = dict.fromkeys(BOOKED, 0.1)
    rows = [ROW, {**ROW, **booked}, {**ROW, "return_mean": None}, TEST_ROW, {**ROW, **columns}]
    Run(home / "sound").metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cli.main(["show", "sound"])
    assert "learning curve: " in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["5", "{}", '{"version": 1}', '{"version": 1, "mse": "x", "msle": 1}', "{"])
def test_damaged_measures_of_a_law_are_left_out(
    tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"version": 1, "mse": 0.5, "msle": 0.5, "regret": 0.5}
    path = tmp_path / "quality.jsonl"
    path.write_text(f"{json.dumps(row)}\n{bad}\n{json.dumps(row)}\n")
    assert read(path) == [row, row]
    assert "left out 1 damaged rows" in capsys.readouterr().err


def test_aliases_of_long_texts_are_counted_by_their_letters() -> None:
    text = f"a: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 2000)}]"
    with pytest.raises(UsageError, match=str(MAX_LETTERS)):
        parse_yaml(text, "it")


@pytest.mark.parametrize("setting", ["run.seed", "run.steps", "algo.learning_rate", "collect.lanes"])
@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "9" * 5000, "0x" + "f" * 30, "9" * 39])
def test_numbers_that_no_setting_can_hold_are_refused_in_one_line(setting: str, value: str) -> None:
    fine = setting == "algo.learning_rate" and len(value) < 40
    with nullcontext() if fine else pytest.raises(UsageError) as caught:
        resolve("CartPole-v1", "ppo", None, (parse_override(f"{setting}={value}"),))
    assert fine or len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["   ", " a ", "\u00e4\u4e2d", '"'])
def test_a_secret_may_be_any_printable_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{text}\r\nmore\n")
    path.chmod(0o600)
    assert read_secret(path, "--password-file") == text


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("\n   \n")
    with pytest.raises(UsageError, match="is empty"):
        read_secret(path, "--password-file")


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_secret_that_others_can_read_is_said(
    tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret"
    path.write_text("a secret\n")
    path.chmod(mode)
    assert read_secret(path, "--password-file") == "a secret"
    others = bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    assert ("others can read" in capsys.readouterr().err) == others
