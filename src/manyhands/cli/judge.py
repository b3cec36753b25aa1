"""`manyhands eval` and `manyhands play`: an agent's scores, and a film of it."""

import argparse
import json
from pathlib import Path
from typing import Any

from manyhands.cli.options import add_debug
from manyhands.core.errors import UsageError
from manyhands.core.texts import figures
from manyhands.runs import store


def add_eval(judge: Any) -> None:
    judge.add_argument("run", metavar="RUN", help="a run's name or path")
    judge.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    judge.add_argument("--seed", type=int, help="of the episodes (default: 1000000)")
    judge.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    _add_which(judge)
    judge.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_debug(judge)


def add_play(play: Any) -> None:
    play.add_argument("run", metavar="RUN", help="a run's name or path")
    play.add_argument("--out", type=Path, default=Path("play.mp4"), help=".mp4 or .gif (default: play.mp4)")
    play.add_argument("--episodes", type=int, default=1, help="how many, one after the other (default: 1)")
    play.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    _add_which(play)
    add_debug(play)


def _add_which(parser: Any) -> None:
    parser.add_argument(
        "--which",
        metavar="CHECKPOINT",
        help="best, last or, of a parent, such as exchange-000500 (default: the best tested, else the last)",
    )


def evaluate(options: argparse.Namespace) -> None:
    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    scores = found.evaluate(options.episodes, options.seed, options.sample, options.which)
    print(json.dumps(scores.numbers()) if options.json else f"{found.name}: {scores}")


def play(options: argparse.Namespace) -> None:
    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    returns = found.video(options.out, options.episodes, options.seed, options.which)
    scores = ", ".join(map(figures, returns))
    print(f"Wrote {options.out}; score {scores}")


COMMANDS = {
    "eval": (add_eval, evaluate),
    "play": (add_play, play),
}
"""Commands by name: what adds its options, and what it does."""
