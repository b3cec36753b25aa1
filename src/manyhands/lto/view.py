"""The display of a law that is being learned: training steps, not the moves that they are made of."""

from typing import TYPE_CHECKING

from manyhands.config.settings import Config
from manyhands.lto.law import problem_of
from manyhands.runs.store import Run
from manyhands.runs.view import View, counted
from manyhands.system.program import program

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor


class LawView(View):
    """The view of a run of `manyhands lto`, whose --steps are updates of the law."""

    speed_unit = "moves/s"

    def amount(self, executor: "Executor") -> str:
        return f"{executor.weights.version:,} training steps"

    def counted(self, executor: "Executor", speed: float) -> list[tuple[str, str]]:
        config, version = executor.config, executor.weights.version
        rest = [pair for pair in counted(executor, speed) if not pair[0].startswith("steps")]
        whole = config.run.steps // config.collect.batch
        return [("steps", f"{version:,} of {whole:,}"), (self.speed_unit, f"{speed:,.0f}"), *rest]

    def next_step(self, run: Run, config: Config) -> str:
        conditions = problem_of(run).c
        given = f" --c {' '.join(['0'] * conditions)}" if conditions else ""
        return f"{program()} lto predict {run.path}{given}"

    def resuming(self, run: Run, config: Config) -> str:
        return f"{program()} lto --resume {run.path}"
