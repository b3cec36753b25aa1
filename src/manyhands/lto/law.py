"""A tuning law: what a run has learned, as a function from conditions to the best x, in one shot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.errors import UsageError, missing_extra
from manyhands.core.networks import MEAN, SCALE, NetSpec
from manyhands.core.weights import Weights
from manyhands.envs.lto import ENV_ID, Problem
from manyhands.nets.numpy_net import NumpyNet
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run


@dataclass(frozen=True)
class Law:
    """A policy from the centre of the x: greedy, one move."""

    problem: Problem
    net: NumpyNet

    @classmethod
    def of(cls, problem: Problem, spec: NetSpec, weights: Weights) -> "Law":
        net = NumpyNet(spec)
        net.load(weights.vector, weights.beside)
        return cls(problem, net)

    @classmethod
    def load(cls, run: Run) -> "Law":
        problem = problem_of(run)
        checkpoint = run.checkpoint("last")
        return cls.of(problem, checkpoint.spec, checkpoint.weights)

    def __call__(self, conditions: Array) -> Array:
        """Return x [N, k] for conditions [N, m], both scaled to [-1, 1]."""
        points = np.zeros((len(conditions), self.problem.size), np.float32)
        points[:, self.problem.x :] = conditions
        return np.clip(self.net.forward(points, "policy")[:, : self.problem.x], -1, 1)

    def values(self, conditions: Array, member: int = 0) -> Array:
        """Return f where the law leads."""
        return self.problem.evaluate(np.concatenate([self(conditions), conditions], axis=1), member)

    def predict(self, own: Array) -> tuple[Array, Array]:
        """Return x [N, k] and f [N] for conditions [N, m], all in the function's own units."""
        problem = self.problem
        if own.ndim != 2 or own.shape[1] != problem.c:
            raise UsageError(f"a condition is {problem.c} numbers here, not {own.shape[-1]}")
        low, high = (limit[problem.x :] for limit in problem.limits)
        outside = np.argwhere(~((own >= low) & (own <= high)))
        if len(outside):
            row, column = outside[0]
            raise UsageError(
                f"c is {own[row, column]:g}, outside of its bounds {low[column]:g} to {high[column]:g}"
            )
        conditions = problem.from_units(own, problem.x)
        return problem.to_units(self(conditions)), self.values(conditions)

    def x_alone(self, own: Array) -> Array:
        """Return x without asking the function, which may live elsewhere."""
        return self.problem.to_units(self(self.problem.from_units(own, self.problem.x)))

    def layers(self) -> list[tuple[Array, Array, str]]:
        """Return weights, biases and activations from (x, c) to x, to run the law without this package."""
        found: list[tuple[Array, Array, str]] = [
            (weight.copy(), bias.copy(), activation) for weight, bias, activation in self.net.chains["policy"]
        ]
        weight, bias, activation = found[-1]
        found[-1] = weight[:, : self.problem.x], bias[: self.problem.x], activation
        if self.net.spec.normalise:
            mean, scale = (self.net.statistics[name] for name in (MEAN, SCALE))
            weight, bias, activation = found[0]
            found[0] = weight * scale[:, None], bias - (mean * scale) @ weight, activation
        return found


def problem_of(run: Run) -> Problem:
    env = run.config().env
    if env.id != ENV_ID:
        raise UsageError(f"{run.path} is a run of {env.id}, not of `manyhands lto`")
    return Problem.of(env.kwargs)


def export_npz(law: Law, out: Path) -> None:
    """Write arrays for NumPy alone, from c in the function's own units to x: docs/tuning-laws.md."""
    low, high = law.problem.limits
    arrays: dict[str, Any] = {"low": low, "high": high, "x": np.array(law.problem.x)}
    for i, (weight, bias, activation) in enumerate(law.layers()):
        arrays |= {f"weight{i}": weight, f"bias{i}": bias, f"activation{i}": np.array(activation)}
    with out.open("wb") as file:
        np.savez(file, **arrays)


def export_onnx(law: Law, out: Path) -> None:
    """Write a graph from `c` [N, m] to `x` [N, k], both in the function's own units."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ModuleNotFoundError as error:
        raise missing_extra("an export to ONNX", error.name) from error
    problem = law.problem
    if problem.c == 0:
        raise UsageError("a law without conditions is one point; `manyhands lto predict` prints it")
    low, high = (limit.astype(np.float32) for limit in problem.limits)
    constants: dict[str, Array] = {
        "c_scale": 2 / (high - low)[problem.x :],
        "c_shift": -1 - 2 * low[problem.x :] / (high - low)[problem.x :],
        "x_scale": (high - low)[: problem.x] / 2,
        "x_shift": (high + low)[: problem.x] / 2,
        "least": np.array(-1, np.float32),
        "most": np.array(1, np.float32),
    }
    nodes = [
        helper.make_node("Mul", ["c", "c_scale"], ["c_scaled"]),
        helper.make_node("Add", ["c_scaled", "c_shift"], ["hidden"]),
    ]
    value = "hidden"
    for i, (weight, bias, activation) in enumerate(law.layers()):
        # The x of a start are 0, so the first layer needs the rows of c only.
        constants[f"weight{i}"] = weight[problem.x :] if i == 0 else weight
        constants[f"bias{i}"] = bias
        nodes.append(helper.make_node("Gemm", [value, f"weight{i}", f"bias{i}"], [f"sum{i}"]))
        value = f"sum{i}"
        if activation != "none":
            nodes.append(helper.make_node(activation.capitalize(), [value], [f"out{i}"]))
            value = f"out{i}"
    nodes += [
        helper.make_node("Clip", [value, "least", "most"], ["inside"]),
        helper.make_node("Mul", ["inside", "x_scale"], ["x_scaled"]),
        helper.make_node("Add", ["x_scaled", "x_shift"], ["x"]),
    ]
    tensors = [
        numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name)
        for name, array in constants.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in (("c", problem.c), ("x", problem.x))
    ]
    graph = helper.make_graph(nodes, "tuning_law", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    write_atomically(out, model.SerializeToString())
