"""`manyhands check`: what is wrong with an environment, before a run finds out."""

import argparse
import sys
from typing import Any

from manyhands.cli.options import add_debug, add_settings
from manyhands.config.resolve import merge, parse_override
from manyhands.core.errors import UsageError


def add_check(check: Any) -> None:
    check.description = (
        "Make an environment, play some episodes with random actions, and say in one line each what is wrong "
        "with its spaces, its methods and what they return. Ends with 1 if anything is."
    )
    check.add_argument("env", metavar="ENV", help="a Gymnasium id, or module:callable")
    check.add_argument("--episodes", type=int, default=5, help="how many (default: 5)")
    check.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    add_settings(check)
    add_debug(check)


def check(options: argparse.Namespace) -> None:
    from manyhands.config.settings import Config
    from manyhands.envs.check import check as check_env

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    given = merge(*map(parse_override, options.set))
    others = [f"{section}.{name}" for section in given if section != "env" for name in given[section]]
    if others:
        raise UsageError(f"only env.kwargs may be set for a check, not {', '.join(others)}")
    config = Config.from_plain(merge(given, {"env": {"id": options.env}})).env
    found = check_env(config, options.episodes, options.seed)
    print(found)
    if found.problems:
        sys.exit(1)


COMMANDS = {
    "check": (add_check, check),
}
"""Commands by name: what adds its options, and what it does."""
