"""A run's metrics as columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.core.errors import did_you_mean, missing_extra
from manyhands.runs.jsonl import is_number

Floats = NDArray[np.float64]


class Metrics(Mapping[str, Floats]):
    """A mapping from a name to its numbers, one for each row of `metrics.jsonl`; NaN where a row lacks it.

    `steps`, the environment steps at which a row was written, is among them.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_plain(value))
        self.columns: dict[str, Floats] = {
            name: np.array([_number(row.get(name)) for row in rows], np.float64) for name in names
        }
        self.length = len(rows)

    def __getitem__(self, name: str) -> Floats:
        if name not in self.columns:
            near = did_you_mean(str(name), self.columns) or f"; there are {', '.join(self.columns)}"
            raise KeyError(f"there is no column {name!r:.100}{near}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"Metrics of {self.length} rows: {', '.join(self.columns)}"

    def last(self, name: str) -> float:
        """Return the last number of a name: of the last row that has it, NaN where none has a number."""
        column = self[name]
        known = column[~np.isnan(column)]
        return float(known[-1]) if len(known) else float("nan")

    def frame(self) -> Any:
        """Return them as a pandas DataFrame."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise missing_extra("a DataFrame", error.name) from error
        return pandas.DataFrame(self.columns)


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _number(value: Any) -> float:
    return float(value) if is_number(value) else float("nan")
