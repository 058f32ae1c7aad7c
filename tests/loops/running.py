"""Graphs run twice: by PyTorch, and as a loop in C or CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from hamlearn.loops import Kind, Loop, library, translate
from hamlearn.loops.recording import pure_graph
from tests.loops.graphs import STEPS, Problem, random_problem

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
LANES, GROUPS = 3, 2
Make = Callable[[fx.GraphModule, list[Kind], list[bool], int], Any]
"""(graph, kinds, laned, lanes) to a loop."""


def assert_same(result: Tensor, expected: Tensor, what: object) -> None:
    """Equal in shape, type and, to the last digits of the type, in value; NaN equals NaN."""
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    torch.testing.assert_close(
        result, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


@contextmanager
def quickly_compiled() -> Iterator[None]:
    """Compile with little optimization: the loops' meaning is at stake, not what a compiler makes of it."""
    levels = library.GCC_LEVEL, library.LEVEL
    library.GCC_LEVEL = library.LEVEL = ["-O1"]
    yield
    library.GCC_LEVEL, library.LEVEL = levels


def check(cases: dict[str, Callable[..., Any]], *inputs: Tensor) -> None:
    """Each function, all in one program, for one network and for members that differ in floating-point inputs."""

    def function(*given: Tensor) -> list[Tensor]:
        return [tensor for case in cases.values() for tensor in _listed(case(*given))]

    members = [[_other(tensor, member) for tensor in inputs] for member in range(LANES)]
    graph = pure_graph(function, list(inputs))
    kinds: list[Kind] = ["constant"] * len(inputs)
    single = Loop(translate(graph, kinds, [False] * len(inputs)))
    results = single(1, [], [], [tensor.contiguous() for tensor in inputs])
    own = [tensor.is_floating_point() for tensor in inputs]
    with quickly_compiled():
        several = Loop(translate(graph, kinds, own, LANES))
    each = zip(zip(*members, strict=True), own, strict=True)
    stacked = [torch.stack(tensors, -1) if laned else tensors[0] for tensors, laned in each]
    rows = several(1, [], [], [tensor.contiguous() for tensor in stacked])
    expected = [[*function(*inputs)], *(function(*member) for member in members)]
    names = [name for name, case in cases.items() for _ in _listed(case(*inputs))]
    for number, name in enumerate(names):
        assert_same(results[number][0], expected[0][number], name)
        for member in range(LANES):
            assert_same(rows[number][0, 0, ..., member], expected[1 + member][number], f"{name}, member {member}")


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _other(tensor: Tensor, member: int) -> Tensor:
    return tensor.roll(member) * (1 + member) if tensor.is_floating_point() else tensor


def by_steps(
    graph: fx.GraphModule, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The loop over steps in Python: the last carry, and the results of each step."""
    rows = []
    for step in range(len(samples[0])):
        out = graph(*carry, *(tensor[step] for tensor in samples), *constants)
        carry, results = list(out[: len(carry)]), list(out[len(carry) :])
        rows.append([tensor.clone() for tensor in results])
    return carry, rows


def kinds_of(carry: Sequence[Tensor], samples: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Kind]:
    """The kinds of the inputs of a graph that takes them in this order."""
    return [*["carry"] * len(carry), *["sample"] * len(samples), *["constant"] * len(constants)]  # type: ignore[list-item]


def in_c(graph: fx.GraphModule, kinds: list[Kind], laned: list[bool], lanes: int) -> Any:
    """A loop in C."""
    return Loop(translate(graph, kinds, laned, lanes))


def assert_single(problem: Problem, make: Make = in_c) -> None:
    """A loop over steps gives, to the bit, what a loop in Python over the same graph gives."""
    carry, samples, constants = (
        [x.clone() for x in part] for part in (problem.carry, problem.samples, problem.constants)
    )
    graph = pure_graph(problem.step, [*carry, *(x[0] for x in samples), *constants])
    expected, rows = by_steps(graph, problem.carry, samples, constants)
    kinds = kinds_of(carry, samples, constants)
    results = make(graph, kinds, [False] * len(kinds), 1)(STEPS, carry, samples, constants)
    for new, old in zip(carry, expected, strict=True):
        assert torch.equal(new, old)
    for number, result in enumerate(results):
        for step in range(STEPS):
            assert torch.equal(result[step], rows[step][number])


def assert_population(seed: int, make: Make = in_c) -> None:
    """Members in groups, each with its own carry, and some with samples and constants of their own."""
    members = [random_problem(seed, member) for member in range(LANES * GROUPS)]
    first = members[0]
    count = len(first.carry)
    own = [True] * count + [(seed + k) % 3 > 0 for k in range(len(first.samples) + len(first.constants))]
    for member in members[1:]:
        for k, name in enumerate(["samples"] * len(first.samples) + ["constants"] * len(first.constants)):
            at = k if name == "samples" else k - len(first.samples)
            if not own[count + k]:
                getattr(member, name)[at] = getattr(first, name)[at]
    graph = pure_graph(first.step, [*first.carry, *(x[0] for x in first.samples), *first.constants])
    kinds = kinds_of(first.carry, first.samples, first.constants)
    loop = make(graph, kinds, own, LANES)
    groups = []
    for part, axis, offset in (
        ("carry", 0, 0),
        ("samples", 1, count),
        ("constants", 0, count + len(first.samples)),
    ):
        tensors = []
        for k in range(len(getattr(first, part))):
            each = [getattr(member, part)[k] for member in members]
            stacked = [torch.stack(each[g * LANES : (g + 1) * LANES], -1) for g in range(GROUPS)]
            tensors.append(torch.stack(stacked, axis).contiguous() if own[offset + k] else each[0])
        groups.append(tensors)
    results = loop(STEPS, *groups, GROUPS)
    for number, member in enumerate(members):
        g, lane = divmod(number, LANES)
        expected, rows = by_steps(graph, member.carry, member.samples, member.constants)
        for new, old in zip(groups[0], expected, strict=True):
            assert torch.equal(new[g, ..., lane], old)
        for k, result in enumerate(results):
            for step in range(STEPS):
                assert torch.equal(result[step, g, ..., lane], rows[step][k])
