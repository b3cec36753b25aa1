"""`python -m benchmarks NAME`: run one benchmark; without a name, list them."""

import importlib
import sys

from manyhands.core.errors import ManyhandsError, did_you_mean
from manyhands.system.signals import interruptible

BENCHMARKS = (
    *("solve", "solved", "speed", "startup", "memory", "broker", "ray", "averaging", "atari", "lto"),
    *("soak", "fuzz", "neighbour", "mutation", "versions"),
)


def main() -> None:
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks NAME [options]\n\nNAME is one of {', '.join(BENCHMARKS)};")
        print("`python -m benchmarks NAME --help` lists its options.")
        return
    if name not in BENCHMARKS:
        hint = did_you_mean(name, BENCHMARKS)
        sys.exit(f"benchmarks: there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}{hint}")
    try:
        with interruptible():
            importlib.import_module(f"benchmarks.{name}").main(rest)
    except ManyhandsError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
