"""The channel over RabbitMQ: what it costs, which load it bears, and the supervised agent that came with it.

Everything runs on this machine against a private RabbitMQ node, with the real commands.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import parts
from benchmarks.parts import Measured
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.errors import RunError
from manyhands.roles.broker import Broker
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, new_figure, tidy
from manyhands.runs.report import Table, manyhands, run_json, settings
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View
from manyhands.system.memory import resident_megabytes

SEEDS = (401, 402, 403)
"""Seeds reserved for this benchmark."""
FRESH = 10_000
SPEED_STEPS = 200_000
FLOOD_SECONDS = 120.0
PAIRS = 100_000
DECODES = 20
PUBLISHED = ("published-1", "published-2", "published-3", "published-4")
RANDOM_SHARE = {"published-1": 5 / 6, "published-2": 0.5, "published-3": 0.5, "published-4": 0.5}
"""The share of the processes that played at random in the four published runs."""


NOTES = (
    "cartpole, lunar: the wall clock of `manyhands train --algo clone --channel ...` with workers of two "
    "processes that wait already; solved is the greedy mean of 100 fresh episodes.",
    "lunar: the published settings get as many steps as the longest of the solved runs took, in loops of "
    "65,536, with one executor (two of the four had two).",
    "speed: the same run on the processes channel and over the broker, in turns, two processes each.",
    "flood: eight worker processes, and an executor that sleeps a second after every update.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("broker", __doc__, tuple(PARTS), SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as temporary, Broker() as broker:
        bound = {name: partial(part, broker, Path(temporary), options) for name, part in PARTS.items()}
        parts.measure("broker", "Over RabbitMQ", bound, options, NOTES, _picture)


@contextmanager
def _workers(broker: Broker, procs: int, count: int = 1) -> Iterator[None]:
    """Run worker daemons that are ready before anything is timed."""
    with ExitStack() as held:
        for _ in range(count):
            process = subprocess.Popen(
                manyhands("worker", broker.url, "--procs", procs), stdout=subprocess.DEVNULL
            )
            held.callback(process.wait)
            held.callback(process.terminate)
        time.sleep(3.0)
        yield


def _train(broker: Broker | None, directory: Path, env: str, seed: int, *extra: str) -> dict[str, Any]:
    """Train once by command line; return its wall clock, and its agent's results on fresh episodes."""
    channel = ["--channel", broker.url] if broker is not None else []
    command = manyhands("train", env, "--seed", seed, "--dir", directory, "--quiet", *channel, *extra)
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    wall = time.monotonic() - began
    if done.returncode:
        raise RunError(f"a training failed: {done.stderr.strip()[-300:]}")
    judged = run_json(manyhands("eval", directory, "--episodes", 100, "--seed", seed + FRESH, "--json"), 600)
    status = Run(directory).status()
    print(f"{directory.name}: {wall:.1f} s, {status['steps']:,} steps, mean {judged['mean']:.1f}", flush=True)
    return {
        "seed": seed,
        "wall": wall,
        "steps": status["steps"],
        "seconds": status["seconds"],
        "loops": status["version"],
        "mean": judged["mean"],
        "sd": judged["sd"],
        "solved": judged["solved"],
        "curve": _curve(Run(directory)),
    }


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(row["steps"], row["return_mean"]) for row in run.rows() if "return_mean" in row]


def _runs_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ("run", "solved", "100 fresh episodes", "loops", "steps", "wall clock")
    lines = [
        (
            name,
            "yes" if row["solved"] else "no",
            f"{row['mean']:.1f} ± {row['sd']:.1f}",
            str(row["loops"]),
            f"{row['steps']:,}",
            f"{row['wall']:.1f} s",
        )
        for name, row in rows.items()
    ]
    return Table(title, columns, lines)


def _cartpole(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    with _workers(broker, 1, 2):
        rows = {
            f"seed {seed}": _train(broker, path / f"cartpole-{seed}", "CartPole-v1", seed, "--algo", "clone")
            for seed in options.seeds
        }
    return [_runs_table("clone on CartPole-v1, one executor and two workers", rows)], rows


def _lunar(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    clone = ("--algo", "clone")
    with _workers(broker, 2):
        rows = {
            f"advantage, seed {seed}": _train(broker, path / f"lunar-{seed}", "LunarLander-v3", seed, *clone)
            for seed in options.seeds
        }
        steps = max(row["steps"] for row in rows.values())
        for name in PUBLISHED:
            # Few and large loops, as they had them; small ones would learn all that is held again and again.
            how = {"algo.choose": name, "collect.random": RANDOM_SHARE[name], "run.test_every": steps}
            how |= {"collect.steps": 2048, "algo.minibatch": 512}
            extra = (*clone, *settings(how), "--until", "steps", "--steps", str(steps))
            rows[name] = _train(broker, path / name, "LunarLander-v3", options.seeds[0], *extra)
    return [_runs_table("clone on LunarLander-v3: chosen by advantage, and as published", rows)], rows


def _speed(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    """Measure PPO on LunarLander both ways: until solved, and steps/s with large batches."""
    rows: list[tuple[str, ...]] = []
    solve: dict[str, list[float]] = {"processes": [], "broker": []}
    speed: dict[str, list[float]] = {"processes": [], "broker": []}
    steady = ("--until", "steps", "--steps", str(SPEED_STEPS), *settings({"run.test_every": 10**12}))
    for seed in options.seeds:
        for way in ("processes", "broker"):
            with ExitStack() as held:
                if way == "broker":
                    held.enter_context(_workers(broker, 2))
                there = broker if way == "broker" else None
                done = _train(there, path / f"solve-{way}-{seed}", "LunarLander-v3", seed, "--workers", "2")
                solve[way].append(done["wall"])
                directory = path / f"speed-{way}-{seed}"
                _train(there, directory, "LunarLander-v3", seed, "--workers", "2", *steady)
                speed[way].append(_steady_speed(Run(directory)))
    for name, found, unit in (("until solved", solve, "s"), ("training", speed, "steps/s")):
        medians = [statistics.median(found[way]) for way in ("processes", "broker")]
        cells = [f"{value:,.1f} {unit}" if unit == "s" else f"{value:,.0f} {unit}" for value in medians]
        ratios = [b / p for p, b in zip(found["processes"], found["broker"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append((name, *cells, f"{statistics.median(ratios):.2f}", spread))
    columns = ("PPO on LunarLander-v3", "processes", "broker", "broker over processes", "over seeds")
    return [Table("Against the processes channel", columns, rows)], {"solve": solve, "speed": speed}


def _steady_speed(run: Run) -> float:
    rows = [row for row in run.rows() if row.get("version", 0) >= 8]
    first, last = rows[0], rows[-1]
    return float((last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"]))


def _bits(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    rows = []
    found: dict[str, Any] = {}
    for algo in ("ppo", "a2c", "reinforce", "impala", "clone"):
        digests = []
        overrides = {"run": {"steps": 16384, "until": "steps", "mode": "sync", "workers": 0, "seed": 5}}
        small = {"collect": {"shards": 4, "lanes": 4, "steps": 64}}
        config = resolve("LunarLander-v3", algo, None, (overrides, small))
        for way in ("inline", "broker"):
            with ExitStack() as held:
                if way == "broker":
                    held.enter_context(_workers(broker, 2))
                channel = broker.url if way == "broker" else None
                run = train(config, directory=path / f"bits-{algo}-{way}", channel=channel)
            vector = run.checkpoint(LAST).weights.vector
            digests.append(hashlib.sha256(vector.tobytes()).hexdigest())
        rows.append((algo, digests[0][:16], digests[1][:16], "yes" if digests[0] == digests[1] else "NO"))
        found[algo] = digests
    columns = ("algorithm, LunarLander-v3, 16,384 steps", "inline", "broker, 2 workers", "same bits")
    return [Table("The final weights of sync runs", columns, rows)], found


class _Sleepy(View):
    """Slows an executor down below the speed of its workers, and samples the flood of their trajectories."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        super().__init__(quiet=True)
        self.broker, self.until = broker, time.monotonic() + seconds
        self.samples: list[tuple[float, int, float, float]] = []

    def progress(self, row: Any, executor: Any) -> None:
        now = time.monotonic()
        if now > self.until:
            executor.stop()
            return
        memory = resident_megabytes(os.getpid())
        self.samples.append((now, executor.channel.backlog(), self.broker.resident_megabytes(), memory))
        time.sleep(1.0)


def _flood(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    shards = 8
    plain = {
        "env": {"id": "CartPole-v1"},
        "collect": {"shards": shards, "lanes": 8, "steps": 128},
        "run": {"steps": 10**12, "until": "steps", "mode": "async", "test_every": 10**12, "max_lag": 1000},
    }
    view = _Sleepy(broker, FLOOD_SECONDS)
    with _workers(broker, shards):
        run = train(Config.from_plain(plain), directory=path / "flood", view=view, channel=broker.url)
    stats = json.loads((run.path / "workers.json").read_text())
    counts, players = stats["trajectories"], stats["players"].values()
    sent = sum(player["sent"] for player in players)
    wait = [player["idle"] + player["blocked"] for player in players]
    played = [player["playing"] for player in players]
    unlearned = counts["accepted"] - counts["acknowledged"]
    balance = sent == counts["received"] + counts["unread"]
    depths = [sample[1] for sample in view.samples]
    node, executor = ([sample[i] for sample in view.samples] for i in (2, 3))
    rows = [
        ("trajectories sent, all workers", f"{sent:,}"),
        ("received by the executor", f"{counts['received']:,}"),
        ("left in the queue at the end", f"{counts['unread']:,}"),
        ("learned", f"{counts['acknowledged']:,}"),
        ("received, not learned, at the end", f"{unlearned:,}"),
        ("dropped and counted", f"{counts['dropped']:,}"),
        ("sent = received + left, received = learned + waiting + dropped", "yes" if balance else "NO"),
        ("deepest queue, limit", f"{max(depths)}, {2 * shards}"),
        ("broker's memory, first and largest", f"{node[0]:.0f} MB, {max(node):.0f} MB"),
        ("executor's memory, first and largest", f"{executor[0]:.0f} MB, {max(executor):.0f} MB"),
        (
            "a worker process played, waited",
            f"{statistics.mean(played):.0f} s, {statistics.mean(wait):.0f} s",
        ),
    ]
    seconds = f"{FLOOD_SECONDS:.0f} s"
    title = f"Flood: eight workers against a slow executor, {seconds}"
    start = view.samples[0][0]
    samples = [(t - start, *rest) for t, *rest in view.samples]
    return [Table(title, ("", "measured"), rows)], {**stats, "balanced": balance, "samples": samples}


def _share(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    """Measure two runs at once, with three workers for both."""
    found: dict[str, Any] = {}

    def one(env: str) -> None:
        found[env] = _train(broker, path / f"share-{env}", env, options.seeds[0])

    with _workers(broker, 1, 3):
        threads = [threading.Thread(target=one, args=(env,)) for env in ("CartPole-v1", "Acrobot-v1")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [_runs_table("Two runs at one broker, three workers for both", found)], found


def _decode(broker: Broker, path: Path, options: argparse.Namespace) -> Measured:
    """Decode LunarLander pairs as JSON lists, parsed twice as published, and as a wire message."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(PAIRS, 8)).astype(np.float32)
    action = rng.integers(0, 4, PAIRS).astype(np.int32)
    text = json.dumps(json.dumps([[o, a] for o, a in zip(obs.tolist(), action.tolist(), strict=True)]))
    raw = wire.encode(wire.Message("pairs", "", {}, {"obs": obs, "action": action}))

    def parse_json() -> None:
        pairs = json.loads(json.loads(text))
        np.array([pair[0] for pair in pairs], np.float32), np.array([pair[1] for pair in pairs], np.int32)

    def parse_wire() -> None:
        wire.decode(raw)

    took = {}
    for name, work in (("JSON", parse_json), ("wire", parse_wire)):
        times = []
        for _ in range(DECODES if name == "wire" else 3):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        took[name] = statistics.median(times)
    ratio = took["JSON"] / took["wire"]
    rows = [
        ("JSON, as published", f"{1000 * took['JSON']:.1f} ms", f"{len(text) / 1e6:.1f} MB"),
        ("wire message", f"{1000 * took['wire']:.2f} ms", f"{len(raw) / 1e6:.1f} MB"),
        ("ratio", f"{ratio:,.0f}", f"{len(text) / len(raw):.1f}"),
    ]
    return [Table("Decoding 100,000 LunarLander pairs", ("", "time", "size"), rows)], {**took, "ratio": ratio}


def _picture(results: Mapping[str, Any]) -> Figure:
    """Draw, left, how clone learns LunarLander, by choice of data; right, the flood's queue and memory."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    for name, row in results.get("lunar", {}).items():
        steps, returns = zip(*row["curve"], strict=True) if row["curve"] else ((), ())
        published = name.startswith("published")
        colour = {"published-1": GREY, "published-2": RED, "published-3": ORANGE, "published-4": BLUE}
        left.plot(steps, returns, color=colour.get(name, GREEN), lw=1.4, label=name if published else None)
    left.plot([], [], color=GREEN, label="by advantage")
    left.axhline(200, color=GREY, lw=0.8, ls=":")
    left.set_title("clone on LunarLander-v3")
    left.set_xlabel("environment steps")
    left.set_ylabel("return of recent episodes, as played")
    left.legend(frameon=False, fontsize=8)
    samples = results.get("flood", {}).get("samples", [])
    if samples:
        seconds = [sample[0] for sample in samples]
        right.plot(seconds, [sample[2] for sample in samples], color=BLUE, label="broker's memory, MB")
        right.plot(seconds, [sample[3] for sample in samples], color=GREEN, label="executor's memory, MB")
        right.plot(seconds, [sample[1] for sample in samples], color=RED, label="messages in the data queue")
        right.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.7))
    right.set_title("eight workers against a slow executor")
    right.set_xlabel("seconds")
    for axes in (left, right):
        tidy(axes)
    return figure


PARTS = {
    "cartpole": _cartpole,
    "lunar": _lunar,
    "speed": _speed,
    "bits": _bits,
    "flood": _flood,
    "share": _share,
    "decode": _decode,
}
