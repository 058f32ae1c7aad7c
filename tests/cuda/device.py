"""What the tests on a GPU share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import hamlearn as hl
from hamlearn.loops import CudaLoop, Kind, translate_to_cuda
from tests.problems import Problem

on_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: there is none on this machine"),
]


class Brought:
    """A kernel on the GPU as a loop for tensors on the CPU, with results that begin as what is not a number."""

    def __init__(self, loop: CudaLoop) -> None:
        self.loop = loop

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor], groups: int = 1
    ) -> list[Tensor]:
        there = [[tensor.cuda() for tensor in part] for part in (carry, samples, constants)]
        lanes = self.loop.kernel.lanes
        poison = [
            torch.full((steps, groups, *shape, lanes) if lanes > 1 else (steps, *shape), 255, dtype=torch.uint8)
            .repeat_interleave(dtype.itemsize, -1 if shape or lanes > 1 else 0)
            .cuda()
            for shape, dtype in self.loop.kernel.results
        ]
        # The memory that is given back here is what the results are made of.
        del poison
        results = self.loop(steps, *there, groups)
        for old, new in zip(carry, there[0], strict=True):
            old.copy_(new)
        return [result.cpu() for result in results]


def by_gpu(threads: int, shared: int = 1 << 16, blocks: int = 1) -> Any:
    """Makes loops on the GPU, as `tests.loops.running` takes them."""

    def make(graph: fx.GraphModule, kinds: list[Kind], laned: list[bool], lanes: int) -> Brought:
        kernel = translate_to_cuda(graph, kinds, laned, lanes, threads, shared, blocks)
        return Brought(CudaLoop(kernel, torch.device("cuda")))

    return make


def moved(sample: hl.Sample) -> hl.Sample:
    """A sample on the GPU."""
    target = None if sample.target is None else sample.target.cuda()
    return hl.Sample(sample.u.cuda(), target, sample.tau, sample.boundary)


def both(problem: Problem, chunk: int, **setting: Any) -> tuple[hl.Learner, hl.Learner, list[Any], list[Any]]:
    """An eager run on the CPU, and a compiled one on the GPU."""
    problem.samples[-1].boundary = True
    eager, compiled = problem.learner(**setting), problem.learner(**setting)
    hyper = dataclasses.replace(problem.hyper, beta=_brought(problem.hyper.beta))
    compiled = hl.Learner(compiled.network.cuda(), problem.loss, hyper, **filled(setting))
    one = list(eager.run(problem.samples))
    other = list(compiled.run([moved(sample) for sample in problem.samples], engine="compiled", chunk=chunk))
    return eager, compiled, one, other


def _brought(beta: Any) -> Any:
    if isinstance(beta, Tensor):
        return beta.cuda()
    return {name: _brought(entry) for name, entry in beta.items()} if isinstance(beta, dict) else beta


def filled(setting: dict[str, Any]) -> dict[str, Any]:
    """A learner's setting, as `Problem.learner` fills it up."""
    return {"order": "parallel", "credit": hl.Forward(), **setting}


def assert_alike(eager: hl.Learner, compiled: hl.Learner, one: list[Any], other: list[Any], close: float) -> None:
    """Weights, costates, states and reports agree."""
    same = lambda a, b: torch.testing.assert_close(b.cpu(), a.cpu(), rtol=close, atol=close)  # noqa: E731
    for a, b in zip(eager.network.parameters(), compiled.network.parameters(), strict=True):
        same(a.detach(), b.detach())
    for name, omega in eager.state.omega.items():
        same(omega, compiled.state.omega[name])
    for name in ("h", "z"):
        here, there = (torch.utils._pytree.tree_leaves(getattr(x.state, name)) for x in (eager, compiled))
        for a, b in zip(here, there, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                same(a, b)
    assert (compiled.state.t, compiled.state.updates) == (eager.state.t, eager.state.updates)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        same(a.y, b.y)
        assert b.t == a.t
        assert (a.loss is None) == (b.loss is None)
        if a.loss is not None:
            same(a.loss, b.loss)
