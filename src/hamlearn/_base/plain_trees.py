"""Trees of tuples, lists and dicts, taken apart and put together: what stands in for PyTorch's own functions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TreeSpec:
    """The structure of a tree.

    Attributes:
        kind: Type of the node; `None` for a leaf.
        keys: Of a dict.
        parts: Structures of what it holds.
    """

    kind: Any = None
    keys: tuple[Any, ...] = ()
    parts: tuple[TreeSpec, ...] = ()

    @property
    def num_leaves(self) -> int:
        """How many leaves the tree has."""
        return 1 if self.kind is None else sum(part.num_leaves for part in self.parts)


def _is_node(tree: Any) -> bool:
    return type(tree) in (list, tuple, dict, OrderedDict) or (isinstance(tree, tuple) and hasattr(tree, "_fields"))


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of a tree and its structure.

    Example:
        >>> leaves, spec = tree_flatten({"a": (1, 2), "b": [3]})
        >>> leaves, tree_unflatten([x * 10 for x in leaves], spec)
        ([1, 2, 3], {'a': (10, 20), 'b': [30]})
    """
    if not _is_node(tree):
        return [tree], TreeSpec()
    values = list(tree.values()) if isinstance(tree, dict) else list(tree)
    flat = [tree_flatten(value) for value in values]
    keys = tuple(tree) if isinstance(tree, dict) else ()
    leaves = [leaf for part, _ in flat for leaf in part]
    return leaves, TreeSpec(type(tree), keys, tuple(spec for _, spec in flat))


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree that `tree_flatten` took apart."""
    left = iter(leaves)
    return _built(left, treespec)


def _built(left: Any, spec: TreeSpec) -> Any:
    if spec.kind is None:
        return next(left)
    values = [_built(left, part) for part in spec.parts]
    if issubclass(spec.kind, dict):
        return spec.kind(zip(spec.keys, values, strict=True))
    return spec.kind(*values) if hasattr(spec.kind, "_fields") else spec.kind(values)


def tree_leaves(tree: Any) -> list[Any]:
    """Leaves of a tree."""
    return tree_flatten(tree)[0]


def tree_map(function: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """A tree of what a function makes of the leaves; further trees are of the same structure."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([function(*each) for each in zip(leaves, *map(tree_leaves, rests), strict=True)], spec)


def tree_map_only(kinds: Any, function: Callable[[Any], Any], tree: Any) -> Any:
    """The same for leaves of some types; the others stay."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, kinds) else leaf, tree)
