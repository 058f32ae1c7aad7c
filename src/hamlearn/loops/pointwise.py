"""Elementwise operations in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hamlearn._base.torch_private import aten as private_aten
from hamlearn.loops.call import Call, require
from hamlearn.loops.values import UnsupportedError, Value, broadcast, cast, choice, computed, constant
from hamlearn.loops.writer import ALIGNMENT, Writer

aten = torch.ops.aten

HEAVY = 16
"""Cost from which it is cheaper to keep a value in memory than to compute an element twice."""

# The same name in PyTorch and in C.
FUNCTIONS = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "erf",
    "erfc",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
]
FUNCTIONS += ["tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"]
# Operation: (C expression, cost). `{f}` is the suffix of the C function for the type.
ARITHMETIC: dict[Any, tuple[str, int]] = {
    aten.mul: ("({0} * {1})", 1),
    aten.neg: ("(-{0})", 1),
    aten.maximum: ("({0} > {1} || {0} != {0} ? {0} : {1})", 2),
    aten.minimum: ("({0} < {1} || {0} != {0} ? {0} : {1})", 2),
    aten.clamp_min: ("({0} > {1} || {0} != {0} ? {0} : {1})", 2),
    aten.clamp_max: ("({0} < {1} || {0} != {0} ? {0} : {1})", 2),
    aten.relu: ("({0} > 0 || {0} != {0} ? {0} : 0)", 1),
    aten.sign: ("(({0} > 0) - ({0} < 0))", 2),
    aten.sgn: ("(({0} > 0) - ({0} < 0))", 2),
}
FLOATS: dict[Any, tuple[str, int]] = {
    aten.sigmoid: ("(1 / (1 + exp{f}(-{0})))", HEAVY),
    aten.sqrt: ("sqrt{f}({0})", 4),
    aten.rsqrt: ("(1 / sqrt{f}({0}))", 5),
    aten.reciprocal: ("(1 / {0})", 2),
    aten.floor: ("floor{f}({0})", 1),
    aten.ceil: ("ceil{f}({0})", 1),
    aten.trunc: ("trunc{f}({0})", 1),
    aten.round: ("rint{f}({0})", 1),
    aten.fmod: ("fmod{f}({0}, {1})", HEAVY),
    aten.atan2: ("atan2{f}({0}, {1})", HEAVY),
    **{getattr(aten, name): (f"{name}{{f}}({{0}})", HEAVY) for name in FUNCTIONS},
}
# Those that the C library has for whole vectors, and that take zeros easily.
VECTORS = {aten.exp, aten.expm1, aten.log1p, aten.tanh, aten.sin, aten.cos, aten.erf, aten.sigmoid}
BITS = {aten.bitwise_and: "({0} & {1})", aten.bitwise_or: "({0} | {1})", aten.bitwise_xor: "({0} ^ {1})"}
COMPARISONS = {aten.eq: "==", aten.ne: "!=", aten.lt: "<", aten.le: "<=", aten.gt: ">", aten.ge: ">="}
LOGIC = {
    aten.logical_and: "({0} & {1})",
    aten.logical_or: "({0} | {1})",
    aten.logical_xor: "({0} != {1})",
    aten.logical_not: "(!{0})",
}
# Questions about one number, with its own type.
TESTS = {
    aten.isfinite: "(fabs{f}({0}) <= LARGEST{f})",
    aten.isinf: "(fabs{f}({0}) > LARGEST{f})",
    aten.isnan: "({0} != {0})",
}
POWERS = {
    2.0: "({0} * {0})",
    3.0: "({0} * {0} * {0})",
    0.5: "sqrt{f}({0})",
    -0.5: "(1 / sqrt{f}({0}))",
    -1.0: "(1 / {0})",
    -2.0: "(1 / ({0} * {0}))",
    1.0: "({0})",
    0.0: "(1)",
}
SAME = (
    aten.clone,
    aten.detach,
    aten.alias,
    aten.lift_fresh_copy,
    aten.contiguous,
    private_aten("_to_copy"),
    aten.copy,
)


def elementwise(
    writer: Writer, text: str, args: Sequence[Any], shape: Sequence[int], dtype: torch.dtype, cost: int = 1
) -> Value:
    """A value computed element by element.

    Args:
        writer: Takes what has to be in memory first.
        text: C expression in the operands `{0}`, `{1}`, ..., and `{f}`.
        args: Operands: values or numbers.
        shape: Sizes of the result.
        dtype: Type of the result, in which it is computed.
        cost: Rough number of operations.
    """
    values = []
    for number, arg in enumerate(args):
        value = arg if isinstance(arg, Value) else constant(arg, dtype)
        if text.count(f"{{{number}}}") > 1 or (value.cost >= HEAVY and value.shape != tuple(shape)):
            value = writer.remember(value)
        values.append(broadcast(value, shape))
    ats = [cast(value, dtype) for value in values]
    suffix = "f" if dtype == torch.float32 else ""
    return computed(shape, dtype, lambda i: text.format(*(at(i) for at in ats), f=suffix), values, cost)


def _arithmetic(writer: Writer, call: Call) -> Value:
    text, cost = ARITHMETIC[call.op]
    return elementwise(writer, text, call.operands("{1}" in text), call.shape, call.dtype, cost)


def _floats(writer: Writer, call: Call) -> Value:
    text, cost = FLOATS[call.op]
    if not call.dtype.is_floating_point:
        raise UnsupportedError(f"{call.op} of {call.dtype} has no loops")
    args = call.operands("{1}" in text)
    if (
        writer.on_cpu
        and call.op in VECTORS
        and not args[0].lanes
        and args[0].numel * call.dtype.itemsize >= ALIGNMENT
    ):
        same = args[0].dtype == call.dtype
        value = args[0] if same else elementwise(writer, "{0}", args, call.shape, call.dtype, 0)
        return writer.store_vectors(value, text.replace("{f}", "f" if call.dtype == torch.float32 else ""))
    return elementwise(writer, text, args, call.shape, call.dtype, cost)


def _bits(writer: Writer, call: Call) -> Value:
    return elementwise(writer, BITS[call.op], call.operands(True), call.shape, call.dtype)


def _abs(writer: Writer, call: Call) -> Value:
    whole = "whole_size({0})" if call.dtype == torch.int64 else "((int32_t)whole_size({0}))"
    text = "fabs{f}({0})" if call.dtype.is_floating_point else whole
    return elementwise(writer, text, call.operands(False), call.shape, call.dtype)


def _not(writer: Writer, call: Call) -> Value:
    text = "(!{0})" if call.dtype == torch.bool else "(~{0})"
    return elementwise(writer, text, call.operands(False), call.shape, call.dtype)


def _compare(writer: Writer, call: Call) -> Value:
    args = call.operands(True)
    given = [torch.empty(a.shape, dtype=a.dtype, device="meta") if isinstance(a, Value) else a for a in args]
    result = elementwise(
        writer, f"({{0}} {COMPARISONS[call.op]} {{1}})", args, call.shape, torch.result_type(*given)
    )
    return _as_bool(result)


def _logic(writer: Writer, call: Call) -> Value:
    text = LOGIC[call.op]
    return elementwise(writer, text, call.operands("{1}" in text), call.shape, torch.bool)


def _test(writer: Writer, call: Call) -> Value:
    (x,) = call.operands(False)
    if not x.dtype.is_floating_point:
        return constant(call.op is aten.isfinite, torch.bool, call.shape)
    return _as_bool(elementwise(writer, TESTS[call.op], [x], call.shape, x.dtype))


def _as_bool(value: Value) -> Value:
    return computed(value.shape, torch.bool, value.at, [value], 0)


def _add(writer: Writer, call: Call) -> Value:
    sign, alpha = ("+" if call.op is aten.add else "-"), call["alpha"]
    args = [call["self"], call["other"]]
    if call.dtype == torch.bool:
        return elementwise(writer, "({0} | {1})", args, call.shape, call.dtype)
    if alpha == 1:
        return elementwise(writer, f"({{0}} {sign} {{1}})", args, call.shape, call.dtype)
    return elementwise(writer, f"({{0}} {sign} {{2}} * {{1}})", [*args, alpha], call.shape, call.dtype, 2)


def _pow(writer: Writer, call: Call) -> Value:
    base, exponent = call["self"], call["exponent"]
    known = None if isinstance(exponent, Value) else float(exponent)
    if known in POWERS and (call.dtype.is_floating_point or known >= 0):
        return elementwise(writer, POWERS[known], [base], call.shape, call.dtype, 2)
    if not call.dtype.is_floating_point:
        raise UnsupportedError("such a power of integers has no loops")
    return elementwise(writer, "pow{f}({0}, {1})", [base, exponent], call.shape, call.dtype, 2 * HEAVY)


def _clamp(writer: Writer, call: Call) -> Value:
    value = call["self"]
    for op, bound in ((aten.maximum, call["min"]), (aten.minimum, call["max"])):
        if bound is not None:
            value = elementwise(writer, ARITHMETIC[op][0], [value, bound], call.shape, call.dtype, 2)
    return value


def _remainder(writer: Writer, call: Call) -> Value:
    text = "modulo{f}({0}, {1})" if call.dtype.is_floating_point else "whole_modulo({0}, {1})"
    return elementwise(writer, text, call.operands(True), call.shape, call.dtype, HEAVY)


def _div(writer: Writer, call: Call) -> Value:
    args, mode = [call["self"], call["other"]], call.given.get("rounding_mode")
    if call.dtype.is_floating_point and mode != "floor":
        text = "({0} / {1})" if mode is None else "trunc{f}({0} / {1})"
        return elementwise(writer, text, args, call.shape, call.dtype, 2)
    require(not call.dtype.is_floating_point, "a quotient of floating-point numbers, rounded down,")
    text = "whole_quotient({0}, {1})" if mode == "floor" else "whole_part({0}, {1})"
    return elementwise(writer, text, args, call.shape, call.dtype, HEAVY)


def _where(writer: Writer, call: Call) -> Value:
    condition = broadcast(call["condition"], call.shape)
    asked = cast(condition, torch.bool)
    a, b = (elementwise(writer, "{0}", [call[name]], call.shape, call.dtype, 0) for name in ("self", "other"))
    return computed(
        call.shape, call.dtype, lambda i: choice(call.dtype, asked(i), a.at(i), b.at(i)), [condition, a, b], 1
    )


def _same(writer: Writer, call: Call) -> Value:
    source = call["src" if call.op is aten.copy else "self"]
    # A number is a source of its own where vmap meets a scalar.
    if isinstance(source, Value) and source.shape == call.shape and source.dtype == call.dtype:
        return source
    return elementwise(writer, "{0}", [source], call.shape, call.dtype, 0)


POINTWISE: dict[Any, Callable[[Writer, Call], Value]] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(FLOATS, _floats),
    **dict.fromkeys(BITS, _bits),
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(LOGIC, _logic),
    **dict.fromkeys(TESTS, _test),
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys((aten.add, aten.sub), _add),
    aten.abs: _abs,
    aten.bitwise_not: _not,
    aten.pow: _pow,
    aten.clamp: _clamp,
    aten.remainder: _remainder,
    aten.div: _div,
    aten.where: _where,
}
