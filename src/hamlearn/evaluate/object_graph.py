"""What an object holds, as JSON keeps it: its whole graph of parts, put back without running any code of the file.

A metric's counts lie in lists, dictionaries, arrays and further objects, some of them shared between its parts.
All of that is written down as a table of parts that refer to each other by number. It is put back into an object
of the same make, which says what its functions and classes are: none that the table names is imported.
"""

from __future__ import annotations

import base64
import enum
import functools
import inspect
import math
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Table = list[dict[str, Any]]
"""Parts in the order in which they are met; a value `{"part": k}` stands for the k-th."""

_ABSENT = object()
_MADE_OF_ITEMS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict}
_FIXED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    enum.Enum,
    inspect.Signature,
    torch.device,
    torch.dtype,
    torch.Size,
)


class NotPlainError(Exception):
    """Something that cannot be written down, or put back: says where, and what it is."""


def dump(root: Any) -> Table:
    """The table of all that `root` holds.

    Raises:
        NotPlainError: A part keeps what it knows where Python cannot see it.
    """
    return _Dump().table(root)


class _Dump:
    def __init__(self) -> None:
        self._parts: Table = []
        self._numbers: dict[int, int] = {}
        # Numbers are by address: nothing that has one may go away before the table is done.
        self._alive: list[Any] = []

    def table(self, root: Any) -> Table:
        self._value(root, "")
        return self._parts

    def _value(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, _FIXED):
            return {"fixed": _description(value)}
        if isinstance(value, np.generic):
            return {"numpy": _array(np.asarray(value), path)}
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._parts)
            self._alive.append(value)
            part: dict[str, Any] = {}
            self._parts.append(part)
            part.update(self._part(value, path))
        return {"part": self._numbers[id(value)]}

    def _part(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value).__name__
        if type(value) is _MADE_OF_ITEMS.get(kind):
            part = {"kind": kind, "items": [self._value(item, f"{path}[{i}]") for i, item in enumerate(value)]}
            return part | ({"maxlen": value.maxlen} if kind == "deque" else {})
        if type(value) is _DICTS.get(kind):
            pairs = [[self._value(k, f"{path}{{}}"), self._value(v, f"{path}[{k!r}]")] for k, v in value.items()]
            factory = {"factory": _description(value.default_factory)} if kind == "defaultdict" else {}
            return {"kind": kind, "pairs": pairs} | factory
        if isinstance(value, np.ndarray):
            return {"kind": "ndarray", "array": _array(value, path)}
        if type(value) is Tensor:
            return {"kind": "tensor", "array": _tensor(value, path), "grad": value.requires_grad}
        if not hasattr(value, "__dict__"):
            raise NotPlainError(f"{path or 'it'} is a {_description(type(value))}, whose inside cannot be seen")
        held = {name: self._value(item, f"{path}.{name}") for name, item in vars(value).items()}
        return {"kind": "object", "class": _description(type(value)), "held": held}


def load(root: Any, table: Table) -> None:
    """Make `root`, which is of the same make as what was written down, hold what `table` says.

    Raises:
        NotPlainError: The table has a part that `root` cannot say how to make.
    """
    _Load(table).into(root)


class _Load:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._made: dict[int, Any] = {}
        self._used: set[int] = set()
        self._alive: list[Any] = []

    def into(self, root: Any) -> None:
        if self._value({"part": 0}, root, "") is not root:
            raise NotPlainError(f"it is no {self._table[0].get('class', self._table[0].get('kind'))}")

    def _value(self, state: Any, model: Any, path: str) -> Any:
        if not isinstance(state, dict):
            return state
        if "float" in state:
            return float(state["float"])
        if "fixed" in state:
            if not isinstance(model, _FIXED) or _description(model) != state["fixed"]:
                raise NotPlainError(f"{path} is {state['fixed']}, which only a running metric has")
            return model
        if "numpy" in state:
            return _unpacked(state["numpy"])[()]
        number = state["part"]
        if number not in self._made:
            self._part(number, self._fresh(model), path)
        return self._made[number]

    def _fresh(self, model: Any) -> Any:
        """The model itself, once: two parts that were apart must not become one."""
        if id(model) in self._used:
            return _ABSENT
        self._used.add(id(model))
        self._alive.append(model)
        return model

    def _part(self, number: int, model: Any, path: str) -> None:
        part = self._table[number]
        kind = part["kind"]
        if kind in ("tuple", "frozenset"):
            given = list(model) if isinstance(model, tuple) else []
            self._made[number] = _MADE_OF_ITEMS[kind](self._items(part["items"], given, path))
        elif kind in _MADE_OF_ITEMS:
            self._made[number] = target = self._container(kind, model, part)
            given = list(target) if kind != "set" else []
            items = self._items(part["items"], given, path)
            target.clear()
            target.update(items) if kind == "set" else target.extend(items)
        elif kind in _DICTS:
            self._dict(number, kind, model, path)
        elif kind in ("ndarray", "tensor"):
            array = _unpacked(part["array"])
            self._made[number] = array if kind == "ndarray" else _to_tensor(array, part)
        else:
            self._object(number, model, path)

    def _items(self, states: list[Any], models: list[Any], path: str) -> list[Any]:
        models = models + [_ABSENT] * (len(states) - len(models))
        return [self._value(s, m, f"{path}[{i}]") for i, (s, m) in enumerate(zip(states, models, strict=False))]

    def _container(self, kind: str, model: Any, part: dict[str, Any]) -> Any:
        if type(model).__name__ == kind and getattr(model, "maxlen", None) == part.get("maxlen"):
            return model
        return deque(maxlen=part["maxlen"]) if kind == "deque" else _MADE_OF_ITEMS[kind](())

    def _dict(self, number: int, kind: str, model: Any, path: str) -> None:
        part = self._table[number]
        if type(model) is not _DICTS[kind]:
            if kind == "defaultdict":
                raise NotPlainError(
                    f"{path} makes its entries by {part['factory']}, which only a running metric has"
                )
            model = _DICTS[kind]()
        elif kind == "defaultdict" and _description(model.default_factory) != part["factory"]:
            raise NotPlainError(f"{path} makes its entries by {_description(model.default_factory)}")
        self._made[number] = model
        given = dict(model)
        model.clear()
        for key_state, state in part["pairs"]:
            key = self._value(key_state, _ABSENT, path)
            like = given.get(key, _ABSENT)
            if like is _ABSENT and kind == "defaultdict" and isinstance(state, dict):
                like = model.default_factory()
            model[key] = self._value(state, like, f"{path}[{key!r}]")

    def _object(self, number: int, model: Any, path: str) -> None:
        part = self._table[number]
        if model is _ABSENT or _description(type(model)) != part["class"]:
            raise NotPlainError(f"{path or 'it'} is a {part['class']} that only a running metric has")
        self._made[number] = model
        given = vars(model)
        for name in [name for name in given if name not in part["held"]]:
            del given[name]
        for name, state in part["held"].items():
            given[name] = self._value(state, given.get(name, _ABSENT), f"{path}.{name}")


def _description(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"partial({', '.join(_description(x) for x in (value.func, *value.args))}, {value.keywords})"
    if isinstance(value, torch.device | torch.dtype | torch.Size | enum.Enum | inspect.Signature):
        return str(value)
    module = getattr(value, "__module__", None)
    return f"{module}.{getattr(value, '__qualname__', getattr(value, '__name__', type(value).__name__))}"


def _array(array: np.ndarray, path: str) -> dict[str, Any]:
    if array.dtype.hasobject:
        raise NotPlainError(f"{path} is an array of Python objects")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _tensor(tensor: Tensor, path: str) -> dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotPlainError(f"{path} is a tensor of layout {tensor.layout}")
    # By its bytes: NumPy does not know all of PyTorch's types.
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "data": base64.b64encode(flat.tobytes()).decode(),
        "device": str(tensor.device),
    }


def _unpacked(array: dict[str, Any]) -> Any:
    data = bytearray(base64.b64decode(array["data"], validate=True))
    if "device" not in array:
        return np.frombuffer(data, np.dtype(array["dtype"])).reshape(array["shape"])
    dtype = getattr(torch, array["dtype"])
    if not data:
        return torch.empty(array["shape"], dtype=dtype, device=array["device"])
    return torch.frombuffer(data, dtype=dtype).reshape(array["shape"]).to(array["device"])


def _to_tensor(tensor: Tensor, part: dict[str, Any]) -> Tensor:
    return tensor.requires_grad_(part["grad"])
