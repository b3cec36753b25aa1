"""The messages between a child and its parent, in `wire.py`'s binary format.

child                                  parent
hello (protocol, name, token, life) -> welcome (settings, structure, format, first weights), or refused
ready (structure, format)           -> (nothing), or refused
exchange (weights, totals)          -> answer (weights), or refused
end                                 -> (closes)

A life is one process of a child. It counts its steps and episodes from 0, and the parent books what is new
in each total, so nothing is counted twice when an answer is lost.

When all exchanges are made, the parent closes every connection with the code OVER, and waits a little for
children that were lost. A child that loses its connection in any other way looks for its parent until it is
stopped or its patience ends.
"""

import hmac
import json
import math
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.averaging.maths import FORMATS, Format, dequantise
from manyhands.core import payloads, wire
from manyhands.core.arrays import Array
from manyhands.core.checks import require
from manyhands.core.errors import UsageError, WireError
from manyhands.core.networks import NetSpec
from manyhands.core.weights import Weights, weights_nbytes
from manyhands.system.secret_files import read_secret

DEFAULT_ALGO = "a3c"
DEFAULT_PORT = 8765
PROTOCOL = 5
OVER = 4000
HEADROOM = 64 * 1024
"""Bytes of a message beside its weights."""
NAME_LENGTH = 64
NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_LENGTH}}}")
NAME_RULE = f"up to {NAME_LENGTH} letters of a to z, digits, dots, dashes and underscores"
MOST = 1e15
"""The number below which children's counts and measures stay."""


@dataclass(frozen=True)
class AveragingConfig:
    """How a parent and its children average."""

    alpha: float = 0.9
    """Share of a child's weights in the parent's: theta_P <- (1 - alpha) theta_P + alpha theta_C."""
    beta: float = 0.0
    """Share of the parent's weights in a child's: theta_C <- (1 - beta) theta_C + beta theta_P."""
    exchanges: int = 2000
    """The parent ends after this many exchanges."""
    every: int = 0
    """A child's steps between two exchanges; 0 exchanges after every update, which is an episode for a3c."""
    format: Format = "float32"
    """How weights travel."""
    max_step: float | None = None
    """How far one exchange may move the parent. None refuses weights that are absurdly far away (see
    `maths.absurdity`); a length shortens every longer step to it; 0 takes whatever comes."""
    hogwild: bool = False
    """Let children's exchanges overwrite one another instead of taking turns."""
    checkpoint_every: int = 100
    """Exchanges between two checkpoints that are kept."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            self._require(name, lambda value: 0 <= value <= 1, "between 0 and 1")
        for name in ("exchanges", "checkpoint_every"):
            self._require(name, lambda value: 1 <= value < MOST, "1 or more")
        self._require("every", lambda value: 0 <= value < MOST, "0 or more")
        if self.max_step is not None:
            self._require("max_step", lambda value: 0 <= value < math.inf, "auto, or a length of 0 or more")
        self._require("format", lambda value: value in FORMATS, f"one of {', '.join(FORMATS)}")

    def _require(self, name: str, holds: Callable[[Any], bool], allowed: str) -> None:
        """Check a field, and name it in the error as the option by which users set it."""
        value = getattr(self, name)
        require(holds(value), f"--{name.replace('_', '-')}", value, allowed)


def structure(spec: NetSpec, how: Format) -> dict[str, Any]:
    """Return what a child and its parent must have alike, beside its hash: their network, and its numbers."""
    return {"network": json.loads(spec.to_json()), "dtype": "float32", "format": how}


def difference(theirs: Any, ours: Any, name: str = "") -> str:
    """Say how two structures that messages may carry differ; return "" where they are equal."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        theirs, ours = dict(enumerate(theirs)), dict(enumerate(ours))
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        parts = (difference(theirs.get(key), ours[key], f"{name}.{key}".lstrip(".")) for key in ours)
        return ", ".join(part for part in parts if part)
    if theirs == ours:
        return ""
    return f"{name} is {theirs!r:.100} where the parent has {ours!r:.100}"


def message_limit(spec: NetSpec) -> int:
    """Return the bytes of the largest message about a network's weights."""
    return weights_nbytes(spec.size, spec.statistics) + HEADROOM


def statistics(spec: NetSpec, beside: Mapping[str, Array]) -> dict[str, Array]:
    """Return the statistics of inputs, of all that is beside the weights."""
    return {name: beside[name] for name, _ in spec.statistics}


def read_weights(message: wire.Message, spec: NetSpec, how: Format, version: int) -> Weights:
    """Read quantised weights and the statistics of inputs, as they are exchanged.

    Raise WireError for anything but the finite numbers that `spec` has, in the format agreed on.
    """
    vector = dequantise(message.arrays, how, spec.size)
    beside = payloads.read_beside(message.arrays, spec.statistics, ("values", "scales"))
    return Weights(version, vector, spec.schema, beside)


def text(meta: Mapping[str, Any], name: str, limit: int = NAME_LENGTH) -> str:
    found = meta.get(name)
    if not isinstance(found, str) or len(found) > limit:
        raise WireError(f"a message without {name}")
    return found


def number(meta: Mapping[str, Any], name: str, least: float = 0.0) -> float:
    """Return a finite number of a message, `least` or more; raise WireError for all else."""
    found = meta.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found < MOST:
        raise WireError(f"a message whose {name} is {found!r:.60}")
    return float(found)


def checked_name(meta: Mapping[str, Any], name: str) -> str:
    """Return a name that can be shown and written to files; raise WireError for all else."""
    found = meta.get(name)
    if not isinstance(found, str) or not NAME.fullmatch(found):
        raise WireError(f"its {name} is not made of {NAME_RULE}")
    return found


def received(raw: Any, *kinds: str) -> wire.Message:
    """Decode a binary message of one of these kinds; raise WireError for all else."""
    if not isinstance(raw, bytes):
        raise WireError("text where a binary message was expected")
    if raw[:3] == wire.MAGIC and raw[3:4] != b"\0":
        raise WireError("a compressed message, which may be larger than it looks")
    message = wire.decode(raw)
    if message.kind not in kinds:
        raise WireError(f"a message of kind {message.kind!r:.60} where {' or '.join(kinds)} was expected")
    return message


def same_token(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def read_token(path: Path | str | None) -> str:
    if path is None:
        return ""
    return read_secret(path, "--token-file")


def server_tls(certificate: Path | str | None, key: Path | str | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        why = "no certificate and its key in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"cannot use --tls-cert {certificate} and --tls-key {key}: {why}") from error
    return context


def client_tls(url: str, authority: Path | None) -> ssl.SSLContext | None:
    if not url.startswith("wss://"):
        if authority is not None:
            raise UsageError(f"--tls-ca goes with an address that begins with wss://, not {url}")
        return None
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError) as error:
        why = "it is no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"cannot use --tls-ca {authority}: {why}") from error
