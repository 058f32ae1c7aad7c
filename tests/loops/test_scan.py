"""`hl.loops.scan`: any pure step as a compiled loop, and what it covers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

import hamlearn as hl
from hamlearn.errors import ConfigError
from hamlearn.loops import UnsupportedError, coverage, scan, translate, translate_to_cuda
from hamlearn.loops.coverage import markdown
from hamlearn.loops.recording import pure_graph
from hamlearn.loops.values import C_TYPES
from tests.docs.pages import DOCS, hook
from tests.loops.operations import example
from tests.loops.running import quickly_compiled


def by_steps(step: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """The judge: one step after the other."""
    rows, spec = _pytree.tree_flatten(xs)
    ys = []
    for index in range(len(rows[0])):
        carry, y = step(carry, _pytree.tree_unflatten([row[index].clone() for row in rows], spec))
        ys.append(y)
    return carry, _pytree.tree_map(lambda *leaves: torch.stack(leaves), *ys)


def drawn(dtype: torch.dtype, steps: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if dtype.is_floating_point:
        x, y = (torch.rand(steps, 4, 4, generator=generator).to(dtype) * 0.8 + 0.1 for _ in "xy")
    else:
        x, y = (torch.randint(-3, 4, (steps, 4, 4), generator=generator).to(dtype) for _ in "xy")
    return x, y, torch.stack([torch.randperm(4, generator=generator) for _ in range(steps)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", C_TYPES, ids=str)
def test_every_row_of_the_table_is_run_and_gives_what_pytorch_gives(dtype: torch.dtype) -> None:
    rows = [row for row in coverage() if dtype in row.dtypes]
    assert len(rows) > 100

    def step(count: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Any]:
        return count + 1, {row.name: example(row.op)(*given) for row in rows}

    with quickly_compiled():
        count, found = scan(step, torch.zeros(()), drawn(dtype))
    _, expected = by_steps(step, torch.zeros(()), drawn(dtype))
    assert count.item() == 3
    tolerance = 1e-6 if dtype is torch.float32 else 1e-12
    for row in rows:
        torch.testing.assert_close(
            found[row.name],
            expected[row.name],
            rtol=tolerance if dtype.is_floating_point else 1e-6,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=row.name: f"{name}: {text}",
        )


@pytest.mark.parametrize("dtype", C_TYPES, ids=str)
def test_every_row_of_the_table_has_a_kernel_too(dtype: torch.dtype) -> None:
    rows = [row for row in coverage() if dtype in row.dtypes]

    def step(*given: Tensor) -> list[Tensor]:
        return [leaf for row in rows for leaf in _pytree.tree_leaves(example(row.op)(*given))]

    graph = pure_graph(step, [row[0] for row in drawn(dtype)])
    assert translate_to_cuda(graph, ["sample"] * 3, [False] * 3).work > len(rows)


def test_the_page_has_the_table_that_the_code_gives() -> None:
    page = (DOCS / "api" / "loops.md").read_text()
    assert markdown() in hook("generated").filled(page)


class Pair(NamedTuple):
    fast: Tensor
    slow: Tensor


def test_carries_inputs_and_outputs_may_be_trees() -> None:
    def step(carry: dict[str, Any], x: tuple[Tensor, Tensor]) -> tuple[dict[str, Any], Any]:
        pair, count = carry["pair"], carry["count"]
        fast = torch.tanh(pair.fast + x[0])
        slow = torch.where(count % 2 == 0, pair.slow + x[1], 0.5 * pair.slow)
        return {"pair": Pair(fast, slow), "count": count + 1}, [fast.sum(), {"slow": slow}]

    start = {"pair": Pair(torch.zeros(3).double(), torch.ones(2).double()), "count": torch.tensor(0)}
    xs = torch.randn(9, 3).double(), torch.randn(9, 2).double()
    torch.testing.assert_close(scan(step, start, xs), by_steps(step, start, xs), rtol=1e-12, atol=1e-12)
    assert start["count"].item() == 0


def test_a_step_may_differentiate() -> None:
    def step(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def loss(weight: Tensor) -> Tensor:
            return (torch.sin(weight @ x) - x.sum()).square().mean()

        slope, value = torch.func.grad_and_value(loss)(weight)
        return weight - 0.1 * slope, value

    start, xs = torch.full((2, 3), 0.1).double(), torch.randn(20, 3).double()
    torch.testing.assert_close(scan(step, start, xs), by_steps(step, start, xs), rtol=1e-12, atol=1e-12)


def test_tensors_and_numbers_that_a_step_closes_over_are_those_of_the_call() -> None:
    weight, gain = torch.eye(3).double(), 1.0

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, None]:
        return gain * (weight.t() @ h) + x, None

    start, xs = torch.ones(3).double(), torch.ones(4, 3).double()
    assert scan(step, start, xs)[1] is None
    assert scan(step, start, xs)[0].tolist() == [5.0] * 3
    weight.mul_(2)
    assert scan(step, start, xs)[0].tolist() == [31.0] * 3
    gain = 0.5
    assert scan(step, start, xs)[0].tolist() == [5.0] * 3


def test_a_tensor_in_place_of_one_that_a_step_closes_over_is_that_of_the_next_call() -> None:
    weight = torch.eye(2)

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return h @ weight + x, h

    for scale in (1.0, 2.0):
        weight = scale * torch.eye(2)
        assert torch.equal(scan(step, torch.ones(1, 2), torch.zeros(3, 1, 2))[0], scale**3 * torch.ones(1, 2))


def test_a_module_is_a_step() -> None:
    cell = nn.GRUCell(3, 4).double()
    start, xs = torch.zeros(2, 4).double(), torch.randn(6, 2, 3).double()

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = cell(x, h)
        return h, h

    with torch.no_grad():
        torch.testing.assert_close(scan(step, start, xs), by_steps(step, start, xs), rtol=1e-12, atol=1e-12)
    with pytest.raises(ConfigError, match=r"the step reads a tensor .* requires gradients.*torch.no_grad"):
        scan(step, start, xs)


x = torch.ones(5, 3)
REFUSED: dict[str, tuple[Any, Any, Any, type[Exception], str]] = {
    "random": (
        lambda c, x: (c + torch.randperm(3), x),
        x[0],
        x,
        UnsupportedError,
        r"it draws random numbers \(aten.randperm",
    ),
    "operation": (lambda c, x: (c, torch.linalg.inv(torch.eye(3) * x)), x[0], x, UnsupportedError, "linalg"),
    "values": (lambda c, x: (c if x.sum() > 0 else -c, x), x[0], x, UnsupportedError, "could not be recorded"),
    "half": (
        lambda c, x: (c, x),
        x[0].half(),
        x,
        UnsupportedError,
        r"float16\[3\], and there are loops for float32",
    ),
    "no pair": (lambda c, x: c, x[0], x, ConfigError, r"returned float32\[3\]: let it return a pair"),
    "type": (lambda c, x: (c.double(), x), x[0], x, ConfigError, r"makes float64\[3\] of it"),
    "structure": (lambda c, x: ((c, c), x), x[0], x, ConfigError, "same structure, shapes and types"),
    "number": (lambda c, x: (c, 1.0), x[0], x, ConfigError, "y = float: let it hold tensors alone, or be None"),
    "no tensor": (lambda c, x: (c, x), 1.0, x, ConfigError, "the carry holds a float"),
    "empty": (lambda c, x: (c, x), x[0], x[:0], ConfigError, "first axis of each, of one length, 1 or more"),
    "lengths": (lambda c, x: (c, x), x[0], (x, x[1:]), ConfigError, "of one length"),
    "gradient": (lambda c, x: (c, x), x[0].clone().requires_grad_(), x, ConfigError, "carry and xs hold a tensor"),
    "no step": (3, x[0], x, ConfigError, "step=3 cannot be called"),
    "its own": (lambda c, x: (c @ x[:2], x), x[0], x, RuntimeError, "size"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_done_is_said_before_anything_is_compiled(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hamlearn.loops.library._compile", lambda *_: pytest.fail("it was compiled"))
    step, carry, xs, kind, text = REFUSED[wrong]
    with pytest.raises(kind, match=text):
        scan(step, carry, xs)


def test_an_index_out_of_range_is_an_error_that_names_the_step() -> None:
    table = torch.arange(4.0)
    with pytest.raises(IndexError, match="step 2 of 3 used 1 indices that are out of range"):
        scan(lambda c, i: (c + table[i].sum(), None), torch.zeros(()), torch.tensor([[1], [3], [4]]))


def test_a_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hamlearn.loops import scanning

    made = []
    make = scanning.make_loop
    monkeypatch.setattr(scanning, "make_loop", lambda *given: made.append(1) or make(*given))

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return c + x, c

    for steps in (3, 7, 3):
        hl.loops.scan(step, torch.zeros(3), torch.ones(steps, 3))
    assert len(made) == 1


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda x: x // -3, id="quotient"),
        pytest.param(lambda x: torch.div(x, 3, rounding_mode="floor"), id="rounded down"),
        pytest.param(lambda x: torch.div(x, -7, rounding_mode="trunc"), id="cut off"),
        pytest.param(lambda x: x % -3, id="remainder"),
        pytest.param(lambda x: x.abs() >= 0, id="size"),
        pytest.param(lambda x: nn.functional.threshold(x, 0.0, 5.0), id="threshold"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_whole_numbers_at_the_ends_of_their_range_are_those_of_pytorch(step, dtype):
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    xs = torch.tensor([least, least + 1, least + 2, -7, -1, 0, 1, 7, 2**24 + 1, most - 1, most], dtype=dtype)
    _, found = hl.loops.scan(lambda carry, x: (carry + 1, step(x)), torch.zeros(()), xs)
    assert torch.equal(found, torch.stack([step(x) for x in xs]))


def _ring(shown):
    """A step that writes to a computed place of what it carries; what it shows is `shown(slots, new, n)`."""

    def step(carry, x):
        slots, n = carry
        new = slots.index_put(((n % 5).view(1),), x[None])
        return (new, n + 1), shown(slots, new, n)

    return step


def _from_itself(carry, x):
    slots, n = carry
    new = slots.index_put(((n % 5).view(1),), 0.5 * slots[((n + 1) % 5).view(1)] + x)
    return (new, n + 1), new.sum(0)


def _by_itself(carry, x):
    slots, n = carry
    new = slots.index_put((((100 * slots.sum()).long() % 5).view(1),), x[None])
    return (new, n + 1), new.sum(0)


def _twice(carry, x):
    slots, n = carry
    first = slots.index_put(((n % 5).view(1),), x[None])
    return (first.index_put((((n + 1) % 5).view(1),), -x[None]), n + 1), first.sum(0)


def _added(carry, x):
    slots, n = carry
    new = slots.index_put((torch.stack([n % 5, n % 5]),), torch.stack([x, x]), accumulate=True)
    return (new, n + 1), new[(n % 5).view(1)][0]


RINGS = {
    "the new": _ring(lambda slots, new, n: new[((n - 2) % 5).view(1)][0]),
    "the old": _ring(lambda slots, new, n: slots.sum(0)),
    "a part of the old": _ring(lambda slots, new, n: 3 * slots[((n + 2) % 5).view(1)][0] + new[0]),
    "both": _ring(lambda slots, new, n: (2 * slots)[0] * new[1]),
    "from itself": _from_itself,
    "by itself": _by_itself,
    "twice": _twice,
    "added": _added,
}


@pytest.mark.parametrize("kind", RINGS)
def test_a_carry_that_is_written_to_at_a_computed_place(kind):
    xs, carry = torch.randn(23, 3, dtype=torch.float64), (torch.randn(5, 3, dtype=torch.float64), torch.tensor(0))
    (slots, n), y = scan(RINGS[kind], carry, xs)
    now, shown = carry, []
    for x in xs:
        now, one = RINGS[kind](now, x)
        shown.append(one)
    assert torch.allclose(slots, now[0], rtol=0, atol=1e-12)
    assert torch.allclose(y, torch.stack(shown), rtol=0, atol=1e-12)
    assert int(n) == 23


def test_two_carries_that_are_written_to_and_change_places():
    def step(carry, x):
        a, b, n = carry
        new = a.index_put(((n % 5).view(1),), b[:1] + x)
        return (b, new, n + 1), new[0]

    xs, start = torch.randn(9, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    (a, b, _), _ = scan(step, (*start, torch.tensor(0)), xs)
    now = (*start, torch.tensor(0))
    for x in xs:
        now, _ = step(now, x)
    assert torch.allclose(torch.stack([a, b]), torch.stack(now[:2]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("read", ["before", "after"])
def test_a_ring_is_not_copied(read):
    def step(slots, n, x):
        old = 2 * slots[(n % 5).view(1)]
        new = slots.index_put(((n % 5).view(1),), x[None])
        return [new, n + 1, new[0] if read == "after" else old]

    graph = pure_graph(step, [torch.zeros(5, 300), torch.tensor(0), torch.ones(300)])
    program = translate(graph, ["carry", "carry", "sample"], [False] * 3)
    # Room for places and rows, and none for all five of them.
    assert program.scratch < 5 * 300 * 4
