"""Kernels for a GPU, run thread by thread on the CPU, give to the bit what PyTorch gives, whoever goes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import hamlearn as hl
from hamlearn.loops import Kernel, Kind, UnsupportedError, backends, choose, multi_block, translate_to_cuda
from hamlearn.loops.kernel_choice import threads_for
from hamlearn.loops.recording import pure_graph
from tests.compiled.test_engine import SETTINGS, assert_same, assert_same_reports, both
from tests.compiled.test_population import HYPERS, alone, maker, stream
from tests.loops.emulated import Emulated, InThreads
from tests.loops.graphs import STEPS, Problem, random_problem
from tests.loops.running import Make, assert_population, assert_single, by_steps
from tests.loops.test_carries import CROSSINGS
from tests.problems import random_problem as random_stream


def by_threads(threads: int, order: int, shared: int = 1 << 16, blocks: int = 1) -> Make:
    def make(graph: fx.GraphModule, kinds: list[Kind], laned: list[bool], lanes: int) -> Emulated:
        return Emulated(translate_to_cuda(graph, kinds, laned, lanes, threads, shared, blocks), order)

    return make


@pytest.mark.parametrize("seed", range(200, 205))
def test_random_steps_are_those_of_pytorch(seed: int) -> None:
    assert_single(random_problem(seed), by_threads(32 << seed % 3, seed % 4))


@pytest.mark.parametrize("seed", range(300, 302))
def test_random_steps_go_on_where_nothing_fits_into_shared_memory(seed: int) -> None:
    assert_single(random_problem(seed), by_threads(64, seed % 4, shared=seed % 2 * 512))


@pytest.mark.parametrize("seed", range(700, 704))
def test_random_steps_of_several_blocks_are_those_of_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix of four elements and more is cut into rows, some blocks have none."""
    monkeypatch.setattr(multi_block, "MATRIX", 4)
    assert_single(random_problem(seed), by_threads(32, seed % 4, blocks=2 + seed % 4))


@pytest.mark.parametrize("seed", range(400, 402))
def test_each_member_of_a_population_is_a_single_run(seed: int) -> None:
    assert_population(seed, by_threads(64, seed % 4, shared=[1 << 16, 400][seed % 2]))


@pytest.mark.parametrize(
    "name", ["rotation, computed", "own places reversed", "own sum", "chain", "index by carry"]
)
def test_carries_that_cross_are_read_before_they_are_written(name: str) -> None:
    square = torch.arange(9).reshape(3, 3).double()
    samples = torch.stack([square % (k + 2) for k in range(STEPS)])
    problem = Problem(CROSSINGS[name], [square - 4 * k for k in range(3)], [samples], [])
    assert_single(problem, by_threads(32, 3))


def wide_step(W: Tensor, n: Tensor, u: Tensor) -> list[Tensor]:
    """Folds over more terms than threads, in both directions, of all elements, and of several types."""
    y = (W @ u).clamp(-9, 9)
    back = (W.t() @ y).clamp(-9, 9)
    rare = (back.amax() == W).sum()
    return [(W - y[:, None] * back).clamp(-5, 5), n + rare, y, W.sum(), (W > 4).any(), W.amin(1), back.argmax()]


@pytest.mark.parametrize(("threads", "blocks"), [(64, 1), (128, 1), (64, 3)])
def test_long_folds_are_shared_out_over_warps_and_blocks(
    threads: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_block, "MATRIX", 100)
    draw = torch.Generator().manual_seed(threads)
    W = torch.randint(-3, 4, (7, 301), generator=draw).double()
    samples = torch.randint(-2, 3, (STEPS, 301), generator=draw).double()
    problem = Problem(wide_step, [W, torch.zeros((), dtype=torch.int64)], [samples], [])
    assert_single(problem, by_threads(threads, threads % 3, blocks=blocks))


def test_rows_that_meet_in_one_place_are_added_in_their_order() -> None:
    def step(table: Tensor, where: Tensor, rows: Tensor) -> list[Tensor]:
        return [table.index_add(0, where, rows).clamp(-99, 99), table.index_put((where,), rows)]

    where = torch.tensor([[2, 0, 2, 2], [1, 1, 1, 0], [0, 1, 2, 3], [3, 3, 0, 0]])
    rows = torch.arange(STEPS * 4 * 5).reshape(STEPS, 4, 5).double()
    for order in (0, 1, 7):
        assert_single(Problem(step, [torch.zeros(4, 5).double()], [where, rows], []), by_threads(32, order))


def test_a_kernel_that_lacks_a_barrier_gives_other_numbers() -> None:
    """What judges the others can fail: each barrier within a step is needed, and its lack is seen."""

    def step(h: Tensor, W: Tensor, u: Tensor) -> list[Tensor]:
        h = (W @ (h + u).tanh()).tanh()
        return [h, W + h[:, None] * u.flip(0), h.sum()]

    carry = [torch.randn(5).double(), torch.randn(5, 5).double()]
    samples = [torch.randn(STEPS, 5).double()]
    graph = pure_graph(step, [*carry, samples[0][0]])
    expected, _ = by_steps(graph, carry, samples, [])
    kernel = translate_to_cuda(graph, ["carry", "carry", "sample"], [False] * 3, 1, 32)
    pieces = kernel.source.split("__syncthreads();")
    assert len(pieces) > 3

    def wrong(source: str, order: int) -> bool:
        state = [tensor.clone() for tensor in carry]
        Emulated(type(kernel)(**{**vars(kernel), "source": source}), order)(STEPS, state, samples, [])
        return not all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(state, expected, strict=True))

    assert not any(wrong(kernel.source, order) for order in (0, 1, 2))
    for gap in range(2, len(pieces) - 1):
        lacking = "__syncthreads();".join([*pieces[: gap - 1], pieces[gap - 1] + pieces[gap], *pieces[gap + 1 :]])
        assert any(wrong(lacking, order) for order in (0, 1, 2)), f"barrier {gap} is not needed"


def test_a_shared_carry_that_changes_is_refused_in_a_population() -> None:
    graph = pure_graph(lambda n, x: [n + 1, x * 2], [torch.ones(()), torch.ones(3)])
    with pytest.raises(UnsupportedError, match="share"):
        translate_to_cuda(graph, ["carry", "carry"], [False, True], 4)


def chosen(step: Any, *carry: Tensor) -> Kernel:
    return choose(
        pure_graph(step, list(carry)), ["carry"] * len(carry), [False] * len(carry), 1, 1, 227 << 10, 132
    )


def test_one_block_takes_what_is_small_and_several_what_is_large() -> None:
    def step(W: Tensor, h: Tensor) -> list[Tensor]:
        h = torch.tanh(W @ h)
        return [W - h[:, None] * h, h]

    for size, blocks, threads in ((30, 1, 256), (100, 1, 512), (256, 128, 256), (1024, 128, 512)):
        kernel = chosen(step, torch.empty(size, size), torch.empty(size))
        assert (kernel.blocks, kernel.threads, kernel.alone) == (blocks, threads, True)


def test_members_that_share_a_processor_have_fewer_threads() -> None:
    small = {members: threads_for(5_000, members, 132) for members in (1, 132, 133, 264, 265, 4096)}
    assert small == {1: 256, 132: 256, 133: 128, 264: 128, 265: 64, 4096: 64}
    assert [threads_for(20_000, members, 132) for members in (1, 264, 1024)] == [512, 256, 128]


def test_a_step_too_large_for_blocks_is_refused_with_its_size() -> None:
    with pytest.raises(UnsupportedError, match="a step of 27,000,008 terms and elements"):
        chosen(lambda W: [W.t() + W.sum()], torch.empty(3000, 3000))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners on the CPU take the kernels that they would take on a GPU."""
    monkeypatch.setattr(backends, "InC", InThreads)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("kind", "number"), [("lstm", 0), ("tree", 1), ("tied", 2)])
def test_learners_take_the_eager_steps(kind: str, number: int) -> None:
    setting = SETTINGS[number]
    problem = random_stream(kind, 5, 24)
    eager, compiled, one, other = both(problem, 7, **setting)
    assert_same(eager, compiled, 1e-11)
    assert_same_reports(one, other, 1e-11)


@pytest.mark.usefixtures("emulated")
def test_an_echo_goes_back_through_kernels() -> None:
    problem = random_stream("gru", 4, 20, clock="events")
    problem.hyper = hl.Hyper(tau=0.5, eta=0.3, beta=0.05)
    eager, compiled, one, other = both(problem, 9, order="sequential", credit=hl.Echo())
    assert_same(eager, compiled, 1e-11)
    assert_same_reports(one, other, 1e-11)


@pytest.mark.usefixtures("emulated")
def test_members_of_a_population_are_their_single_runs() -> None:
    make, seeds, samples = maker("gru", order="sequential"), [0], stream(classes=False, steps=20)
    population = hl.Population(make, hyper=HYPERS, seeds=seeds)
    list(population.run(samples, chunk=17))
    for number, (learner, _) in enumerate(alone(make, HYPERS, seeds, samples)):
        member = population.members[number]
        for a, b in zip(learner.network.parameters(), member.network.parameters(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("emulated")
def test_what_is_not_finite_stops_at_the_step_of_the_eager_engine() -> None:
    samples = [hl.Sample(torch.ones(1, 3), torch.ones(1, 2)) for _ in range(12)]
    samples[7] = hl.Sample(torch.full((1, 3), float("inf")), torch.ones(1, 2))
    found = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        network = hl.Network.recurrent(nn.RNNCell(3, 4), nn.Linear(4, 2))
        learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(), on_nonfinite="raise")
        with pytest.raises(hl.errors.HamlearnError) as caught:
            list(learner.run(samples, engine=engine))
        found.append((str(caught.value), learner.position, learner.state.t))
        weights = [weight.detach().clone() for weight in learner.network.parameters()]
        assert all(torch.isfinite(weight).all() for weight in weights)
    assert found[0] == found[1]
