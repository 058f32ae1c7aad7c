"""Wide products of matrices, and large convolutions, by a BLAS: where it is called, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hamlearn as hl
from hamlearn.loops import blas, translate, translate_to_cuda
from hamlearn.loops.library import Loop
from hamlearn.loops.recording import pure_graph
from tests.loops.running import quickly_compiled

pytestmark = pytest.mark.skipif(
    blas.address(torch.float64) is None, reason="needs a PyTorch that shows its BLAS; loops are used elsewhere"
)
WIDE = 40
"""A product of 40×40 matrices has more terms than `blas.WORK`."""


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


def program(function: Callable[..., Any], *given: Tensor) -> Any:
    graph = pure_graph(lambda *tensors: [function(*tensors)], list(given))
    return translate(graph, ["constant"] * len(given), [False] * len(given))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "turned": lambda x: x.t(),
    "some columns": lambda x: torch.cat([x, x], 1)[:, 3 : 3 + WIDE],
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "backwards": lambda x: x.flip(1),
    "one row again and again": lambda x: x[:1].expand(WIDE, WIDE),
    "computed": lambda x: 2 * x + 1,
    "of whole numbers": lambda x: x.round().long().to(x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_product_is_right_however_its_matrices_lie_in_memory(dtype):
    a, b = drawn(WIDE, WIDE, dtype=dtype), drawn(WIDE, WIDE, dtype=dtype).t().contiguous()
    pairs = list(zip(LAYOUTS.values(), [*LAYOUTS.values()][3:] + [*LAYOUTS.values()][:3], strict=True))
    pairs += [(other, one) for one, other in pairs]

    def all_of_them(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([one(a) @ other(b) for one, other in pairs])

    made = program(all_of_them, a, b)
    assert made.products == {"float" if dtype is torch.float32 else "double"}
    with quickly_compiled():
        (found,) = Loop(made)(1, [], [], [a, b])
    torch.testing.assert_close(found[0], all_of_them(a, b), rtol=0, atol=2e-5 if dtype is torch.float32 else 1e-12)


def test_batches_of_products_are_right_also_where_one_matrix_serves_all():
    a, b, c = drawn(3, WIDE, WIDE), drawn(3, WIDE, WIDE).transpose(1, 2).contiguous(), drawn(WIDE, WIDE)
    function = lambda a, b, c: torch.stack([a @ b, a @ c, c @ b.transpose(1, 2)])  # noqa: E731
    made = program(function, a, b, c)
    assert made.products == {"double"}
    (found,) = Loop(made)(1, [], [], [a, b, c])
    torch.testing.assert_close(found[0], function(a, b, c), rtol=0, atol=1e-12)


def test_products_with_few_rows_or_few_terms_stay_loops():
    x, W = drawn(1, 200), drawn(200, 200)
    assert program(lambda x, W: x @ W, x, W).products == frozenset()
    assert program(lambda W, x: W @ x.t(), W, x).products == frozenset()
    assert program(lambda W, x: x.t() @ x + W, W, x).products == frozenset()
    assert program(lambda a: a @ a, drawn(8, 8)).products == frozenset()
    assert program(lambda a: a @ a, torch.ones(WIDE, WIDE, dtype=torch.int64)).products == frozenset()


def test_a_kernel_for_a_gpu_calls_no_blas():
    graph = pure_graph(lambda a: [a @ a], [drawn(WIDE, WIDE)])
    assert "multiply_" not in translate_to_cuda(graph, ["constant"], [False]).source


def gradients(**window: Any) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def loss(x: Tensor, W: Tensor) -> Tensor:
        return nn.functional.conv2d(x, W, **window).tanh().square().mean()

    return lambda x, W: [loss(x, W), *torch.func.grad(loss, (0, 1))(x, W)]


WINDOWS = [
    {},
    {"padding": 1},
    {"stride": 2},
    {"stride": (2, 3), "padding": (2, 0), "dilation": (1, 2)},
    {"groups": 2, "padding": 1},
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_large_convolutions_and_their_derivatives_are_right(window):
    x, W = drawn(4, 8, 13, 12), drawn(16, 8 // window.get("groups", 1), 3, 3) / 8
    function = gradients(**window)
    graph = pure_graph(function, [x, W])
    made = translate(graph, ["constant"] * 2, [False] * 2)
    assert made.products == (frozenset() if "groups" in window else {"double"})
    for found, expected in zip(Loop(made)(1, [], [], [x, W]), function(x, W), strict=True):
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-12)


def wide_learner() -> hl.Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(37, WIDE), nn.Tanh(), nn.Linear(WIDE, 30)).double()
    return hl.Learner(hl.Network.feedforward(net), nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.1, momentum=0.9))


def learned(chunk: int | None) -> list[Tensor]:
    learner, draw = wide_learner(), torch.Generator().manual_seed(1)
    rows = [torch.randn(2, 33, 37, dtype=torch.float64, generator=draw) for _ in range(12)]
    stream = [hl.Sample(u, target[:, :30]) for u, target in rows]
    engine = {"engine": "eager"} if chunk is None else {"engine": "compiled", "chunk": chunk}
    for _ in learner.run(stream, **engine):
        pass
    return [weight.detach().clone() for weight in learner.network.parameters()]


def test_blocks_of_any_size_learn_the_same_to_the_bit_and_what_the_eager_engine_learns():
    by_three, by_seven, eager = learned(3), learned(7), learned(None)
    assert all(map(torch.equal, by_three, by_seven))
    for one, other in zip(by_three, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_without_a_blas_loops_compute_the_same(monkeypatch):
    x, W = drawn(33, 37), drawn(WIDE, 37)
    function = lambda x, W: x @ W.t()  # noqa: E731
    (by_blas,) = Loop(program(function, x, W))(1, [], [], [x, W])
    monkeypatch.setattr(blas, "address", lambda dtype: None)
    made = program(function, x, W)
    assert made.products == frozenset()
    (by_loops,) = Loop(made)(1, [], [], [x, W])
    torch.testing.assert_close(by_loops, by_blas, rtol=0, atol=1e-12)


POOLS = [(8, 2, {}), (9, 2, {}), (12, 12, {}), (9, 3, {"stride": 2}), (8, 2, {"padding": 1}), (10, 4, {})]


@pytest.mark.parametrize(("size", "kernel", "window"), POOLS)
def test_the_derivative_of_averages_over_windows_is_right(size, kernel, window):
    x = drawn(2, 3, size, size)

    def gradient(x: Tensor) -> Tensor:
        pooled = lambda x: nn.functional.avg_pool2d(x, kernel, **window).square().sum()  # noqa: E731
        return torch.func.grad(pooled)(x)

    (found,) = Loop(program(gradient, x))(1, [], [], [x])
    torch.testing.assert_close(found[0], gradient(x), rtol=0, atol=1e-12)
