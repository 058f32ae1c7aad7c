"""Steps are recorded on tensors without values, to the same C as by PyTorch's own means, or by those."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

from hamlearn.loops import outlines, purifying, recording
from hamlearn.loops.coverage import coverage
from hamlearn.loops.outlines import outlined, traced
from hamlearn.loops.program import translate
from hamlearn.loops.recording import pure_graph
from hamlearn.loops.values import C_TYPES
from tests.loops.test_scan import drawn

X = torch.arange(6.0).reshape(2, 3)


def in_c(function, inputs):
    program = translate(pure_graph(function, inputs), ["constant"] * len(inputs), [False] * len(inputs))
    return program.source, program.constants


def both_ways(function, inputs, monkeypatch):
    """The C of a function by outlines alone, and by PyTorch's own means alone."""
    with monkeypatch.context() as patch:
        patch.setattr(outlines, "traced_by_pytorch", lambda *given: pytest.fail("PyTorch's own way was taken"))
        one = in_c(function, inputs)
    with monkeypatch.context() as patch:
        patch.setattr(outlines, "outlined", lambda *given: None)
        patch.setattr(purifying, "_apart", {})
        other = in_c(function, inputs)
    return one, other


@pytest.mark.parametrize("dtype", C_TYPES, ids=str)
def test_every_operation_that_has_loops_comes_to_the_same_c_either_way(dtype, monkeypatch):
    rows = [row for row in coverage() if dtype in row.dtypes]

    def step(*given):
        return [leaf for row in rows for leaf in _pytree.tree_leaves(row.example(*given))]

    one, other = both_ways(step, [row[0] for row in drawn(dtype)], monkeypatch)
    assert one == other


@pytest.mark.parametrize("axes", [(3,), (2, 3)], ids=["one sample", "a batch"])
@pytest.mark.parametrize("cell", [nn.Linear, nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_and_their_derivatives_come_to_the_same_c_either_way(cell, axes, monkeypatch):
    torch.manual_seed(0)
    module = cell(3, 4)

    def step(x, *weights):
        weights = [weight.detach().requires_grad_() for weight in weights]
        names = [name for name, _ in module.named_parameters()]
        found = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))
        loss = nn.functional.mse_loss(_pytree.tree_leaves(found)[0], torch.ones(4).expand(*axes[:-1], 4))
        return [loss, *torch.autograd.grad(loss, weights)]

    one, other = both_ways(step, [torch.randn(axes), *module.parameters()], monkeypatch)
    assert one == other


def named_anew(x):
    y = x * 2
    z = y.t()
    y.unsqueeze_(0).squeeze_(0).t_().transpose_(0, 1)
    y.add_(1)
    return [y, z + 1]


def written_to_part(x):
    y = x.clone()
    y[0].mul_(3)
    return [y]


def of_a_constant(x):
    return [x * torch.tensor([1.0, 2.0, 3.0]) + np.float32(2)]


def without_derivatives(x):
    with torch.inference_mode():
        return [nn.functional.linear(x, x).relu()]


@pytest.mark.parametrize("function", [named_anew, written_to_part, of_a_constant, without_derivatives])
def test_what_writes_in_place_and_what_it_holds_come_to_the_same_c_either_way(function, monkeypatch):
    one, other = both_ways(function, [X], monkeypatch)
    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def caught(x):
    with contextlib.suppress(Exception):
        return [x / x.sum().item()]
    return [x]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x if x.sum() > 0 else -x],
        lambda x: [x[x > 2]],
        lambda x: [x + torch.rand(3)],
        lambda x: [x * float(x.numpy().sum())],
        lambda x: [x * sum(x[0].tolist())],
        lambda x: [x * x.data_ptr()],
        lambda x: [torch.add(x, x, out=torch.empty(0))],
        lambda x: [x.resize_(3)],
        lambda x: [x.to("meta")],
        lambda x: [torch.ones(2, device="meta")],
        lambda x: [x.to(torch.complex64).abs()],
        torch.compile(lambda x: [x + 1], backend="eager"),
        caught,
    ],
)
def test_what_depends_on_values_or_goes_elsewhere_is_left_to_pytorch(function):
    assert outlined(function, [X.clone()], None) is None


def test_what_the_function_is_given_and_holds_stays_as_it_was():
    held, given = torch.ones(3), X.clone()

    def step(x):
        return [x.mul_(2) + held, held.add_(1)]

    assert outlined(step, [given], None) is None
    assert outlined(lambda x: [x.mul_(2) + held], [given], None) is not None
    assert torch.equal(held, torch.ones(3))
    assert torch.equal(given, X)


def test_memory_that_inputs_share_is_shared_by_their_outlines():
    found = outlined(lambda x, y, z: [x + y + z], [X, X[0], X.clone()], None)
    x, y, z = (node.meta["val"].untyped_storage() for node in list(found.graph.nodes)[:3])
    assert x is y is not z


def test_a_release_without_such_tensors_records_by_pytorch(monkeypatch):
    expected = in_c(lambda x: [x.tanh() * 2], [X])

    def missing(*given):
        raise AttributeError

    monkeypatch.setattr(outlines, "outline", missing)
    assert outlined(lambda x: [x.tanh() * 2], [X], None) is None
    assert len(traced(lambda x: [x.tanh() * 2], [X]).graph.nodes) == 4
    assert in_c(lambda x: [x.tanh() * 2], [X]) == expected
    assert recording.traced is traced
