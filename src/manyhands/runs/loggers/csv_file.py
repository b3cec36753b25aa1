"""CSV: a table in the run's directory, for spreadsheets."""

import csv
import io
from collections.abc import Mapping
from typing import TextIO

from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run

STEPS = "steps"


class CsvFile:
    """Writes `metrics.csv`: a column for each name, empty where a row has none."""

    def __init__(self) -> None:
        self.columns = [STEPS]
        self.file: TextIO | None = None

    def start(self, run: Run, resumed_at: int | None) -> None:
        self.path = run.path / "metrics.csv"
        rows = self._read() if resumed_at is not None else []
        self._write([row for row in rows if resumed_at is not None and float(row[STEPS]) <= resumed_at])

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        new = [name for name in numbers if name not in self.columns]
        if new:  # in the first few rows, and when a callback logs something for the first time
            rows = self._read()
            self.columns += new
            self._write(rows)
        assert self.file is not None
        csv.DictWriter(self.file, self.columns).writerow({STEPS: steps, **numbers})
        self.file.flush()

    def close(self, status: str) -> None:
        if self.file is not None:
            self.file.close()

    def _read(self) -> list[dict[str, str]]:
        """Return the rows so far that are whole; their columns are known from then on."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if None not in row.values()]
            self.columns += [name for name in reader.fieldnames or () if name not in self.columns]
        return rows

    def _write(self, rows: list[dict[str, str]]) -> None:
        """Write the whole file anew."""
        if self.file is not None:
            self.file.close()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path, text.getvalue().encode())
        self.file = self.path.open("a", newline="")
