"""A run that may take so many minutes ends then, tested and saved, whatever it is doing."""

import time
from pathlib import Path
from typing import Any

import pytest
from toys import Clock

import manyhands
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError
from manyhands.runs.callbacks import RunEvent

SECONDS = 0.5
GIVEN: dict[str, Any] = {
    "algo": {"epochs": 1},
    "collect": {"lanes": 2, "steps": 64},
    "run": {"test_episodes": 2},
}


class Slow(Clock):
    """One rollout of it takes far longer than the run may."""

    def step(self, action: int) -> Any:
        time.sleep(0.05)
        return super().step(action)


def test_it_ends_in_time_with_a_test_and_goes_on_for_as_long_again(tmp_path: Path) -> None:
    began = time.monotonic()
    run = manyhands.train(
        Clock, workers=0, minutes=SECONDS / 60, until="steps", settings=GIVEN, directory=tmp_path / "run"
    )
    assert SECONDS <= time.monotonic() - began < SECONDS + 20
    first = run.status()
    assert first["status"] == "finished"
    assert first["seconds"] >= SECONDS
    assert first["tested_at"] == first["steps"] > 0
    manyhands.train(Clock, resume=run.path)
    again = run.status()
    assert again["seconds"] >= 2 * SECONDS, "minutes are those of one call"
    assert again["tested_at"] == again["steps"] > first["steps"]
    manyhands.train(Clock, resume=run.path, minutes=0, steps=again["steps"] + 256)
    assert run.config().run.minutes == 0


def test_a_rollout_that_takes_longer_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    run = manyhands.train(Slow, workers=1, minutes=SECONDS / 60, settings=GIVEN, directory=tmp_path / "run")
    assert time.monotonic() - began < 20
    assert run.status()["steps"] == 0
    assert run.status()["tested_at"] == -1, "nothing was learned that could be tested"


def test_a_run_that_others_end_heeds_its_minutes_and_nothing_else(tmp_path: Path) -> None:
    def stop_after_an_hour(event: RunEvent) -> None:
        if event.seconds > 60:
            event.stop()

    run = manyhands.train(
        Clock,
        workers=0,
        minutes=SECONDS / 60,
        steps=1,
        until="external",
        settings=GIVEN,
        callbacks=[stop_after_an_hour],
        directory=tmp_path / "run",
    )
    assert run.status()["status"] == "finished"
    assert SECONDS <= run.status()["seconds"] < 60
    assert run.status()["steps"] > 1
    again = manyhands.train(Clock, resume=run.path)
    assert again.status()["seconds"] >= 2 * SECONDS


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_minutes_that_are_none_are_refused(minutes: float) -> None:
    with pytest.raises(UsageError, match=r"run\.minutes"):
        Config.from_plain({"run": {"minutes": minutes}})
