"""Trees of tensors and numbers as JSON beside named tensors, and back, without code."""

from __future__ import annotations

import sys
from collections import OrderedDict
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import shown
from hamlearn.sample import Sample
from hamlearn.state.tensors import Tensors

_PLAIN = (type(None), bool, int, float, str)
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}


def pack(tree: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """The tensors of a tree, by name, and the tree as JSON, in which numbers stand for them.

    Args:
        tree: Tensors, numbers, strings and `None` in tuples, lists, dicts and named tuples.
        prefix: How the names of the tensors begin.

    Raises:
        ValueError: If the tree could not be built again exactly.

    Example:
        >>> import torch
        >>> tensors, packed = pack({"a": (1.5, torch.zeros(2))}, "u/")
        >>> sorted(tensors), packed
        (['u/0'], {'dict': [['a', {'tuple': [{'value': 1.5}, {'tensor': 0}]}]]})
        >>> unpack(packed, Tensors(tensors), "u/", torch.device("cpu"))
        {'a': (1.5, tensor([0., 0.]))}
    """
    kept: list[Tensor] = []
    packed = _packed(tree, kept)
    return {f"{prefix}{index}": tensor for index, tensor in enumerate(kept)}, packed


def _packed(tree: Any, kept: list[Tensor]) -> Any:
    kind = type(tree)
    if isinstance(tree, Tensor):
        kept.append(tree)
        return {"tensor": len(kept) - 1}
    if kind in _PLAIN:
        return {"value": tree}
    if kind in (tuple, list):
        return {kind.__name__: [_packed(item, kept) for item in tree]}
    if kind in _MAPPINGS.values():
        for key in tree:
            if type(key) not in (str, int):
                raise ValueError(f"the key {shown(key)} of a {kind.__name__} is neither a string nor an integer")
        return {kind.__name__: [[key, _packed(item, kept)] for key, item in tree.items()]}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(tree, tuple) and hasattr(kind, "_fields") and _named_tuple(name) is kind:
        return {"namedtuple": name, "items": [_packed(item, kept) for item in tree]}
    raise ValueError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be written down: use tensors, numbers and strings in "
        "tuples, lists, dicts and named tuples that are defined in a module"
    )


def unpack(packed: Any, tensors: Tensors, prefix: str, device: torch.device) -> Any:
    """The tree that `pack` wrote down, on a device.

    Raises:
        ValueError: If a named tuple in it is not defined in this program.
    """
    kind, content = next(iter(packed.items()))
    if kind == "tensor":
        return tensors.keep(f"{prefix}{content}", device)
    if kind == "value":
        return content
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((key, unpack(item, tensors, prefix, device)) for key, item in content)
    items = [
        unpack(item, tensors, prefix, device) for item in (packed["items"] if kind == "namedtuple" else content)
    ]
    if kind == "namedtuple":
        # Not through the class's own constructor, which may be anything.
        return tuple.__new__(_named_tuple(content), items)
    return tuple(items) if kind == "tuple" else items


def pack_spec(spec: trees.Spec, count: int) -> Any:
    """The structure of a state of `count` leaves as JSON."""
    return None if spec is None else pack(trees.unflatten(list(range(count)), spec))[1]  # type: ignore[arg-type]


def unpack_spec(packed: Any) -> trees.Spec:
    """The structure that `pack_spec` wrote down."""
    return None if packed is None else trees.flatten(unpack(packed, Tensors({}), "", torch.device("cpu")))[1]


_PARTS = ("u", "target", "tau", "boundary", "scale")
"""What is kept of a sample: a late prediction is put back into the unit of the data by its scale."""


def sample_tree(sample: Sample) -> dict[str, Any]:
    """A sample as a tree; `Sample(**tree)` is the sample again."""
    return {part: getattr(sample, part) for part in _PARTS}


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
