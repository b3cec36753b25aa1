"""Fuzzes all code that reads messages of others with nearly right ones, and reports what is not refused.

Coverage-guided: an input that reaches new code is kept and changed further. Each target has a process of its
own, in which `--target NAME` fuzzes and prints one JSON object.
"""

# Nothing of manyhands is imported here but what the fuzzer itself needs: what is imported before atheris
# can look at it counts no coverage.
import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

TARGETS = ("wire", "orders", "executor", "worker", "joined", "child", "parent", "settings")
LONGEST_INPUT = 1.0
"""Seconds of a core that one input may take, whatever else the machine does."""
HANG = 20
"""Seconds after which the fuzzer itself ends the process."""
MOST_GROWTH = 300 * 10**6
"""Bytes by which a process may grow."""
ALLOCATION = 2 * 2**30
"""Bytes of address space beyond what it has at the start: no message may make it ask for more."""
MOST_FINDINGS = 20
LOOK = 100
"""Inputs between two checks of the memory."""


@dataclass
class Finding:
    """Something that must not happen, with the shortest input that makes it happen."""

    error: str
    where: str
    input: str  # hex
    traceback: str
    times: int = 1


class Watch:
    """Runs a target on one input after another, and keeps what goes wrong."""

    def __init__(self, target: Any, unpack: Any, seconds: float) -> None:
        self.target, self.unpack = target, unpack
        self.findings: dict[tuple[str, str], Finding] = {}
        self.executions, self.slowest = 0, 0.0
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.baseline = self.peak = _resident()

    def __call__(self, data: bytes) -> None:
        if time.monotonic() > self.deadline or len(self.findings) >= MOST_FINDINGS:
            self.finish()
        self.executions += 1
        seconds = self._run(data)
        if seconds > LONGEST_INPUT:
            seconds = min(seconds, self._run(data))  # once more: others use this machine, too
            if seconds > LONGEST_INPUT:
                self._note("took too long", f"{seconds:.1f} s", "", data)
        self.slowest = max(self.slowest, seconds)
        if self.executions % LOOK == 0:
            self._look_at_memory(data)

    def _run(self, data: bytes) -> float:
        began = time.process_time()
        try:
            self.target.run(self.unpack(data))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._note(text, _where(error), "".join(traceback.format_exception(error)), data)
        return time.process_time() - began

    def _note(self, error: str, where: str, trace: str, data: bytes) -> None:
        key = (error.partition(":")[0], where)
        known = self.findings.get(key)
        if known is None:
            self.findings[key] = Finding(error[:500], where, data.hex(), trace[-4000:])
            return
        known.times += 1
        if len(data) * 2 < len(known.input):
            known.error, known.input, known.traceback = error[:500], data.hex(), trace[-4000:]

    def _look_at_memory(self, data: bytes) -> None:
        self.peak = max(self.peak, _resident())
        if self.peak - self.baseline > MOST_GROWTH:
            gc.collect()
            self._note("memory grew", f"by {(self.peak - self.baseline) / 1e6:.0f} MB", "", data)
            self.finish()

    def finish(self) -> NoReturn:
        """Print the result and end the process, because the fuzzer would go on."""
        self.peak = max(self.peak, _resident())
        result = {
            "seconds": round(time.monotonic() - self.began, 1),
            "executions": self.executions,
            "slowest": round(self.slowest, 3),
            "growth_mb": round((self.peak - self.baseline) / 1e6, 1),
            "findings": [asdict(finding) for finding in self.findings.values()],
        }
        print(json.dumps(result), flush=True)
        os._exit(0)


def _resident() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident


def _where(error: BaseException) -> str:
    """Return the innermost line of manyhands itself, of the error or of what caused it."""
    found = "?"
    while True:
        for step in traceback.extract_tb(error.__traceback__):
            file = step.filename.replace("\\", "/")
            if "/manyhands/" in file:
                found = f"{file.rpartition('/manyhands/')[2]}:{step.lineno} {step.name}"
        if error.__cause__ is None:
            return found
        error = error.__cause__


def fuzz(name: str, seconds: float, seed: int) -> NoReturn:
    """Fuzzes one target in this process."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # an environment may be asked for a window
    import atheris

    from benchmarks.fuzz_inputs import LONGEST, Mutator, pack_frames, unpack_frames

    with atheris.instrument_imports(include=["manyhands"]):
        from benchmarks import fuzz_targets

        target = fuzz_targets.TARGETS[name]()
    seeds = target.seeds()
    for frames in seeds:
        target.run(frames)  # what is all right must be
    warnings.simplefilter("error")
    gc.collect()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    reserved = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (reserved + ALLOCATION, most))
    with tempfile.TemporaryDirectory(prefix="manyhands-fuzz-") as directory:
        for number, frames in enumerate(seeds):
            (Path(directory) / f"seed{number}").write_bytes(pack_frames(frames))
        options = (f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={HANG}", "-rss_limit_mb=0")
        watch = Watch(target, unpack_frames, seconds)
        mutator = Mutator(seeds, of_text=name == "settings")
        atheris.Setup(["fuzz", *options, directory], watch, custom_mutator=mutator)
        atheris.Fuzz()
    watch.finish()


def repeat(name: str, hexadecimal: str) -> None:
    """Runs one target on one input, such as one of a report."""
    from benchmarks import fuzz_inputs, fuzz_targets

    target = fuzz_targets.TARGETS[name]()
    target.run(fuzz_inputs.unpack_frames(bytes.fromhex(hexadecimal)))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fuzz", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, help="only this one, in this process; prints JSON")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (default: 1)")
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="targets side by side (default: 1)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=TARGETS, default=TARGETS, help="the other results stay as they were"
    )
    parser.add_argument("--input", metavar="HEX", help="with --target: run this one input and nothing else")
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    options = parser.parse_args(arguments)
    if options.target is None:
        from benchmarks.fuzz_report import report

        report(options.only, options.seconds, options.seed, options.at_once, arguments, options.out)
    elif options.input is not None:
        repeat(options.target, options.input)
    else:
        fuzz(options.target, options.seconds, options.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
