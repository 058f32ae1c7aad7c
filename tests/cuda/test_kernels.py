"""Kernels on a GPU give, to the bit, what PyTorch gives on the CPU."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from hamlearn.loops import CudaLoop, multi_block, translate_to_cuda
from hamlearn.loops.capture import capture
from hamlearn.loops.recording import pure_graph
from tests.cuda.device import by_gpu, on_gpu
from tests.loops.graphs import STEPS, Problem, random_problem
from tests.loops.running import assert_population, assert_single
from tests.loops.test_carries import CROSSINGS
from tests.loops.test_kernels import wide_step

pytestmark = on_gpu


@pytest.mark.parametrize("seed", range(500, 512))
def test_random_steps_are_those_of_pytorch(seed: int) -> None:
    assert_single(random_problem(seed), by_gpu(32 << seed % 5, shared=[1 << 16, 512, 0][seed % 3]))


@pytest.mark.parametrize("seed", range(512, 524))
def test_random_steps_of_several_blocks_are_those_of_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_block, "MATRIX", 4)
    assert_single(random_problem(seed), by_gpu(64, blocks=2 + seed % 6))


@pytest.mark.parametrize("seed", range(600, 606))
def test_each_member_of_a_population_is_a_single_run(seed: int) -> None:
    assert_population(seed, by_gpu(64, shared=[1 << 16, 400][seed % 2]))


@pytest.mark.parametrize("name", CROSSINGS)
def test_carries_that_cross_are_read_before_they_are_written(name: str) -> None:
    square = torch.arange(9).reshape(3, 3).double()
    samples = torch.stack([square % (k + 2) for k in range(STEPS)])
    assert_single(Problem(CROSSINGS[name], [square - 4 * k for k in range(3)], [samples], []), by_gpu(128))


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_long_folds_are_shared_out_over_warps_and_blocks(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_block, "MATRIX", 100)
    draw = torch.Generator().manual_seed(blocks)
    W = torch.randint(-3, 4, (7, 301), generator=draw).double()
    samples = torch.randint(-2, 3, (STEPS, 301), generator=draw).double()
    problem = Problem(wide_step, [W, torch.zeros((), dtype=torch.int64)], [samples], [])
    assert_single(problem, by_gpu(256, blocks=blocks))


def test_a_hundred_runs_on_concurrent_streams_end_alike() -> None:
    """Kernels whose blocks wait for each other, several at once: none waits for ever, and all give equal bits."""

    def step(W: torch.Tensor, h: torch.Tensor, u: torch.Tensor) -> list[torch.Tensor]:
        h = torch.tanh(W @ h + u)
        return [W + 0.01 * h[:, None] * u, h, h.sum()]

    carry = [torch.randn(128, 128) / 12, torch.zeros(128)]
    samples = [torch.randn(50, 128, device="cuda")]
    graph = pure_graph(step, [*carry, samples[0][0].cpu()])
    kernel = translate_to_cuda(graph, ["carry", "carry", "sample"], [False] * 3, threads=256, blocks=8)
    loop = CudaLoop(kernel, torch.device("cuda"))
    streams = [torch.cuda.Stream() for _ in range(10)]
    ended = []
    torch.cuda.synchronize()
    for number in range(100):
        with torch.cuda.stream(streams[number % 10]):
            state = [tensor.cuda(non_blocking=True) for tensor in carry]
            ended.append((state, loop(50, state, samples, [])))
    torch.cuda.synchronize()
    for state, results in ended[1:]:
        assert torch.equal(state[0], ended[0][0][0])
        assert torch.equal(results[0], ended[0][1][0])


def test_what_was_dropped_earlier_is_not_freed_in_the_midst_of_a_recording() -> None:
    x = torch.zeros(4, device="cuda")
    dropped: list[Any] = [torch.cuda.CUDAGraph()]
    with capture(dropped[0]):
        x.add_(1)
    dropped.append(dropped)
    del dropped
    graph = torch.cuda.CUDAGraph()
    thresholds = gc.get_threshold()
    try:
        with capture(graph):
            gc.set_threshold(1)
            assert [[] for _ in range(1000)]
            x.add_(1)
    finally:
        gc.set_threshold(*thresholds)
    graph.replay()
    assert x.tolist() == [1.0] * 4
    assert gc.isenabled()


def test_another_thread_may_allocate_and_free_during_a_recording() -> None:
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()

    def elsewhere() -> None:
        for _ in range(20):
            torch.empty(1 << 24, device="cuda")
            torch.empty(1 << 16, pin_memory=True)
            torch.cuda.empty_cache()

    thread = threading.Thread(target=elsewhere)
    with capture(graph):
        thread.start()
        x.add_(1)
        thread.join()
    graph.replay()
    assert x.tolist() == [1.0] * 4
