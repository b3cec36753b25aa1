"""A child: trains by itself with any algorithm, and exchanges weights with its parent now and then."""

import math
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from manyhands import wire
from manyhands.algos.configs import DqnConfig, HogwildConfig
from manyhands.algos.horizon import Horizon
from manyhands.averaging.maths import Feedback, dequantise
from manyhands.averaging.protocol import OVER, PROTOCOL, AveragingConfig, client_tls, number, received
from manyhands.config import Config
from manyhands.errors import ManyhandsError, RunError, UsageError, WireError
from manyhands.experience import Trajectory
from manyhands.policy import Float32, NetSpec, Weights

OPEN_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0
"""Seconds after which an exchange without an answer counts as a lost connection."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds between two attempts to come back."""
RECENT = 100
"""Episodes in the mean of recent returns."""
MAX_WELCOME = wire.MAX_MESSAGE


@dataclass(frozen=True)
class Welcome:
    """What a parent tells a child that joins."""

    config: Config
    spec: NetSpec
    averaging: AveragingConfig
    weights: Weights

    @classmethod
    def from_message(cls, message: wire.Message) -> "Welcome":
        try:
            spec = NetSpec.from_json(message.meta["spec"])
            vector = message.arrays["vector"]
            if vector.dtype != np.float32 or vector.shape != (spec.size,) or not np.isfinite(vector).all():
                raise WireError(f"weights that are not {spec.size} finite numbers")
            return cls(
                Config.from_plain(message.meta["config"]),
                spec,
                AveragingConfig(**message.meta["averaging"]),
                Weights(int(message.meta["version"]), vector.copy(), spec.schema),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UsageError) as error:
            raise WireError(f"the parent's welcome cannot be read: {error}") from error


class Mixable(Protocol):
    """A learner that lets others have a share in its weights."""

    def weights(self) -> Weights: ...

    def mix(self, vector: Float32, share: float) -> None: ...


class RefusedError(RunError):
    """The parent does not want this child."""


class OverError(RunError):
    """The parent has all that it wanted."""


class Link:
    """A connection to the parent that comes back by itself when it is lost."""

    def __init__(
        self,
        url: str,
        name: str,
        token: str = "",
        authority: Path | None = None,
        patience: float = math.inf,
    ) -> None:
        """`patience`: seconds after which a child that has lost its parent stops looking for it."""
        self.url, self.name, self.token, self.patience = url, name, token, patience
        self.life = secrets.token_hex(8)
        self.tls = client_tls(url, authority)
        self.connection: ClientConnection | None = None
        self.joined: Welcome | None = None
        self.ready: wire.Message | None = None
        self.averaging = AveragingConfig()  # as the parent last told
        self.said: Callable[[str], None] = lambda text: None
        self.ended: Callable[[], None] = lambda: None
        self.closed = threading.Event()
        self.over = False  # the parent has all that it wanted
        self.refused = ""  # why this child has no parent any more

    def join(self) -> Welcome:
        """The first time; raises where the parent cannot be reached or does not want this child."""
        self.connection, welcome = self._greet()
        self.joined, self.averaging = welcome, welcome.averaging
        return welcome

    def get_ready(self, spec: NetSpec) -> None:
        """States the structure of this child's own network, now and whenever it comes back."""
        self.ready = wire.Message("ready", spec.schema, {"spec": spec.to_json()})
        assert self.connection is not None
        try:
            self.connection.send(wire.encode(self.ready))
        except (ConnectionClosed, OSError) as error:
            raise RunError(f"the parent at {self.url} hung up: {error}") from error

    def _greet(self) -> tuple[ClientConnection, Welcome]:
        try:
            connection = connect(
                self.url,
                ssl=self.tls,
                compression=None,
                open_timeout=OPEN_TIMEOUT,
                max_size=MAX_WELCOME,
            ).__enter__()
        except (OSError, ImportError) as error:  # before ValueError, which a bad certificate is as well
            raise RunError(f"no parent at {self.url}: {error}") from error
        except (InvalidURI, ValueError) as error:
            raise UsageError(f"{self.url!r} is not an address such as ws://host:8765") from error
        except WebSocketException as error:
            raise RunError(f"no parent at {self.url}: {error}") from error
        try:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a parent that takes nothing more counts as gone
                timeout = int(1000 * ANSWER_TIMEOUT)
                connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
            meta = {"protocol": PROTOCOL, "name": self.name, "token": self.token, "life": self.life}
            connection.send(wire.encode(wire.Message("hello", "", meta)))
            message = received(connection.recv(ANSWER_TIMEOUT), "welcome", "refused")
            if message.kind == "refused":
                why = message.meta.get("why")
                raise RefusedError(f"the parent at {self.url} refuses {self.name}: {why}")
            return connection, Welcome.from_message(message)
        except BaseException as error:
            connection.close()
            if _says_over(error):
                raise OverError(f"the parent at {self.url} has all the exchanges that it wanted") from error
            if isinstance(error, ConnectionClosed | OSError):  # a TimeoutError is one
                raise RunError(f"the parent at {self.url} hung up: {error}") from error
            raise

    def ask(self, message: wire.Message, size: int) -> tuple[int, Float32] | None:
        """Sends weights; the parent's version and weights, or None while there is no connection."""
        connection = self.connection
        if connection is None:
            return None
        try:
            connection.send(wire.encode(message))
            answer = received(connection.recv(ANSWER_TIMEOUT), "answer", "refused")
            if answer.kind == "refused":
                self.refused = f"the parent sent {self.name} away: {answer.meta.get('why')}"
                return None
            if answer.schema != message.schema:
                raise WireError(f"weights of structure {answer.schema}")
            version = int(number(answer.meta, "version"))
            return version, dequantise(answer.arrays, self.averaging.format, size)
        except (ConnectionClosed, OSError, TimeoutError, WireError) as error:
            if _says_over(error):
                self.over = True
            else:
                self._lost(connection, _last_words(connection) or str(error) or type(error).__name__)
            return None

    def _lost(self, connection: ClientConnection, why: str) -> None:
        self.connection = None
        connection.close()
        self.said(f"the parent is gone ({why}); training goes on, and so does looking for it")
        threading.Thread(target=self._come_back, name="link", daemon=True).start()

    def _come_back(self) -> None:
        wait, told, until = FIRST_WAIT, "", time.monotonic() + self.patience
        while not self.closed.wait(wait * random.uniform(0.5, 1.0)):
            wait = min(2 * wait, LONGEST_WAIT)
            try:
                connection, welcome = self._greet()
            except OverError:
                self.over = True
                self.ended()
                return
            except ManyhandsError as error:
                if isinstance(error, RefusedError) and str(error) != told:
                    told = str(error)
                    self.said(told)
                if time.monotonic() > until:
                    self._give_up(f"{error}; it was looked for during {self.patience:g} s")
                    return
                continue
            if self._go_on_with(connection, welcome):
                return

    def _go_on_with(self, connection: ClientConnection, welcome: Welcome) -> bool:
        """Whether there is nothing more to look for."""
        assert self.ready is not None
        assert self.joined is not None
        if (welcome.config, welcome.spec) != (self.joined.config, self.joined.spec):
            connection.close()
            task = f"{welcome.config.env.id} with {welcome.config.run.algo}"
            self._give_up(f"the parent at {self.url} has another task now ({task}); start this child anew")
            return True
        try:
            connection.send(wire.encode(self.ready))
        except (ConnectionClosed, OSError):
            connection.close()
            return False
        self.averaging = welcome.averaging
        self.connection = connection
        self.said("the parent is back")
        if self.closed.is_set():
            self.close()
        return True

    def _give_up(self, why: str) -> None:
        self.refused = why
        self.ended()

    def close(self) -> None:
        self.closed.set()
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(ConnectionClosed, OSError):
                connection.send(wire.encode(wire.Message("end")))
            connection.close()


def _says_over(error: BaseException) -> bool:
    return isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == OVER


def _last_words(connection: ClientConnection) -> str:
    """Why the parent has closed it, if it said so."""
    try:
        return str(received(connection.recv(0), "refused").meta.get("why"))
    except (ConnectionClosed, OSError, TimeoutError, WireError):
        return ""


class Exchanger:
    """What happens between two updates of a child's learner."""

    def __init__(self, link: Link, spec: NetSpec, version: int) -> None:
        self.link, self.spec, self.base = link, spec, version
        self.feedback = Feedback(link.averaging.format, spec.size)
        self.steps, self.episodes, self.exchanges = 0, 0, 0
        self.told = 0  # steps that the parent knows of
        self.horizon = Horizon(steps=1)
        self._look_ahead()
        self.round_trip = 0.0
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.stop: Callable[[], None] = lambda: None

    def bind(self, stop: Callable[[], None], said: Callable[[str], None]) -> None:
        self.stop, self.link.ended, self.link.said = stop, stop, said

    def after(self, learner: Mixable, trajectories: list[Trajectory]) -> None:
        for trajectory in trajectories:
            self.steps += trajectory.steps
            self.episodes += len(trajectory.episode_return)
            self.recent.extend(map(float, trajectory.episode_return))
        averaging = self.link.averaging
        if self.steps - self.told < averaging.every or self.link.connection is None:
            return
        theirs = self.exchange(learner.weights().vector)
        self._look_ahead()
        if theirs is not None and averaging.beta:
            learner.mix(theirs, averaging.beta)

    def _look_ahead(self) -> None:
        self.horizon.told = max(0.0, 1.0 - self.base / self.link.averaging.exchanges)

    def exchange(self, mine: Float32) -> Float32 | None:
        """The parent's weights after it has heard of ours; None where it cannot be reached."""
        meta = {
            "base": self.base,
            "steps": self.steps,
            "episodes": self.episodes,
            "round_trip": self.round_trip,
            "recent": float(np.mean(self.recent)) if self.recent else None,
        }
        if self.feedback.how != self.link.averaging.format:
            self.feedback = Feedback(self.link.averaging.format, self.spec.size)
        began = time.perf_counter()
        message = wire.Message("exchange", self.spec.schema, meta, self.feedback.quantise(mine))
        answer = self.link.ask(message, self.spec.size)
        if self.link.over or self.link.refused:
            self.stop()
        if answer is None:
            self.feedback = Feedback(self.feedback.how, self.spec.size)  # what was lost, was lost with it
            return None
        self.told = self.steps
        self.round_trip = time.perf_counter() - began
        self.exchanges += 1
        self.base, theirs = answer
        return theirs


def own_config(welcome: Welcome, cores: int, seed: int) -> Config:
    """The parent's settings, for this machine: its cores, a seed of its own, and no end but the parent's."""
    config = welcome.config
    collect = config.collect
    if isinstance(config.algo, HogwildConfig):
        collect = replace(collect, shards=cores)
    elif cores > collect.shards and not isinstance(config.algo, DqnConfig):  # whose network knows its lanes
        collect = replace(collect, shards=cores, lanes=max(1, collect.shards * collect.lanes // cores))
    run = replace(
        config.run,
        workers=cores,
        seed=seed,
        until="told",
        updates=0,
        test_every=10**12,
        checkpoint_every=1e9,
    )
    algo = replace(config.algo, save_memory=False) if isinstance(config.algo, DqnConfig) else config.algo
    return replace(config, collect=collect, run=run, algo=algo)
