"""Where a run's numbers go: each logger with its real package, and those of a user's own."""

import csv
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from short_runs import BATCH, short_run

import manyhands
from manyhands.cli import main as cli
from manyhands.core.errors import RunError, UsageError
from manyhands.runs.loggers import choose as choosing
from manyhands.runs.loggers.base import TAGS, tag
from manyhands.runs.loggers.choose import choose
from manyhands.runs.loggers.csv_file import CsvFile
from manyhands.runs.store import Run

GROUPED = {"train/return_mean", "train/length_mean", "loss/policy", "loss/value", "loss/clip_fraction"}
GROUPED |= {"learn/gradient_norm", "learn/learning_rate", "time/learning", "test/return_mean", "run/lag"}


BLOCK = 32768
"""Bytes of a block in Weights & Biases' files."""


class Remembering:
    """A logger of one's own."""

    made: ClassVar[list["Remembering"]] = []

    def __init__(self, fails_at: str = "") -> None:
        self.calls: list[Any] = []
        self.fails_at = fails_at
        Remembering.made.append(self)

    def start(self, run: Run, resumed_at: int | None) -> None:
        self.calls.append(("start", run.path, resumed_at))
        self._fail("start")

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        self.calls.append((steps, dict(numbers)))
        self._fail("log")

    def close(self, status: str) -> None:
        self.calls.append(("close", status))
        self._fail("close")

    def _fail(self, where: str) -> None:
        if where == self.fails_at:
            raise OSError("the network is down")


class NoLogger:
    """Something else."""


class NeedsArgument:
    """One that cannot be made by its name alone."""

    def __init__(self, place: str) -> None:
        self.place = place


class NeverClosed:
    """Half of a logger."""

    def start(self, run: Run, resumed_at: int | None) -> None: ...

    def log(self, steps: int, numbers: Mapping[str, float]) -> None: ...


def logged(run: Run) -> dict[int, dict[str, float]]:
    """What any logger should have been told, by steps; of rows of the same step all together."""
    found: dict[int, dict[str, float]] = {}
    for row in run.rows():
        numbers = {tag(name): value for name, value in row.items() if value is not None and name != "steps"}
        found.setdefault(row["steps"], {}).update(numbers)
    return found


def test_an_object_hears_everything_once_and_again_after_a_resume(tmp_path: Path) -> None:
    first, second = Remembering(), Remembering()
    run = short_run(tmp_path / "run", log=first)
    assert first.calls[0] == ("start", run.path, None)
    assert first.calls[-1] == ("close", "finished")
    told = {steps: numbers for steps, numbers in first.calls[1:-1]}
    assert set(told) == set(logged(run))
    assert {name for numbers in told.values() for name in numbers} >= GROUPED
    run.resume(steps=12 * BATCH, log=[second])
    assert second.calls[0] == ("start", run.path, 8 * BATCH)
    assert min(call[0] for call in second.calls[1:-1]) > 8 * BATCH


@pytest.mark.parametrize("where", ["log", "close"])
def test_one_that_fails_is_told_of_and_the_run_goes_on(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, sound = Remembering(where), Remembering()
    run = short_run(tmp_path / "run", log=[broken, sound])
    assert run.status()["status"] == "finished"
    assert sound.calls[-1] == ("close", "finished")
    said = "the logger Remembering failed and gets no more numbers: OSError('the network is down')"
    assert capsys.readouterr().err.count(said) == 1
    if where == "log":
        assert len(broken.calls) == 2
        assert said in [event.get("text") for event in run.events()]


def test_one_that_cannot_start_spoils_no_directory(tmp_path: Path) -> None:
    before = Remembering()
    with pytest.raises(RunError, match="Remembering could not start"):
        short_run(tmp_path / "run", log=[before, Remembering("start")])
    assert not (tmp_path / "run").exists()
    assert before.calls[-1] == ("close", "failed")


def test_tensorboard_has_grouped_names_and_is_what_there_is_by_default(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = short_run(tmp_path / "run", log=None)
    run.resume(steps=12 * BATCH)
    events = EventAccumulator(str(run.path))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= GROUPED
    curve = {event.step: event.value for event in events.Scalars("train/return_mean")}
    for steps, numbers in logged(run).items():
        if "train/return_mean" in numbers:
            assert curve[steps] == pytest.approx(numbers["train/return_mean"], rel=1e-6)
    assert max(curve) == 12 * BATCH
    assert not list(short_run(tmp_path / "none", log="none").path.glob("events.out*"))


def test_csv_has_all_rows_in_columns_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", log="csv")
    run.resume(steps=12 * BATCH)  # to the same place, without being told again
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(run.rows())
    for row, kept in zip(rows, run.rows(), strict=True):
        assert int(row["steps"]) == kept["steps"]
        for name, value in kept.items():
            if name != "steps":
                assert float(row[tag(name)]) == value
    assert set(rows[0]) == {"steps", *(tag(name) for row in run.rows() for name in row if name != "steps")}


def test_csv_drops_what_is_played_again_and_half_a_row(tmp_path: Path) -> None:
    run, log = Run(tmp_path), CsvFile()
    log.start(run, None)
    for steps in (10, 20, 30):
        log.log(steps, {"a": steps / 10, **({"b": 1.0} if steps == 30 else {})})
    log.close("failed")
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("40")  # and here the plug was pulled
    again = CsvFile()
    again.start(run, 20)
    again.log(30, {"b": 2.0, "c": 3.0})
    again.close("finished")
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["steps", "a", "b", "c"],
            ["10", "1.0", "", ""],
            ["20", "2.0", "", ""],
            ["30", "", "2.0", "3.0"],
        ]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network for loggers, and a database of this test's own."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return tmp_path


def wandb_messages(raw: bytes) -> Iterator[bytes]:
    """The messages of a .wandb file: seven bytes, and then a log as LevelDB writes it, in blocks."""
    at, message = 7, b""
    while at + 7 <= len(raw):
        if BLOCK - at % BLOCK < 7:  # no room for a header: the rest of the block is empty
            at += BLOCK - at % BLOCK
            continue
        _, length, part = struct.unpack_from("<IHB", raw, at)
        message += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # the whole of a message, or its last part
            yield message
            message = b""


def wandb_records(directory: Path) -> tuple[list[dict[str, Any]], str, str]:
    """The rows of a run that was logged offline, its id and its project."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = directory.glob("run-*.wandb")
    rows, name, project = [], "", ""
    records: list[Any] = []
    deadline = time.monotonic() + 30
    while not any(record.WhichOneof("record_type") == "exit" for record in records):
        assert time.monotonic() < deadline  # its own process writes the file, a little after `finish`
        records = [Record.FromString(message) for message in wandb_messages(path.read_bytes())]
    for record in records:
        if record.WhichOneof("record_type") == "run":
            name, project = record.run.run_id, record.run.project
        if record.WhichOneof("record_type") == "history":
            keys = [item.key or "/".join(item.nested_key) for item in record.history.item]
            values = [json.loads(item.value_json) for item in record.history.item]
            rows.append(dict(zip(keys, values, strict=True)))
    return rows, name, project


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_and_biases_gets_the_numbers_and_a_resume_goes_on_with_its_run(offline: Path) -> None:
    run = short_run(offline / "run", log="wandb:landers")
    run.resume(steps=12 * BATCH, log="wandb:elsewhere")
    found = [wandb_records(place) for place in sorted((run.path / "wandb").glob("offline-run-*"))]
    assert len(found) == 2
    assert len({name for _, name, _ in found}) == 1  # two parts of one run
    assert {project for _, _, project in found} == {"landers"}
    told: dict[int, dict[str, Any]] = {}
    for rows, _, _ in found:
        for row in rows:
            told.setdefault(row["steps"], {}).update(row)
    assert set(told) == set(logged(run))
    for steps, numbers in logged(run).items():
        assert all(told[steps][name] == pytest.approx(value) for name, value in numbers.items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_gets_settings_and_numbers_and_a_resume_goes_on_with_its_run(offline: Path) -> None:
    import mlflow

    run = short_run(offline / "run", log="mlflow:landers")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("landers")
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.run_name == "run"
    assert made.info.status == "FINISHED"
    assert made.data.params["algo.minibatch"] == str(BATCH)
    assert made.data.params["env.id"] == "small_envs:Chain"
    run.resume(steps=12 * BATCH, callbacks=lambda event: event.stop())
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "KILLED"
    run.resume(steps=12 * BATCH, log="mlflow:landers")
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED"
    assert set(made.data.metrics) >= GROUPED
    history = {each.step: each.value for each in client.get_metric_history(made.info.run_id, "loss/policy")}
    wanted = {
        steps: numbers["loss/policy"] for steps, numbers in logged(run).items() if "loss/policy" in numbers
    }
    assert history == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_one_line_with_its_extra(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "CartPole-v1", "--dir", str(tmp_path / "run"), "--log", f"{name}:x"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--log {name} needs {name}; " in error
    assert f"'.[{name}]'" in error
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_the_default_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.runs.loggers.tensorboard.find_spec", lambda name: None)
    assert choose(None) == []
    with pytest.raises(UsageError, match="needs tensorboard"):
        choose("tensorboard")


def test_ones_own_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", "small_envs:Chain", "--workers", "0", "--steps", "2048", "--until", "steps", "--quiet"]
    cli.main([*words, "--dir", str(tmp_path / "run"), "--log", "test_loggers:Remembering", "--log", "csv"])
    assert Remembering.made[-1].calls[-1] == ("close", "finished")
    assert (tmp_path / "run" / "metrics.csv").exists()


def test_ones_own_by_an_entry_point_of_an_installed_package(tmp_path: Path) -> None:
    """A real one: in another process, with the package's metadata on its path."""
    info = tmp_path / "site" / "greeter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyhands.loggers]\ngreeter = greeter:Greeter\n")
    (tmp_path / "site" / "greeter.py").write_text(
        "class Greeter:\n"
        "    def __init__(self, name='nobody'): self.name = name\n"
        "    def start(self, run, resumed_at): print('hello', self.name)\n"
        "    def log(self, steps, numbers): pass\n"
        "    def close(self, status): print('bye', status)\n"
    )
    code = (
        "from manyhands.runs.loggers.choose import choose\n"
        "choose(['greeter:anna', 'greeter'])[0].start(None, None); choose('greeter')[0].close('done')\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout == "hello anna\nbye done\n", done.stderr


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("wandbb", "there is no logger 'wandbb'; .*did you mean wandb"),
        ("csv:x", "there is no logger 'csv:x'; write csv$"),
        ("wandb:", "there is no logger 'wandb:'; write wandb:PROJECT"),
        ("test_loggers:NeedsArgument", "cannot make the logger .*TypeError.*place.*without arguments"),
        ([NeverClosed], r"the class NeverClosed; make a logger of it: log=\[NeverClosed\(\)\]"),
        (
            NeverClosed(),
            "^a NeverClosed is no logger: it lacks close; it needs the methods start, log and close",
        ),
        ("no_such_module:Log", "cannot import the logger"),
        ("test_loggers:NoLogger", "needs the methods start, log and close"),
        (3, "is no logger"),
    ],
)
def test_what_is_no_logger_is_refused(log: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        manyhands.train("CartPole-v1", log=log, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resume_forgets_a_place_only_when_told_another(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", updates=2, log=["csv", Remembering()])
    names = tmp_path / "run" / choosing.REMEMBERED
    assert json.loads(names.read_text()) == ["csv"]  # an object cannot be made again
    run.resume(steps=4 * BATCH)
    assert (run.path / "metrics.csv").read_text().count(f"\n{4 * BATCH},")
    run.resume(steps=6 * BATCH, log="none")
    assert not (run.path / "metrics.csv").read_text().count(f"\n{6 * BATCH},")
    assert json.loads(names.read_text()) == ["none"]
    names.write_text("{")
    assert choosing.remembered(run) is None


def test_no_two_columns_have_one_name() -> None:
    assert len(set(TAGS.values())) == len(TAGS)
    assert tag("q_mean") == "learn/q_mean"
    assert tag("mine", own=True) == "own/mine"
    assert tag("a/b", own=True) == "a/b"
    assert set(choosing.ARGUMENT) <= set(choosing.BUILT_IN)
