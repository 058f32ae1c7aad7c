"""Trees as plain JSON and back. A description names fields and keys; no module is imported for it, no code run."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import reduce
from typing import Any

from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.claims import shown

_PLAIN = (type(None), bool, int, float, str)
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}


def describe(tree: Any, keep: Callable[[Tensor], int]) -> Any:
    """A tree as JSON; `keep` takes each tensor and returns its number.

    Args:
        tree: Tensors, numbers, strings and `None` in tuples, lists, dicts and named tuples.
        keep: Stores a tensor.

    Raises:
        ValueError: If the tree could not be built again exactly.

    Example:
        >>> describe({"a": (1.5, None)}, keep=lambda tensor: 0)
        {'dict': [['a', {'tuple': [{'value': 1.5}, {'value': None}]}]]}
    """
    kind = type(tree)
    if isinstance(tree, Tensor):
        return {"tensor": keep(tree)}
    if kind in _PLAIN:
        return {"value": tree}
    if kind in (tuple, list):
        return {kind.__name__: [describe(item, keep) for item in tree]}
    if kind in _MAPPINGS.values():
        for key in tree:
            if type(key) not in (str, int):
                raise ValueError(f"the key {shown(key)} of a {kind.__name__} is neither a string nor an integer")
        return {kind.__name__: [[key, describe(item, keep)] for key, item in tree.items()]}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(tree, tuple) and hasattr(kind, "_fields") and _named_tuple(name) is kind:
        return {"namedtuple": name, "items": [describe(item, keep) for item in tree]}
    raise ValueError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be written down: use tensors, numbers and strings in "
        "tuples, lists, dicts and named tuples that are defined in a module"
    )


def build(described: Any, tensor: Callable[[int], Tensor]) -> Any:
    """The tree that `describe` wrote down; `tensor` returns the tensor of a number.

    Raises:
        ValueError: If this is not such a description, or a named tuple in it is not defined in this program.
    """
    if not isinstance(described, dict) or not described:
        raise ValueError(f"{shown(described)} does not describe a tree")
    kind, content = next(iter(described.items()))
    if kind == "tensor" and type(content) is int:
        return tensor(content)
    if kind == "value" and type(content) in _PLAIN:
        return content
    if kind == "namedtuple":
        # Not through the class's own constructor, which may be anything.
        return tuple.__new__(_named_tuple(content), [build(item, tensor) for item in described["items"]])
    if kind in ("tuple", "list") and isinstance(content, list):
        items = [build(item, tensor) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind in _MAPPINGS and isinstance(content, list):
        return _MAPPINGS[kind]((key, build(item, tensor)) for key, item in content)
    raise ValueError(f"{shown(described)} does not describe a tree")


def describe_structure(spec: trees.Spec, count: int) -> Any:
    """The structure of a state of `count` leaves as JSON."""
    return None if spec is None else describe(trees.unflatten(list(range(count)), spec), _no_tensor)  # type: ignore[arg-type]


def build_structure(described: Any, count: int) -> trees.Spec:
    """The structure that `describe_structure` wrote down, for `count` leaves."""
    leaves, spec = ([0], None) if described is None else trees.flatten(build(described, _no_tensor))
    if count and leaves != list(range(count)):
        raise ValueError(f"the structure {shown(described)} is not that of {count} tensors")
    return spec


def _no_tensor(_: Any) -> Any:
    raise ValueError("a structure holds no tensors")


def _named_tuple(name: str) -> type:
    """The class of this name, in a module that this program has imported."""
    module, _, path = name.partition(":")
    try:
        found = reduce(getattr, path.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    if not isinstance(found, type) or not issubclass(found, tuple) or not hasattr(found, "_fields"):
        raise ValueError(
            f"the named tuple {shown(name)} is not defined in this program: import the module that defines it, at "
            "its top level, before loading"
        )
    return found
