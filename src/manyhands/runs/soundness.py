"""Checks of the rows of metrics.jsonl and of a run's state, so that tables and plots can show them."""

from typing import Any

from manyhands.runs.jsonl import is_number

COUNTED = ("steps", "seconds", "version")
"""Names, in a run's state, of what is counted."""
MEANS = ("best_mean", "last_mean")
"""Names, in a run's state, of the results of tests, which are null before the first."""
BOOKED = ("collecting", "waiting", "learning", "broadcasting", "testing")
TOGETHER = (("steps", "seconds"), ("version",), BOOKED, ("test_mean", "test_sd"))
"""Columns of metrics.jsonl that are numbers; a row has all of a group or none, and the first group always."""


def is_row(row: dict[str, Any]) -> bool:
    """Return whether all is there, and of its kind, that tables and plots of this row need."""
    groups = (TOGETHER[0], *(group for group in TOGETHER if any(name in row for name in group)))
    whole = all(is_number(row.get(name)) for group in groups for name in group)
    return whole and _is_mean(row.get("return_mean"))


def is_status(status: dict[str, Any]) -> bool:
    """Return whether what is counted and measured in a state are numbers."""
    counted = all(is_number(status.get(name, 0)) for name in COUNTED)
    return counted and all(_is_mean(status.get(name)) for name in MEANS)


def _is_mean(value: Any) -> bool:
    return value is None or is_number(value)
