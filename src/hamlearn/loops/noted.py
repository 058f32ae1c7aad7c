"""Values as they were when they were noted down, and whether they still are."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from operator import call, is_
from typing import Any

import torch
from torch import Tensor

from hamlearn.loops.compared import MISSING, ambient, content, equal, look_up, own_names, same_items


class Noted:
    """Values by where they stand: in dicts and lists, under names, in closures, in tensors and arrays.

    Attributes:
        tables: Dicts and lists, how long they were, and what they held.
        objects: Objects, and of which classes they were.
        classes: Classes, where they looked for names, and which they had themselves: one that comes later hides
            that of a base.
        names: Names in a scope, or attributes of an object, and what they stood for.
        cells: Variables that functions close over.
        tensors: Tensors, with copies.
        arrays: What else is compared by a copy, and how it is read.
        seen: Everything that was met, by identity; held here, so that no other can take its place.
    """

    def __init__(self) -> None:
        self.tables: list[tuple[Any, int, list[tuple[Any, Any]], str]] = []
        self.objects: tuple[list[Any], list[type], list[str]] = [], [], []
        self.classes: list[tuple[type, tuple[type, ...], list[str]]] = []
        self.names: list[tuple[Any, str, Any, str]] = []
        self.cells: list[tuple[types.CellType, Any, str]] = []
        self.tensors: list[tuple[Tensor, Tensor, str]] = []
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
        for tensor, value, label in self.tensors:
            if tensor.shape != value.shape or not torch.equal(tensor, value):
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
        for table, length, entries, label in self.tables:
            if len(table) != length:
                return label.rstrip(".")
            for key, value in entries:
                now = table.get(key, MISSING)
                if now is not value and not equal(now, value):
                    return f"{label}{key}" if label.endswith(".") else f"{label}[{key!r}]"
            if _has_order(table, label):
                keys = list(_runs_through(table)(table))
                if not all(now is key or now == key for now, (key, _) in zip(keys, entries, strict=True)):
                    return f"the order of {label}"
        return None

    def put_back(self) -> None:
        """Give dicts and lists their entries back, and names in modules, classes and closures their values."""
        for scope, name, value, _ in self.names:
            if value is MISSING or equal(look_up(scope, name), value):
                continue
            if isinstance(scope, dict):
                scope[name] = value
            elif isinstance(scope, type):
                setattr(scope, name, value)
        for cell, value, _ in self.cells:
            if value is not MISSING:
                cell.cell_contents = value
        # A recording may have left tensors of its own in a dict or list.
        for table, _, entries, _ in self.tables:
            source = table.source if isinstance(table, Items) else table
            if isinstance(source, list):
                source[:] = [value for _, value in entries]
            elif isinstance(source, dict):
                source.clear()
                source.update(entries)

    def table(self, table: Any, items: list[tuple[Any, Any]], label: str) -> None:
        """Note down what a dict, or a list that is read like one, holds."""
        self.tables.append((table, len(items), items, label))
        tables, lengths, gets, keys, values = self._lookups
        tables.append(table)
        lengths.append(len(items))
        gets += [table.get] * len(items)
        keys += [key for key, _ in items]
        values += [value for _, value in items]
        if _has_order(table, label):
            keyed, ordered, order = self._orders
            keyed.append(_runs_through(table))
            ordered.append(table)
            order += list(_runs_through(table)(table))

    def kind(self, value: Any, label: str) -> None:
        """Note down of which class an object is."""
        for told, noted in zip(self.objects, (value, type(value), label), strict=True):
            told.append(noted)

    def name(self, scope: Any, name: str, value: Any, label: str) -> None:
        """Note down what a name in a scope, or an attribute of an object, stands for."""
        if (id(scope), name) not in self.seen:
            self.seen[id(scope), name] = scope
            self.names.append((scope, name, value, label))


def _has_order(table: Any, label: str) -> bool:
    """Whether a step may run through the entries; fields of an object, whose label ends in a dot, have names."""
    return not isinstance(table, Items) and len(table) > 1 and not label.endswith(".")


def _runs_through(table: Any) -> Callable[[Any], Iterator[Any]]:
    """What gives the keys in the order in which a step meets them."""
    if isinstance(table, types.MappingProxyType):
        return iter
    return OrderedDict.__iter__ if isinstance(table, OrderedDict) else dict.__iter__


class Items:
    """A list, a deque or a set, read like a dict."""

    __slots__ = ("source",)

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def get(self, key: int, default: Any) -> Any:
        """The entry in a place, counted from 0."""
        if isinstance(self.source, set):
            return next((item for index, item in enumerate(self.source) if index == key), default)
        return self.source[key] if key < len(self.source) else default
