"""Every operation that has loops gives what PyTorch gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hamlearn.loops.pointwise import ARITHMETIC, BITS, COMPARISONS, FLOATS, LOGIC, POWERS, TESTS
from tests.loops.running import check

aten = torch.ops.aten
TYPES = [torch.float64, torch.float32]
SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.5, 3.0, -1e-300, 700.0, -700.0]
types = pytest.mark.parametrize("dtype", TYPES, ids=str)
Cases = dict[str, Callable[..., Any]]


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def two(text: str) -> bool:
    return "{1}" in text


@types
def test_arithmetic_is_that_of_pytorch(dtype: torch.dtype) -> None:
    cases: Cases = {}
    for op, (text, _) in (ARITHMETIC | FLOATS).items():
        cases[str(op)] = (lambda x, y, op=op: op(x, y)) if two(text) else (lambda x, y, op=op: op(x))
        if two(text):
            cases[f"{op} broadcast"] = lambda x, y, op=op: op(x[:1], y[:, :1])
    cases |= {
        "add": lambda x, y: x + y,
        "add alpha": lambda x, y: torch.add(x, y, alpha=-0.3),
        "sub": lambda x, y: x - 2.5,
        "sub alpha": lambda x, y: torch.sub(x, y, alpha=3),
        "rsub": lambda x, y: 1 - x,
        "clamp": lambda x, y: x.clamp(-0.5, 0.25),
        "clamp crossed": lambda x, y: x.clamp(0.5, -0.25),
        "clamp low": lambda x, y: x.clamp(min=0.1),
        "clamp tensor": lambda x, y: torch.clamp(x, y - 1, y),
        "negative number": lambda x, y: -torch.mul(x, -0.5) * torch.tensor(-2.0, dtype=dtype),
        "same twice": lambda x, y: ((x + y) * (x + y)).square().square(),
        "power": lambda x, y: x.abs() ** 1.7,
        "power of tensors": lambda x, y: x.abs() ** y,
        "power of a number": lambda x, y: 1.3**y,
    }
    cases |= {f"power {p}": lambda x, y, p=p: x**p for p in POWERS}
    check(cases, numbers(4, 5, dtype=dtype), numbers(4, 5, dtype=dtype, seed=1))


@types
def test_numbers_that_are_not_finite_stay_what_they_are(dtype: torch.dtype) -> None:
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=dtype).t().contiguous()
    cases: Cases = {str(op): lambda x, op=op: op(x[0], x[1]) for op in COMPARISONS}
    cases |= {str(op): lambda x, op=op: op(x[0]) for op in TESTS}
    for op in (aten.maximum, aten.minimum, aten.mul, aten.div, aten.add, aten.sub, aten.clamp_min, aten.clamp_max):
        cases[str(op)] = lambda x, op=op: op(x[0], x[1])
    for op in (aten.relu, aten.sign, aten.abs, aten.exp, aten.tanh, aten.sigmoid, aten.log, aten.sqrt, aten.erf):
        cases[str(op)] = lambda x, op=op: op(x[0])
    square = lambda x: x.view(2, len(SPECIAL), len(SPECIAL))[1]  # noqa: E731
    cases |= {
        "where": lambda x: torch.where(x[0] > x[1], x[0], x[1]),
        "number as condition": lambda x: torch.logical_and(x[0], x[1]),
        "not": lambda x: torch.logical_not(x[0]),
        "to bool": lambda x: x[0].to(torch.bool),
        "amax": lambda x: x.amax(),
        "amax of pairs": lambda x: x.amax(0),
        "amax of a row": lambda x: square(x).amax(1),
        "amax without NaN": lambda x: x[:, len(SPECIAL) * 2 + 1 : len(SPECIAL) * 2 + 6].amax(1),
        "amin": lambda x: x.amin(0),
        "max": lambda x: x.max(0)[0],
        "argmax": lambda x: square(x).argmax(1),
        "sum": lambda x: x.sum(0),
        "mark": lambda x: (x * 0).sum(0),
        "clamp": lambda x: x.clamp(-1, 1),
        "full": lambda x: (
            torch.full((3,), float("nan"), dtype=dtype) + torch.full((3,), float("-inf"), dtype=dtype)
        ),
        "nan_to_num": lambda x: torch.nan_to_num(x),
    }
    check(cases, pairs)


def test_whole_numbers_and_truth_values_are_computed_as_such() -> None:
    n, m = torch.tensor([[3, -2, 0], [5, 7, -1]]), torch.tensor([[1, -2, 4], [0, 7, 2]])
    x, f = numbers(2, 3), numbers(2, 3, dtype=torch.float32, seed=1)
    p, q = n > 0, m > 1
    cases: Cases = {str(op): lambda n, m, x, f, p, q, op=op: op(n, m) for op in (*COMPARISONS, *BITS)}
    cases |= {f"{op} of truths": lambda n, m, x, f, p, q, op=op: op(p, q) for op in (*BITS, aten.eq, aten.mul)}
    for op, text in LOGIC.items():
        cases[str(op)] = lambda n, m, x, f, p, q, op=op, t=text: op(n, x) if two(t) else op(n)
    for op in (aten.neg, aten.relu, aten.sign, aten.bitwise_not):
        cases[str(op)] = lambda n, m, x, f, p, q, op=op: op(n)
    cases |= {
        "isfinite of whole numbers": lambda n, m, x, f, p, q: torch.isfinite(n),
        "not": lambda n, m, x, f, p, q: ~p,
        "sum of truths": lambda n, m, x, f, p, q: p.sum(),
        "truths added": lambda n, m, x, f, p, q: p + q,
        "truth and number": lambda n, m, x, f, p, q: p + 2 * n + q,
        "quotient": lambda n, m, x, f, p, q: n / 7,
        "quotients": lambda n, m, x, f, p, q: n / (m * m + 1),
        "half": lambda n, m, x, f, p, q: n * 0.5,
        "square": lambda n, m, x, f, p, q: n**2 + m**3,
        "single and double": lambda n, m, x, f, p, q: f * x + n,
        "single and number": lambda n, m, x, f, p, q: f * 0.1 + n,
        "single and double scalar": lambda n, m, x, f, p, q: f * x[0, 0],
        "compared with a double scalar": lambda n, m, x, f, p, q: f >= f[0, 1].double() + 1e-9,
        "compared with a half": lambda n, m, x, f, p, q: n > 2.5,
        "truth compared with a number": lambda n, m, x, f, p, q: p < 1,
        "whole and single": lambda n, m, x, f, p, q: n > f,
        "truncated": lambda n, m, x, f, p, q: (3 * x).to(torch.int64) + (3 * f).to(torch.int32),
        "to single": lambda n, m, x, f, p, q: x.float() + n.float() + p.float(),
        "to truth": lambda n, m, x, f, p, q: n.bool() | (f * p).bool(),
        "where of both": lambda n, m, x, f, p, q: torch.where(p, n, x),
        "where of numbers": lambda n, m, x, f, p, q: torch.where(p, 1.5, f),
        "largest": lambda n, m, x, f, p, q: n.amax(1) + torch.maximum(n, m).amin(),
        "largest place": lambda n, m, x, f, p, q: n.argmax() + n.argmin(1),
        "mean": lambda n, m, x, f, p, q: n.double().mean() + p.float().mean(0),
        "product": lambda n, m, x, f, p, q: n @ m.t(),
        "sum in double": lambda n, m, x, f, p, q: f.sum(1, dtype=torch.float64),
        "any, all": lambda n, m, x, f, p, q: torch.stack([p.any(), p.all(), p.any(1).all()]),
        "cumulated": lambda n, m, x, f, p, q: n.cumsum(1) + p.cumsum(0),
    }
    check(cases, n, m, x, f, p, q)


def test_views_show_the_same_elements() -> None:
    cases: Cases = {
        "reshape": lambda x: (x + 1).reshape(6, 4),
        "reshape of a permutation": lambda x: x.permute(2, 0, 1).reshape(4, 6),
        "reshape of a slice": lambda x: x[:, 1:, ::2].reshape(-1),
        "squeeze": lambda x: [x[:, :1].squeeze(1) * 2, x[:1, :, :1].squeeze()],
        "unsqueeze": lambda x: x.unsqueeze(0).unsqueeze(-1) * 2,
        "permute": lambda x: (x * x).permute(1, -1, 0),
        "transpose": lambda x: x.transpose(-1, 0).transpose(1, 2),
        "t": lambda x: x[0].t() @ x[1],
        "t of a vector": lambda x: x[0, 0].t() + 1,
        "expand": lambda x: torch.exp(x[:1, :, :1]).expand(5, 3, 4) + 0,
        "expand in front": lambda x: x[0].expand(2, 2, -1, -1).sum(0),
        "expanded and reshaped": lambda x: x[0, 0].expand(3, 4).reshape(2, 6),
        "slice": lambda x: x[1:, -2:, :-1] + 0,
        "stepped": lambda x: x[:, ::2, 1::3] + 0,
        "far": lambda x: x[-9:9, :, 3:99] + 0,
        "nothing": lambda x: x[:, 2:1] * 2,
        "select": lambda x: [x[-1] + 0, x[:, -2] * 2, x[..., 3] + x[..., 0]],
        "flip": lambda x: x.flip(0, -1) + 0,
        "roll": lambda x: x.roll((1, -2), (0, 2)) + 0,
        "diagonal blocks": lambda x: torch.stack([x[0, 0, 0], x[1, 1, 1]]),
        "as_strided": lambda x: torch.as_strided(x + 0, (2, 3), (5, 2), 1),
        **{f"cat {d}": lambda x, d=d: torch.cat([x, x * 2, x[:1, :1, :1].expand_as(x)], d) for d in (-3, 1, 2)},
        "cat of types": lambda x: torch.cat([x[0], torch.ones(1, 4, dtype=torch.int64), x[1, :0]]),
        "stack": lambda x: torch.stack([x[0], x[1] + 1], -1),
        "split": lambda x: torch.cat([part * k for k, part in enumerate(x.split(3, -1))], 2),
        "split with sizes": lambda x: torch.cat(x.tanh().split([1, 3, 0], 2)[::-1], 2),
        "chunk": lambda x: x.chunk(2, 2)[1] - x.chunk(2, 2)[0],
        "unbind": lambda x: x.unbind(-2)[1] * x.unbind(-2)[-1],
        **{
            f"pad {p}": lambda x, p=p: torch.nn.functional.pad(x, p, value=0.5)
            for p in ((1, 2), (0, -1, 2, 0), (-1, 1))
        },
        "pad of one": lambda x: torch.nn.functional.pad(x[:, :1, :1], (1, 0, 0, 2, 1, 0)),
        "repeat": lambda x: x.repeat(2, 1, 1),
        "tril": lambda x: [x.tril(), x.triu(1) * 2],
        "empty": lambda x: [
            x[:0].sum(0),
            x[:0].exp(),
            x[:, :0].sum(2),
            x[:0].mean(),
            torch.zeros(3, 0) @ torch.zeros(0, 4),
        ],
    }
    check(cases, numbers(2, 3, 4))
    check({"sizes of one": lambda x: x.permute(1, 0, 2)[0, :, ::2] + x[0, :, :1]}, numbers(1, 1, 5))


def test_pieces_are_put_into_place() -> None:
    def assigned(place: Any) -> Callable[[Tensor], Tensor]:
        def function(x: Tensor) -> Tensor:
            y = x.tanh()
            y[place] = x[place] * 3
            return y + 0

        return function

    places = [
        (slice(1, 2),),
        (slice(-2, None),),
        (slice(None), slice(None, None, 2)),
        (slice(None), slice(1, -1, 2)),
    ]
    places += [(2,), (slice(None), -1), (0, 3), (slice(0, 0),), (slice(-99, 99),), (..., slice(1, 4))]
    cases = {f"{place}": assigned(place) for place in places}
    cases |= {
        "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, -4, None, 3),
        "slice_scatter of one": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 1, 2),
        "select_scatter": lambda x: torch.select_scatter(x, x[0].exp(), 0, -1),
        "gradient of a slice": lambda x: torch.ops.aten.slice_backward(x[:, ::2], [4, 5], 1, 0, 99, 2),
        "gradient of a choice": lambda x: torch.ops.aten.select_backward(x[0], [4, 5], 0, -2),
    }
    check(cases, numbers(4, 5))


@types
def test_tensors_are_made_from_nothing(dtype: torch.dtype) -> None:
    cases: Cases = {
        "full": lambda x: torch.full((2, 3), -2, dtype=dtype) + torch.full((), 0.1, dtype=dtype),
        "full_like": lambda x: torch.full_like(x, 7) + x.new_full((4,), 0.25),
        "zeros": lambda x: torch.zeros(3, dtype=dtype) + torch.zeros_like(x[:3]) + x.new_zeros(3),
        "ones": lambda x: torch.ones(3, dtype=dtype) + torch.ones_like(x[:3]) + x.new_ones(3),
        "eye": lambda x: torch.eye(4, dtype=dtype) * x + torch.eye(2, 4, dtype=dtype)[1],
        "arange": lambda x: torch.arange(4, dtype=dtype) + torch.arange(2, 6) + torch.arange(8, 0, -2),
        "arange in parts": lambda x: torch.arange(-1.0, 1.0, 0.5, dtype=dtype),
        "arange of one": lambda x: torch.arange(3, 4) * 2,
        "linspace": lambda x: torch.linspace(0, 1, 5, dtype=dtype),
        "scalar": lambda x: torch.scalar_tensor(-0.5, dtype=dtype) * x,
        "truths": lambda x: torch.full((2,), True),
        "constant": lambda x: x + torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]], dtype=dtype).t()[:, 1],
        "of a value": lambda x: torch.full((2,), 1.0, dtype=dtype) * x[2],
    }
    check(cases, numbers(4, dtype=dtype))


@types
def test_folds_over_every_set_of_axes(dtype: torch.dtype) -> None:
    cases: Cases = {}
    for count in range(4) if dtype == torch.float64 else ():
        for axes in itertools.combinations((0, 1, -1), count):
            for name in ("sum", "amax"):
                keep = (count + len(name)) % 2 == 0
                cases[f"{name} {axes} {keep}"] = lambda x, n=name, a=axes, k=keep: getattr(x, n)(a, keepdim=k)
    cases |= {
        "sum of all": lambda x: [x.sum(), x.mean(), x.max(), x.min()],
        "of computed": lambda x: [(x * x).exp().sum(1), torch.exp(x[:1]).sum(0).sum(1)[:, None].amax()],
        "mean": lambda x: [x.mean(0), x.mean((0, 2), keepdim=True), x.mean(-1), x.amin(1), x.amin((0, -1))],
        "of one": lambda x: [x[:1].sum(0), x[:1].mean(0), x[0, 0, 0].sum(), x[0, 0, 0].mean(), x[0, 0, 0].amax()],
        "of expanded": lambda x: [x[:, :1].expand(-1, 5, -1).sum(1), x[0].expand(3, 3, 4).sum((0, 2))],
        "of permuted": lambda x: [x.permute(2, 1, 0).sum(0), x.permute(1, 0, 2).amax(2)],
        "product": lambda x: [x.prod(1), x.prod()],
        "variance": lambda x: [
            x.var(1),
            x.var(),
            x.std(1, correction=0),
            *torch.var_mean(x, (0, 1), keepdim=True),
        ],
        "softmax": lambda x: [x.softmax(-1), x.softmax(0), x.log_softmax(1), x.logsumexp(2, keepdim=True)],
        "cumsum": lambda x: [x.cumsum(0), x.cumsum(-1), x[0, 0, 0].cumsum(0)],
        "places": lambda x: [x.argmax(0), x.argmin(-1), x.argmax(), x.argmax(1, keepdim=True)],
        "maxima": lambda x: [*x.max(2), *x.min(1), *x.max(0, keepdim=True)],
        "norm": lambda x: [x.norm(), x.norm(dim=1), x.norm(p=1, dim=1)],
    }
    check(cases, numbers(2, 3, 4, dtype=dtype))


@types
def test_matrix_products_in_every_layout(dtype: torch.dtype) -> None:
    cases: Cases = {}
    for inner, rows, columns in itertools.product((1, 5), (1, 3), (1, 4)):
        cases[f"{rows} {inner} {columns}"] = lambda x, y, r=rows, n=inner, c=columns: x[:r, :n] @ y[:n, :c]
        cases[f"{rows} {inner} {columns} first"] = lambda x, y, r=rows, n=inner, c=columns: (
            x.t()[:n, :r].t() @ y[:n, :c]
        )
        cases[f"{rows} {inner} {columns} second"] = lambda x, y, r=rows, n=inner, c=columns: (
            x[:r, :n] @ y.t()[:c, :n].t()
        )
        cases[f"{rows} {inner} {columns} both"] = lambda x, y, r=rows, n=inner, c=columns: (
            (y.t()[:c, :n] @ x.t()[:n, :r]).t() + y[0, 0]
        )
    cases |= {
        "computed": lambda x, y: x.exp() @ y.tanh(),
        "expanded": lambda x, y: [x @ y[:, :1].expand(5, 4), x[:1].expand(3, 5) @ y],
        "expanded rows": lambda x, y: x @ y[:1].expand(5, 4),
        "stepped": lambda x, y: x[:, ::2] @ y[::2, ::3],
        "reversed": lambda x, y: x @ y.flip(1),
        "batches": lambda x, y: torch.bmm(torch.stack([x, x * 2]), torch.stack([y, y + 1])),
        "batches of transposed": lambda x, y: torch.bmm(torch.stack([y, y + 1]).mT, torch.stack([x, x * 2]).mT),
        "matmul": lambda x, y: torch.stack([x, x * 2]) @ y,
        "addmm": lambda x, y: torch.addmm(y[0], x, y) + torch.addmm(x[:, :1], x, y),
        "addmm factors": lambda x, y: (
            torch.addmm(y[0], x, y, alpha=0.5, beta=-2) + torch.addmm(y[0], x, y, beta=0)
        ),
        "baddbmm": lambda x, y: torch.baddbmm(y[0], x[None], y[None], alpha=3),
        "mv": lambda x, y: [x @ y[:, 1], torch.addmv(x[:, 0], x, y[:, 0], alpha=2)],
        "vm": lambda x, y: x[1] @ y,
        "dot": lambda x, y: x[0] @ y[:, 2] + torch.vdot(x[0], x[0]),
        "outer": lambda x, y: torch.outer(x[0], y[0]),
        "einsum": lambda x, y: torch.einsum("ij,jk,ij->ik", x, y, x),
        "linear": lambda x, y: torch.nn.functional.linear(x, y.t(), y[1]),
        "no rows": lambda x, y: [x[:0] @ y, x[:, :0] @ y[:0]],
    }
    check(cases, numbers(3, 5, dtype=dtype), numbers(5, 4, dtype=dtype, seed=1))


def test_a_row_too_long_for_the_stack_is_summed_in_memory() -> None:
    x = numbers(3, 700_000, dtype=torch.float32)
    check({"sum": lambda x: x.sum(0), "product": lambda x: x[:2, :3] @ x}, x)


def test_elements_are_read_and_written_by_index() -> None:
    i, j = torch.tensor([[0, 4, 2], [2, 2, 1]]), torch.tensor([3, 0])
    cases: Cases = {
        "gather": lambda x, i, j: x.gather(1, i) + x.exp().gather(1, i),
        "gather rows": lambda x, i, j: x.t().gather(0, i[:, :2]),
        "gather few": lambda x, i, j: x.gather(1, i[:1, :2]),
        "scatter": lambda x, i, j: torch.zeros_like(x).scatter(1, j[:, None], x[:, :1]),
        "scatter number": lambda x, i, j: x.scatter(1, j[:, None], -2.0) + x.scatter(0, j[None, :1] * 0, 1.0),
        "scatter several": lambda x, i, j: [x.scatter(1, i[:1, :], x * 2), x.scatter(1, i[:, :1], x * 3)],
        "scatter_add": lambda x, i, j: x.scatter_add(1, i, x * 2),
        "index_select": lambda x, i, j: [x.tanh().index_select(1, j), x.t().index_select(0, j)],
        "index_add": lambda x, i, j: x.index_add(1, torch.tensor([1, 1]), x[:, :2], alpha=-0.5),
        "index": lambda x, i, j: [x[:, i], x[(j > 0).long() - 1], x[[0, -1]]],
        "index both": lambda x, i, j: x[torch.tensor([0, -1])[:, None], i],
        "index apart": lambda x, i, j: x.view(2, 1, 5)[torch.tensor([0, 1, 1]), :, torch.tensor([4, 0, -5])],
        "index in the middle": lambda x, i, j: x.view(1, 2, 5, 1).expand(2, 2, 5, 2)[
            :, torch.tensor([1, 0]), :, :
        ],
        "index_put": lambda x, i, j: x.index_put((torch.tensor([1, -2]), j), torch.tensor([5.0, 6]).double()),
        "index_put adds": lambda x, i, j: aten.index_put(x, [None, torch.tensor([1, 1])], x[:, :2], True),
        "embedding": lambda x, i, j: torch.nn.functional.embedding(i, x.t()),
        "embedding of one": lambda x, i, j: torch.nn.functional.embedding(j[0], x.t()),
        "embedding gradient": lambda x, i, j: aten.embedding_dense_backward(
            x[:, :3, None] * x[:, None], i, 5, -1, False
        ),
        "padding": lambda x, i, j: aten.embedding_dense_backward(x[:, :3, None] * x[:, None], i, 5, 2, False),
        "cross entropy": lambda x, i, j: torch.nn.functional.cross_entropy(x, j),
        "ignored": lambda x, i, j: torch.nn.functional.cross_entropy(x, torch.where(j > 0, j, -100)),
    }
    check(cases, numbers(2, 5), i, j)


def test_tensors_without_axes() -> None:
    cases: Cases = {
        "arithmetic": lambda x, y: (x * y).exp() - x / y,
        "where": lambda x, y: torch.where(x > y, x, y),
        "view": lambda x, y: x.reshape(1, 1) @ y.reshape(1, 1),
        "stack": lambda x, y: torch.stack([x, y]).sum(0),
        "max": lambda x, y: x.max() + y.amax() + x.argmax(),
        "var": lambda x, y: torch.var(x, correction=0),
        "cat": lambda x, y: torch.cat([x[None], y[None]]),
        "gather": lambda x, y: x.gather(0, torch.tensor(0)),
        "softmax": lambda x, y: x.softmax(0),
        "transpose": lambda x, y: x.t() + x.permute(()),
    }
    check(cases, numbers(1)[0], numbers(1, seed=1)[0])
