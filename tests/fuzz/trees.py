"""Trees of tensors, walked by name: two trees are paired by their paths, never by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def leaves(tree: Any, path: str = "") -> dict[str, Tensor]:
    """The tensors of a tree by their paths; the order in which a mapping was filled does not count."""
    if tree is None:
        return {}
    if isinstance(tree, Tensor):
        return {path: tree}
    if isinstance(tree, Mapping):
        parts = [(str(key), tree[key]) for key in sorted(tree)]
    elif hasattr(tree, "_fields"):
        parts = [(name, getattr(tree, name)) for name in tree._fields]
    else:
        parts = [(str(index), value) for index, value in enumerate(tree)]
    return {name: leaf for key, value in parts for name, leaf in leaves(value, f"{path}/{key}").items()}


def build(like: Any, values: Mapping[str, Tensor], path: str = "") -> Any:
    """A tree in the form of `like` with the tensors of `values`."""
    if like is None:
        return None
    if isinstance(like, Tensor):
        return values[path]
    if isinstance(like, Mapping):
        return {key: build(like[key], values, f"{path}/{key}") for key in like}
    if hasattr(like, "_fields"):
        return type(like)(*(build(getattr(like, n), values, f"{path}/{n}") for n in like._fields))
    return type(like)(build(value, values, f"{path}/{index}") for index, value in enumerate(like))


def apply(function: Callable[..., Tensor], *trees: Any) -> Any:
    """`function` of the leaves that stand at one path in all trees, in the form of the first tree."""
    flat = [leaves(tree) for tree in trees]
    return build(trees[0], {path: function(*(one[path] for one in flat)) for path in flat[0]})


def cut(tree: Any) -> Any:
    """Copies of the leaves, in no graph."""
    return apply(lambda x: x.detach().clone(), tree)


def leaf(tree: Any) -> Any:
    """Copies of the leaves, as new things to differentiate by."""
    return apply(lambda x: x.detach().clone().requires_grad_(), tree)


def zeros(tree: Any) -> Any:
    return apply(lambda x: torch.zeros_like(x), tree)


def inner(a: Any, b: Any) -> Tensor | float:
    """Sum of the products of two trees."""
    one, other = leaves(a), leaves(b)
    return sum(((one[path] * other[path]).sum() for path in one), 0.0)
