"""Recorded graphs write nothing in place, and compute what the function does."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from hamlearn._base.torch_private import schema
from hamlearn.loops import UnsupportedError
from hamlearn.loops.recording import pure_graph

HELD = torch.ones(4, 4, dtype=torch.float64)


def chain(x, w):
    y = x * w
    y.add_(x).mul_(2)
    return y + 1, y


def seen_by_another_name(x, w):
    y = x * w
    other = y.detach()
    y.add_(x)
    return other * 3


def written_through_a_view(x, w):
    y = x * w
    y[:, 1:].mul_(3)
    return y


def viewed_before_and_read_after(x, w):
    y = x * w
    part = y[:, 1:]
    y.add_(1)
    return part.sum()


def split_then_written(x, w):
    left, right = torch.ops.aten.unsafe_split.Tensor(x @ w, 2, 1)
    left.sigmoid_()
    right.tanh_()
    return left * right


def several_written_at_once(x, w):
    first, second = x * w, x + w
    other = first.detach()
    torch._foreach_add_([first, second], [w, x], alpha=0.5)
    torch._foreach_mul_([second, first], 3.0)
    return first - second, other * 2


def reshaped_in_place(x, w):
    y = x * w
    z = y.t()
    y.unsqueeze_(0).squeeze_(0).t_()
    y.add_(1)
    return y, z + 1


def narrower_than_what_is_added(x, w):
    y = (x * w).half()
    y.add_(x)
    return y.float()


def by_loss(x, w):
    weight = w.detach().requires_grad_()
    loss = nn.functional.mse_loss(nn.functional.silu(x @ weight), x)
    return loss.detach(), *torch.autograd.grad(loss, weight)


def with_a_constant(x, w):
    return x * HELD + torch.tensor([1.0, 2.0, 3.0, 4.0])


FUNCTIONS = [
    chain,
    seen_by_another_name,
    written_through_a_view,
    viewed_before_and_read_after,
    split_then_written,
    several_written_at_once,
    reshaped_in_place,
    narrower_than_what_is_added,
    by_loss,
    with_a_constant,
]


def given(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_graph_computes_what_the_function_does_and_writes_nothing_in_place(function):
    graph = pure_graph(function, given(0))
    assert not any(schema(node.target) and schema(node.target).is_mutable for node in graph.graph.nodes)
    for seed in range(3):
        found, expected = graph(*given(seed)), function(*given(seed))
        torch.testing.assert_close(
            _pytree.tree_leaves(found), _pytree.tree_leaves(expected), rtol=1e-12, atol=1e-12
        )


def writes_to_an_input(x, w):
    y = x.clone()
    x.add_(w)
    return x - y


def writes_to_a_view_of_an_input(x, w):
    x[0].mul_(2)
    return x + w


def writes_to_what_it_holds(x, w):
    HELD.add_(x)
    return HELD * w


REFUSED = {
    writes_to_an_input: "writes to its sample",
    writes_to_a_view_of_an_input: "writes to its sample",
    writes_to_what_it_holds: "writes to a tensor that it holds",
    lambda x, w: x if x.sum() > 0 else w: "could not be recorded",
    lambda x, w: x[x > 0]: "shape depends on values",
    lambda x, w: x * sum(x[0].tolist()): "the value of a tensor",
    lambda x, w: x * w.sum().item(): "the value of a tensor",
    torch.compile(lambda x, w: x + w, backend="eager"): "could not be recorded",
    lambda x, w: x + torch.rand(4): "draws random numbers",
    lambda x, w: nn.functional.dropout(x, 0.5): "draws random numbers",
}


@pytest.mark.parametrize("function", REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_what_a_graph_cannot_hold_is_refused_and_nothing_is_changed(function):
    inputs = given(0)
    with pytest.raises(UnsupportedError, match=REFUSED[function]):
        pure_graph(function, inputs)
    assert all(map(torch.equal, inputs, given(0)))
    assert torch.equal(HELD, torch.ones(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_whole_sequences_are_recorded_by_their_cells(layer):
    torch.manual_seed(0)
    module = layer(3, 4)

    def step(x, *weights):
        names = [name for name, _ in module.named_parameters()]
        weights = [weight.detach().requires_grad_() for weight in weights]
        found = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))[0]
        return [found.detach(), *torch.autograd.grad(found.square().sum(), weights)]

    inputs = [torch.randn(5, 1, 3), *(weight.detach() for weight in module.parameters())]
    graph = pure_graph(step, inputs)
    assert not any("mkldnn" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(list(graph(*inputs)), step(*inputs), rtol=1e-4, atol=1e-5)
