"""Many children in one process, with real sockets and a stand-in for the training; for `averaging`.

Each says hello, gets ready, plays episodes of CartPole-v1 at random, and exchanges after each of them as a
child does, with weights that it shakes a little instead of training them. Prints one JSON object: exchanges,
their rate, round trips in milliseconds.
"""

import argparse
import asyncio
import json
import time

import gymnasium
import numpy as np
from websockets.asyncio.client import connect

from manyhands.averaging.maths import Feedback
from manyhands.averaging.protocol import PROTOCOL, read_weights, received, structure
from manyhands.averaging.welcome import Welcome
from manyhands.core import payloads, wire

PAUSE = 0.25
"""Seconds between two episodes, as training would take: few enough exchanges for this one process to make."""


async def child(url: str, number: int, until: float, trips: list[float]) -> int:
    rng = np.random.default_rng(number)
    await asyncio.sleep(float(rng.random()))
    async with connect(url, compression=None, max_size=None) as connection:
        meta = {"protocol": PROTOCOL, "name": f"swarm-{number}", "token": "", "life": str(number)}
        await connection.send(wire.encode(wire.Message("hello", "", meta)))
        welcome = Welcome.from_message(received(await connection.recv(), "welcome"))
        spec, how = welcome.spec, welcome.averaging.format
        weights = welcome.weights
        feedback = Feedback(how, spec.size)
        await connection.send(wire.encode(wire.Message("ready", spec.schema, structure(spec, how))))
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=number)
        count = played = 0
        while time.perf_counter() < until:
            await asyncio.sleep(PAUSE * float(rng.uniform(0.5, 1.5)))
            over = False
            while not over:
                _, _, terminated, truncated, _ = env.step(int(rng.integers(2)))
                over, played = terminated or truncated, played + 1
            env.reset()
            vector = weights.vector + rng.normal(0, 0.001, spec.size).astype(np.float32)
            counts = {"base": weights.version, "steps": played, "episodes": count + 1}
            facts = {**counts, "round_trip": 0.0, "recent": None}
            arrays = {**feedback.quantise(vector), **payloads.beside_arrays(weights.beside)}
            message = wire.Message("exchange", spec.schema, facts, arrays)
            began = time.perf_counter()
            await connection.send(wire.encode(message))
            answer = received(await connection.recv(), "answer")
            trips.append(time.perf_counter() - began)
            weights = read_weights(answer, spec, how, int(answer.meta["version"]))
            count += 1
        await connection.send(wire.encode(wire.Message("end")))
    return count


async def swarm(url: str, children: int, seconds: float) -> None:
    began = time.perf_counter()
    trips: list[float] = []
    counts = await asyncio.gather(*(child(url, n, began + seconds, trips) for n in range(children)))
    took = time.perf_counter() - began
    late = np.array(trips[len(trips) // 4 :]) * 1000  # after all have joined
    result = {
        "exchanges": sum(counts),
        "seconds": took,
        "least": min(counts),
        "rate": sum(counts) / took,
        "p50": float(np.percentile(late, 50)),
        "p99": float(np.percentile(late, 99)),
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--children", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(swarm(options.url, options.children, options.seconds))


if __name__ == "__main__":
    main()
