"""Checks of settings: what was given, and what is allowed."""

import math
from typing import Any

from manyhands.core.errors import UsageError


def require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {value!r}; it must be {allowed}")


def positive(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(math.isfinite(value) and value > 0, f"{prefix}.{name}", value, "greater than 0")


def not_negative(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(math.isfinite(value) and value >= 0, f"{prefix}.{name}", value, "0 or more")


def unit(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(0 <= value <= 1, f"{prefix}.{name}", value, "between 0 and 1")
