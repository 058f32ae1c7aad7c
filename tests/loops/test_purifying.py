"""Graphs are made pure node by node where that is plainly right, and by PyTorch's own means elsewhere."""

import pytest
import torch

import hamlearn as hl
from hamlearn._base.torch_private import traced as traced_by_pytorch
from hamlearn.loops import UnsupportedError
from hamlearn.loops.outlines import outlined
from hamlearn.loops.purifying import purified, writes
from hamlearn.loops.recording import _apart, pure_graph


def chain(x, w):
    y = x * w
    y.add_(x).mul_(2)
    return y + 1, y


def seen_by_another_name(x, w):
    y = x * w
    other = y.detach()
    y.add_(x)
    return other * 3


def viewed_after(x, w):
    y = x * w
    y.add_(1)
    part = y[:, 1:]
    return part.sum(), y


def split_then_written(x, w):
    left, right = torch.ops.aten.unsafe_split.Tensor(x @ w, 2, 1)
    left.sigmoid_()
    right.tanh_()
    return left * right


def whole_written_then_split(x, w):
    y = x @ w
    y.add_(1)
    left, right = torch.ops.aten.unsafe_split.Tensor(y, 2, 1)
    left.sigmoid_()
    return left + right


def by_loss(x, w):
    weight = w.detach().requires_grad_()
    loss = torch.nn.functional.mse_loss(torch.nn.functional.silu(x @ weight), x)
    [grad] = torch.autograd.grad(loss, weight)
    return loss.detach(), grad


def viewed_before_and_read_after(x, w):
    y = x * w
    part = y[:, 1:]
    y.add_(1)
    return part.sum()


def written_through_a_view(x, w):
    y = x * w
    y[:, 1:].mul_(3)
    return y


def split_whose_whole_is_read(x, w):
    y = x @ w
    left, _ = torch.ops.aten.unsafe_split.Tensor(y, 2, 1)
    left.sigmoid_()
    return y.sum() + left


def narrower_than_what_is_added(x, w):
    y = (x * w).half()
    y.add_(x)
    return y


def an_input(x, w):
    y = x.clone()
    x.add_(w)
    return x - y


def several_at_once(x, w):
    first, second = torch._foreach_mul([x, w], 2.0)
    return first - second


def several_written_at_once(x, w):
    first, second = x * w, x + w
    other = first.detach()
    torch._foreach_add_([first, second], [w, x], alpha=0.5)
    torch._foreach_mul_([second, first], 3.0)
    return first - second, other * 2


def several_written_at_once_of_which_one_is_viewed(x, w):
    first, second = x * w, x + w
    part = second[:, 1:]
    torch._foreach_add_([first, second], [w, x])
    return first, part.sum()


def one_written_twice_at_once(x, w):
    first = x * w
    torch._foreach_add_([first, first], [w, x])
    return first


NODE_BY_NODE = [
    several_at_once,
    several_written_at_once,
    chain,
    seen_by_another_name,
    viewed_after,
    split_then_written,
    whole_written_then_split,
    by_loss,
]
ONCE_MORE = [
    several_written_at_once_of_which_one_is_viewed,
    one_written_twice_at_once,
    viewed_before_and_read_after,
    written_through_a_view,
    split_whose_whole_is_read,
    narrower_than_what_is_added,
    an_input,
]


def given(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


def same(function, graph):
    for seed in range(3):
        found, expected = graph(*given(seed)), function(*given(seed))
        if isinstance(expected, torch.Tensor):
            found, expected = [found], [expected]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def by_pytorch(function, inputs):
    whole = traced_by_pytorch(function, inputs)
    return whole, whole.graph


def by_outlines(function, inputs):
    found = outlined(function, inputs, None)
    assert found is not None
    return found.root, found.graph


either_way = pytest.mark.parametrize("traced", [by_pytorch, by_outlines])


@either_way
@pytest.mark.parametrize("function", NODE_BY_NODE)
def test_what_nobody_else_looks_into_becomes_a_new_value(function, traced):
    whole, recorded = traced(function, given(0))
    graph = purified(recorded, _apart())
    assert graph is not None
    assert not any(writes(node) or node.target in _apart() for node in graph.nodes)
    same(function, torch.fx.GraphModule(whole, graph))


@either_way
@pytest.mark.parametrize("function", ONCE_MORE)
def test_what_others_share_is_left_to_pytorch(function, traced):
    _, recorded = traced(function, given(0))
    assert purified(recorded, _apart()) is None


def views_written_at_once(x, w):
    first = x * w
    torch._foreach_add_([first[:2], first[1:3]], 1.0)
    return first


@pytest.mark.parametrize("function", [one_written_twice_at_once, views_written_at_once])
def test_a_list_that_holds_one_tensor_twice_is_refused(function):
    # PyTorch's own way of making a graph pure would add to it only once.
    with pytest.raises(UnsupportedError, match="another place of its lists"):
        pure_graph(function, given(0))


# An input that is written is refused by whoever records. PyTorch forbids reading what `unsafe_split` was given.
EITHER = {*NODE_BY_NODE, *ONCE_MORE} - {an_input, split_whose_whole_is_read, one_written_twice_at_once}


@pytest.mark.parametrize("function", sorted(EITHER, key=lambda function: function.__name__))
def test_either_way_the_pure_graph_computes_what_the_function_does(function):
    graph = pure_graph(function, given(0))
    assert not any(writes(node) for node in graph.graph.nodes)
    same(function, graph)


@either_way
@pytest.mark.parametrize("cell", [torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell])
def test_cells_of_pytorch_are_made_pure_node_by_node_with_their_derivatives(cell, traced):
    torch.manual_seed(0)
    module = cell(4, 4).double()

    def step(x, w):
        weights = [p.detach().requires_grad_() for p in module.parameters()]
        names = [name for name, _ in module.named_parameters()]
        state = (w, w) if cell is torch.nn.LSTMCell else w
        h = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x, state))
        loss = (h[0] * h[1] if isinstance(h, tuple) else h).square().sum()
        return torch.autograd.grad(loss, weights)

    whole, recorded = traced(step, given(0))
    graph = purified(recorded, _apart())
    assert graph is not None
    same(step, torch.fx.GraphModule(whole, graph))


@pytest.mark.parametrize("write", [lambda e: e.fill_(0.5), lambda e: e.zero_(), lambda e: e[:, 1].fill_(2.0)])
def test_a_write_to_entries_that_share_memory_is_refused(write):
    def step(carry, x):
        one = x * 1
        write(one.expand(2, 3))
        return carry + one, None

    with pytest.raises(UnsupportedError, match="whose entries share memory"):
        hl.loops.scan(step, torch.zeros(3), torch.ones(4, 3))
