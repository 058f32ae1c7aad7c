"""Trees as plain JSON and back. A description names fields and keys; no module is imported for it, no code run."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.claims import entries, record, shown, whole

_PLAIN = (type(None), bool, int, float, str)
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}


def describe(tree: Any, keep: Callable[[Tensor], int], own: Iterable[type] = ()) -> Any:
    """A tree as JSON; `keep` takes each tensor and answers its number.

    Args:
        tree: Tensors, numbers, strings and `None` in tuples, lists, dicts and named tuples.
        keep: Stores a tensor.
        own: Classes of named tuples that whoever reads the description will know by itself.

    Raises:
        ValueError: If the tree could not be built again exactly.

    Example:
        >>> describe({"a": (1.5, None)}, keep=lambda tensor: 0)
        {'dict': [['a', {'tuple': [{'value': 1.5}, {'value': None}]}]]}
    """

    def inner(tree: Any) -> Any:
        kind = type(tree)
        if isinstance(tree, Tensor):
            return {"tensor": keep(tree)}
        if kind in _PLAIN:
            return {"value": tree}
        if kind in (tuple, list):
            return {kind.__name__: [inner(item) for item in tree]}
        if kind in _MAPPINGS.values():
            for key in tree:
                if type(key) not in (str, int):
                    raise ValueError(f"the key {shown(key)} of a {kind.__name__} is no string and no whole number")
            return {kind.__name__: [[key, inner(item)] for key, item in tree.items()]}
        if _is_namedtuple(kind) and not getattr(tree, "__dict__", None):
            name, fields = _name(kind), list(kind._fields)
            if _find(name, fields, own) is not kind:
                raise ValueError(f"another class is called {name} too: give them names of their own")
            return {"namedtuple": name, "fields": [[f, inner(item)] for f, item in zip(fields, tree, strict=True)]}
        raise ValueError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be written down: use tensors, numbers and strings in "
            "tuples, lists, dicts and named tuples"
        )

    return inner(tree)


def build(described: Any, tensor: Callable[[int], Tensor], own: Iterable[type] = ()) -> Any:
    """The tree that `describe` wrote down; `tensor` answers the tensor of a number.

    The classes of named tuples are those of `own`, and else those that this process has defined already.

    Raises:
        ValueError: If this is no such description.
    """

    def inner(described: Any) -> Any:
        if not isinstance(described, dict) or not described:
            raise ValueError(f"{shown(described)} describes no tree")
        kind, content = next(iter(described.items()))
        if "namedtuple" in described:
            about = record(described, "a named tuple", "namedtuple", "fields")
            pairs = _pairs(about["fields"])
            found = _find(about["namedtuple"], [name for name, _ in pairs], own)
            # Not through the class's own constructor, which may be anything.
            return tuple.__new__(found, [inner(item) for _, item in pairs])
        record(described, "a tree", kind)
        if kind == "tensor":
            return tensor(whole(content, "the number of a tensor"))
        if kind == "value" and type(content) in _PLAIN:
            return content
        if kind in ("tuple", "list"):
            items = [inner(item) for item in entries(content, kind)]
            return tuple(items) if kind == "tuple" else items
        if kind in _MAPPINGS:
            pairs = _pairs(content)
            result = _MAPPINGS[kind]((key, inner(item)) for key, item in pairs)
            if len(result) != len(pairs) or not all(type(key) in (str, int) for key in result):
                raise ValueError(f"the keys {shown([key for key, _ in pairs])} are not those of a {kind}")
            return result
        raise ValueError(f"{shown(described)} describes no tree")

    return inner(described)


def describe_structure(spec: trees.Spec, count: int, own: Iterable[type] = ()) -> Any:
    """The structure of a state of `count` leaves as JSON."""
    return None if spec is None else describe(trees.unflatten(list(range(count)), spec), _no_tensor, own)  # type: ignore[arg-type]


def build_structure(described: Any, count: int, own: Iterable[type] = ()) -> trees.Spec:
    """The structure that `describe_structure` wrote down, for `count` leaves."""
    if described is None:
        if count > 1:
            raise ValueError(f"a state of {count} tensors has no structure")
        return None
    leaves, spec = trees.flatten(build(described, _no_tensor, own))
    if any(isinstance(leaf, bool | float) for leaf in leaves) or leaves != list(range(count)):
        raise ValueError(f"the structure {shown(described)} is not that of {count} tensors")
    return spec


def alike(tree: Any, other: Any) -> bool:
    """Whether two trees have the same keys and lengths, whatever they hold and whichever classes they are of."""
    if isinstance(tree, dict) or isinstance(other, dict):
        both = isinstance(tree, dict) and isinstance(other, dict) and tree.keys() == other.keys()
        return both and all(alike(tree[key], other[key]) for key in tree)
    if isinstance(tree, tuple | list) or isinstance(other, tuple | list):
        both = isinstance(tree, tuple | list) and isinstance(other, tuple | list) and len(tree) == len(other)
        return both and all(map(alike, tree, other))
    return True


def namedtuples(tree: Any) -> Iterator[type]:
    """Classes of the named tuples in a tree."""
    if _is_namedtuple(type(tree)):
        yield type(tree)
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ():
        yield from namedtuples(item)


def _no_tensor(_: Any) -> Any:
    raise ValueError("a structure holds no tensors")


def _pairs(value: Any) -> list[Any]:
    pairs = entries(value, "a list of pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in pairs):
        raise ValueError(f"{shown(value)} is no list of names and values")
    return pairs


def _is_namedtuple(kind: type) -> bool:
    fields = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _find(name: Any, fields: list[Any], own: Iterable[type]) -> type:
    """The class of a named tuple: one of `own`, or the only one of this name, or the one its module has now."""
    for classes in (own, _subclasses(tuple)):
        fitting = {c for c in classes if _is_namedtuple(c) and _name(c) == name and list(c._fields) == fields}  # type: ignore[attr-defined]
        if len(fitting) > 1:
            # Defined anew, as a notebook does.
            fitting &= {
                vars(sys.modules[c.__module__]).get(c.__name__) for c in fitting if c.__module__ in sys.modules
            }
        if len(fitting) == 1:
            return fitting.pop()
    raise ValueError(
        f"the named tuple {shown(name)} with the fields {shown(fields)} is not defined in this program, or more "
        "than once: define or import it, under a name of its own"
    )


def _subclasses(kind: type) -> Iterator[type]:
    sub: type
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)
