"""Values as they were when they were noted down, and whether they still are."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from operator import call, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.loops.compared import (
    MISSING,
    ambient,
    content,
    entries,
    equal,
    form_of,
    look_up,
    own_names,
    same_items,
    same_numbers,
)


class Noted:
    """Values by where they stand: in dicts and lists, under names, in closures, in tensors and arrays.

    Attributes:
        tables: Dicts and lists, how long they were, and what they held.
        objects: Objects, and of which classes they were.
        classes: Classes, where they looked for names, and which they had themselves: one that comes later hides
            that of a base.
        names: Names in a scope, or attributes of an object, and what they stood for.
        cells: Variables that functions close over.
        tensors: Tensors, their forms, and copies.
        arrays: What else is compared by a copy, and how it is read.
        seen: Everything that was met, by identity; held here, so that no other can take its place.
    """

    def __init__(self) -> None:
        self.tables: list[tuple[Any, int, list[tuple[Any, Any]], str]] = []
        self.objects: tuple[list[Any], list[type], list[str]] = [], [], []
        self.classes: list[tuple[type, tuple[type, ...], list[str]]] = []
        self.names: list[tuple[Any, str, Any, str]] = []
        self.cells: list[tuple[types.CellType, Any, str]] = []
        self.tensors: list[tuple[Tensor, tuple[Any, ...], Tensor, str]] = []
        self.arrays: list[tuple[Any, Any, Callable[[Any], Any], str]] = []
        # Things are known by identity while this object holds them, so that no other can take their place.
        self.seen: dict[Any, Any] = {}
        self._ambient = ambient()
        self._lookups: tuple[list[Any], list[int], list[Any], list[Any], list[Any]] = [], [], [], [], []
        """All dicts and lists, and their lengths; how each entry is looked up, by which key, and what it was."""
        self._orders: tuple[list[Any], list[Any], list[Any]] = [], [], []
        """How to run through dicts whose order a step may see, the dicts, and all their keys in turn."""

    def changed(self) -> str | None:
        """The first value that is not what it was, by name; `None` where all are."""
        found = None if self._same_tables() else self._changed_table()
        if found is not None:
            return found
        if not all(map(is_, map(type, self.objects[0]), self.objects[1])):
            return next(
                f"the class of {label}" for x, k, label in zip(*self.objects, strict=True) if type(x) is not k
            )
        for cls, mro, names in self.classes:
            if cls.__mro__ != mro or own_names(cls) != names:
                return f"the class {cls.__name__}"
        for scope, name, value, label in self.names:
            if not equal(look_up(scope, name), value):
                return label
        for cell, value, label in self.cells:
            if not equal(content(cell), value):
                return label
        for tensor, form, value, label in self.tensors:
            if form_of(tensor) != form or not same_numbers(tensor, value):
                return label
        for thing, value, read, label in self.arrays:
            if not same_items(read(thing), value):
                return label
        return None if self._ambient == ambient() else "PyTorch's default dtype or device, autocast, or precision"

    def _same_tables(self) -> bool:
        """Whether all dicts and lists hold the very things that they held."""
        # Asked before every block, of hundreds of tables: a line of Python for each would take longer than a step.
        tables, lengths, gets, keys, values = self._lookups
        keyed, ordered, order = self._orders
        return (
            list(map(len, tables)) == lengths
            and all(map(is_, map(call, gets, keys, repeat(MISSING)), values))
            and all(map(is_, chain.from_iterable(map(call, keyed, ordered)), order))
        )

    def _changed_table(self) -> str | None:
        for table, length, noted, label in self.tables:
            if len(table) != length:
                return label.rstrip(".")
            get = _getter(table)
            for key, value in noted:
                now = get(key, MISSING)
                if now is not value and not equal(now, value):
                    return f"{label}{key}" if label.endswith(".") else f"{label}[{key!r}]"
            if _has_order(table, label):
                keys = list(_runs_through(table)(table))
                if not all(now is key or now == key for now, (key, _) in zip(keys, noted, strict=True)):
                    return f"the order of {label}"
        return None

    def put_back(self) -> None:
        """Give everything its value back: entries, names, variables of closures, and the numbers of tensors."""
        for scope, name, value, _ in self.names:
            if not equal(look_up(scope, name), value):
                _put_name(scope, name, value)
        for cls, _, names in self.classes:
            for name in set(own_names(cls)) - set(names):
                delattr(cls, name)
        for cell, value, _ in self.cells:
            if value is MISSING:
                del cell.cell_contents
            elif not equal(content(cell), value):
                cell.cell_contents = value
        # A recording may have left tensors of its own in a dict or list.
        for table, _, noted, _ in self.tables:
            source = table.source if isinstance(table, Items) else table
            now = list(enumerate(source)) if isinstance(table, Items) else entries(source)
            if len(now) != len(noted) or not all(
                a is c and b is d for (a, b), (c, d) in zip(now, noted, strict=True)
            ):
                _put_entries(source, noted)
        with torch.no_grad():
            for tensor, form, value, _ in self.tensors:
                if form_of(tensor) == form and not same_numbers(tensor, value):
                    tensor.copy_(value)
        for thing, value, read, _ in self.arrays:
            if not same_items(read(thing), value):
                _put_state(thing, value)

    def table(self, table: Any, items: list[tuple[Any, Any]], label: str) -> None:
        """Note down what a dict, or a list that is read like one, holds."""
        self.tables.append((table, len(items), items, label))
        tables, lengths, gets, keys, values = self._lookups
        tables.append(table)
        lengths.append(len(items))
        gets += [_getter(table)] * len(items)
        keys += [key for key, _ in items]
        values += [value for _, value in items]
        if _has_order(table, label):
            keyed, ordered, order = self._orders
            keyed.append(_runs_through(table))
            ordered.append(table)
            order += list(_runs_through(table)(table))

    def tensor(self, tensor: Tensor, label: str) -> None:
        """Note down the numbers of a tensor."""
        self.tensors.append((tensor, form_of(tensor), tensor.detach().clone(), label))

    def kind(self, value: Any, label: str) -> None:
        """Note down of which class an object is."""
        objects, kinds, labels = self.objects
        objects.append(value)
        kinds.append(type(value))
        labels.append(label)

    def name(self, scope: Any, name: str, value: Any, label: str) -> None:
        """Note down what a name in a scope, or an attribute of an object, stands for."""
        if (id(scope), name) not in self.seen:
            self.seen[id(scope), name] = scope
            self.names.append((scope, name, value, label))


def _getter(table: Any) -> Callable[..., Any]:
    """How an entry is looked up, whatever a subclass makes of it."""
    plain = not isinstance(table, dict) or type(table) in (dict, OrderedDict)
    return table.get if plain else partial(dict.get, table)


def _put_name(scope: Any, name: str, value: Any) -> None:
    """Let a name stand for what it stood for; one that stood for nothing is gone."""
    if isinstance(scope, dict):
        if value is MISSING:
            scope.pop(name, None)
        else:
            scope[name] = value
    elif value is MISSING:
        delattr(scope, name)
    else:
        setattr(scope, name, value)


def _put_entries(source: Any, noted: list[tuple[Any, Any]]) -> None:
    if isinstance(source, list):
        list.__setitem__(source, slice(None), [value for _, value in noted])
    elif isinstance(source, deque):
        source.clear()
        source.extend(value for _, value in noted)
    elif isinstance(source, dict):
        # By Python's own methods: a subclass may refuse to be changed.
        kind = OrderedDict if isinstance(source, OrderedDict) else dict
        kind.clear(source)
        kind.update(source, noted)


def _put_state(thing: Any, value: Any) -> None:
    if isinstance(thing, np.ndarray):
        thing[...] = value
    elif isinstance(thing, set):
        thing.clear()
        thing.update(value)
    elif isinstance(thing, torch.Generator):
        thing.set_state(value)
    else:
        thing.setstate(value)


def _has_order(table: Any, label: str) -> bool:
    """Whether a step may run through the entries; fields of an object, whose label ends in a dot, have names."""
    return not isinstance(table, Items) and len(table) > 1 and not label.endswith(".")


def _runs_through(table: Any) -> Callable[[Any], Iterator[Any]]:
    """What gives the keys in the order in which a step meets them."""
    if isinstance(table, types.MappingProxyType):
        return iter
    return OrderedDict.__iter__ if isinstance(table, OrderedDict) else dict.__iter__


class Items:
    """A list or a deque, read like a dict."""

    __slots__ = ("source",)

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def get(self, key: int, default: Any) -> Any:
        """The entry in a place, counted from 0."""
        return self.source[key] if key < len(self.source) else default
