"""Does a run survive everything at once? Half an hour of kills, stops and cut networks, beside a calm run."""

import argparse
import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.soak_hosts import Hosts, left_behind, marked_environment
from benchmarks.soak_parts import BrokerPart, ParentPart, Part
from manyhands.core.errors import RunError, UsageError
from manyhands.runs.plots import BLUE, GREY, RED, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table

PARTS: dict[str, type[Part]] = {"broker": BrokerPart, "parent": ParentPart}
SHORTEST_PAUSE, LONGEST_PAUSE = 3.0, 8.0
"""Seconds between two accidents."""
LEAST_THROUGHPUT = 0.6
MOST_GROWTH = 0.15
"""The share by which a role's memory may grow from the first to the last third of the time."""


@dataclass
class Soak:
    """The results of one part."""

    part: str
    seed: int
    seconds: float = 0.0
    accidents: list[tuple[float, str]] = field(default_factory=list)
    progress: list[tuple[float, float]] = field(default_factory=list)  # seconds, steps or exchanges
    memory: dict[str, list[float]] = field(default_factory=dict)  # MB over time, by role
    counts: dict[str, Any] = field(default_factory=dict)
    calm_seconds: float = 0.0
    same_bits: bool | None = None
    exact_counts: bool | None = None
    left: list[str] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """The speed as a share of the calm run's."""
        return self.calm_seconds / self.seconds

    def growth(self, role: str) -> float:
        """Return the growth of the largest size of a role, from the first third of the time to the last."""
        sizes = self.memory[role]
        third = max(1, len(sizes) // 3)
        return max(sizes[-third:]) / max(sizes[:third]) - 1


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=sorted(PARTS), default=sorted(PARTS))
    parser.add_argument("--minutes", type=float, default=30.0, help="of accidents, for each part")
    parser.add_argument("--seed", type=int, default=1, help="of the accidents")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    if not 0 < options.minutes < 24 * 60:
        raise UsageError(f"--minutes is {options.minutes}; it must be between 0 and a day")
    soaks = [_soak(name, 60 * options.minutes, options.seed) for name in options.part]
    _report(soaks, arguments).save(options.out, _picture(soaks))
    bad = [problem for soak in soaks for problem in problems(soak)]
    if bad:
        raise RunError("; ".join(bad))


def _soak(name: str, seconds: float, seed: int) -> Soak:
    soak, rng = Soak(name, seed), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as place, Hosts(PARTS[name].hosts) as hosts:
        temporary = Path(place) / "tmp"
        mark, environment = marked_environment(temporary)
        part = PARTS[name](Path(place), hosts, environment, rng)
        with part:
            _disturb(part, soak, seconds, rng)
            part.stop()
        soak.counts = part.counts()
        print(
            f"{name}: {len(soak.accidents)} accidents in {soak.seconds:.0f} s; now the calm run", flush=True
        )
        soak.calm_seconds, calm = part.calm()
        soak.same_bits = None if calm is None else digest(calm) == digest(part.vector())
        soak.exact_counts = part.exact()
        soak.left = left_behind(mark, temporary)
    return soak


def _disturb(part: Part, soak: Soak, seconds: float, rng: random.Random) -> None:
    began = time.monotonic()
    actions = part.accidents()
    names, weights = list(actions), [weight for weight, _ in actions.values()]
    while (now := time.monotonic() - began) < seconds:
        wake = time.monotonic() + rng.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)
        while time.monotonic() < wake:
            part.look_after()
            time.sleep(0.1)
        soak.progress.append((now, part.progress()))
        for role, megabytes in part.memory().items():
            soak.memory.setdefault(role, []).append(megabytes)
        (name,) = rng.choices(names, weights)
        actions[name][1]()
        soak.accidents.append((time.monotonic() - began, name))
    part.settle()
    soak.seconds = time.monotonic() - began


def digest(vector: Any) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()[:16]


def problems(soak: Soak) -> list[str]:
    found = []
    if soak.same_bits is False:
        found.append(f"{soak.part}: other weights than the calm run's")
    if soak.exact_counts is False:
        found.append(f"{soak.part}: counts that do not add up: {soak.counts}")
    if soak.throughput < LEAST_THROUGHPUT:
        found.append(f"{soak.part}: {soak.throughput:.0%} of the calm throughput")
    found += [f"{soak.part}: {role} grew" for role in soak.memory if soak.growth(role) > MOST_GROWTH]
    return found + [f"{soak.part}: {name} was left behind" for name in soak.left]


def _report(soaks: Sequence[Soak], arguments: list[str]) -> Report:
    rows, memory, accidents = [], [], []
    for soak in soaks:
        rows.append(
            (
                soak.part,
                f"{soak.seconds / 60:.1f} min",
                str(len(soak.accidents)),
                f"{soak.progress[-1][1]:,.0f}",
                f"{soak.throughput:.0%}",
                {True: "the same", False: "OTHERS", None: "-"}[soak.same_bits],
                {True: "exact", False: "WRONG", None: "-"}[soak.exact_counts],
                ", ".join(soak.left) or "nothing",
            )
        )
        kinds = Counter(name for _, name in soak.accidents)
        accidents += [(soak.part, kind, str(count)) for kind, count in sorted(kinds.items())]
        for role, sizes in soak.memory.items():
            memory.append(
                (soak.part, role, f"{sizes[0]:.0f}", f"{max(sizes):.0f}", f"{soak.growth(role):+.0%}")
            )
    columns = ("part", "accidents for", "accidents", "updates or exchanges", "of calm throughput")
    notes = [
        "broker: three workers of two processes each, in network namespaces of their own, a RabbitMQ node "
        "and an executor of LunarLander-v3 (ppo, pipelined, six shards). parent: four children, likewise.",
        "The calm run makes as many updates, or exchanges, and nothing happens to it. Throughput is its time "
        "over the time of the disturbed one.",
        "Weights: of the disturbed run after its last update, against the calm run's after as many.",
        "Memory in MB, all processes of a role together; growth from the largest in the first third of the "
        "time to the largest in the last.",
    ]
    return Report(
        name="soak",
        title="Half an hour of accidents",
        arguments=arguments,
        seeds=[soak.seed for soak in soaks][:1],
        tables=(
            Table("Summary", (*columns, "weights", "counts", "left behind"), rows),
            Table("Accidents", ("part", "what", "how often"), accidents),
            Table("Memory", ("part", "role", "first", "largest", "growth"), memory),
        ),
        notes=notes,
        results={"parts": [asdict(soak) for soak in soaks]},
    )


def _picture(soaks: Sequence[Soak]) -> Figure:
    figure = new_figure(10, 3.2 * len(soaks))
    for axes, soak in zip(figure.subplots(len(soaks), 1, squeeze=False)[:, 0], soaks, strict=True):
        for when, _ in soak.accidents:
            axes.axvline(when / 60, color=RED, alpha=0.15, linewidth=1)
        axes.plot([t / 60 for t, _ in soak.progress], [value for _, value in soak.progress], color=BLUE)
        calm = soak.progress[-1][1] / soak.calm_seconds * soak.seconds
        axes.plot([0, soak.seconds / 60], [0, calm], color=GREY, linestyle="--", label="calm")
        axes.set_title(f"{soak.part}: {len(soak.accidents)} accidents (red)", loc="left")
        axes.set_xlabel("minutes")
        axes.set_ylabel("updates or exchanges")
        axes.legend(frameon=False)
        tidy(axes)
    return figure
