"""Pytrees as flat lists, with the one-tensor case kept free of any cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hamlearn._base.torch_private import tree_flatten, tree_map_only, tree_unflatten

Spec = Any
"""Structure of a flattened tree; `None` stands for a single tensor."""


def flatten(tree: Any) -> tuple[list[Tensor], Spec]:
    """Leaves of a tree and its structure.

    Example:
        >>> import torch
        >>> leaves, spec = flatten((torch.zeros(2), torch.ones(3)))
        >>> [leaf.shape[0] for leaf in leaves]
        [2, 3]
    """
    if isinstance(tree, Tensor):
        return [tree], None
    leaves, spec = tree_flatten(tree)
    return leaves, spec


def flatten_like(tree: Any, spec: Spec) -> list[Tensor] | None:
    """Leaves of a tree in the order of another one's structure, or `None` where the two do not correspond.

    Entries of dicts are paired by their keys, whatever order they stand in; tuples and lists by position.

    Example:
        >>> import torch
        >>> _, spec = flatten({"a": torch.zeros(1), "b": torch.zeros(2)})
        >>> [len(leaf) for leaf in flatten_like({"b": torch.ones(2), "a": torch.ones(1)}, spec)]
        [1, 2]
    """
    leaves, own = flatten(tree)
    if own is None or spec is None:
        return leaves if own is spec else None
    if own == spec:
        return leaves
    try:
        found: list[Any] = spec.flatten_up_to(tree)
    except ValueError:
        return None
    return found if all(isinstance(leaf, Tensor) for leaf in found) else None


def unflatten(leaves: list[Tensor], spec: Spec) -> Any:
    """The tree that `flatten` took apart."""
    if spec is None:
        return leaves[0]
    return tree_unflatten(leaves, spec)


def detach(tree: Any) -> Any:
    """The same tree, cut from any graph."""
    if isinstance(tree, Tensor):
        return tree.detach()
    return tree_map_only(Tensor, Tensor.detach, tree)


def copied(tree: Any) -> Any:
    """The same tree with tensors of its own, cut from any graph, since the user may write to the original."""
    if isinstance(tree, Tensor):
        return tree.detach().clone() if tree.requires_grad else tree.clone()
    return tree_map_only((Tensor, np.ndarray), _copied, tree)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf.copy()


def describe(tree: Any) -> str:
    """Shapes and dtypes of a tree, for messages.

    Example:
        >>> import torch
        >>> describe((torch.zeros(2), 3))
        '(float32[2], int)'
    """
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(describe(item) for item in tree) + ")"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {describe(item)}" for key, item in tree.items()) + "}"
    return type(tree).__name__
