"""Products of matrices that are too wide for plain loops: by the BLAS that PyTorch itself multiplies with.

Loops read all of the second matrix again for every row of the first. A BLAS works on pieces that stay in the
cache, and is several times as fast once there are several rows. For a single row, and for small matrices, loops
are faster.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from hamlearn.loops.indices import Affine, counter, linear, own_index
from hamlearn.loops.nests import Nest
from hamlearn.loops.values import C_TYPES, Value
from hamlearn.loops.writer import ALIGNMENT, Writer

ROWS = 4
"""Rows and columns that a product must have at least."""
WORK = 1 << 15
"""Terms of a product from which a BLAS is faster than loops."""
NAMES = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
FUNCTION = """\
// C = A·B, of matrices in rows: a BLAS, which has them in columns, is asked for Cᵀ = Bᵀ·Aᵀ.
#define PRODUCT(T) \\
    void* blas_##T; \\
    INLINE void multiply_##T(char of_b, char of_a, int columns, int rows, int inner, const T* b, int ldb, \\
                             const T* a, int lda, T* c) { \\
        typedef void (*Gemm)(const char*, const char*, const int*, const int*, const int*, const T*, const T*, \\
                             const int*, const T*, const int*, const T*, T*, const int*); \\
        const T one = 1, zero = 0; \\
        ((Gemm)blas_##T)(&of_b, &of_a, &columns, &rows, &inner, &one, b, &ldb, a, &lda, &zero, c, &columns); \\
    }
"""


@functools.cache
def address(dtype: torch.dtype) -> int | None:
    """Where the BLAS of PyTorch has its product of matrices; `None` where it does not show it."""
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        return ctypes.cast(getattr(library, NAMES[dtype]), ctypes.c_void_p).value
    except (OSError, KeyError, AttributeError):
        return None


def is_faster(rows: int, inner: int, columns: int, dtype: torch.dtype) -> bool:
    """Whether a BLAS is there, and faster than loops for a product of these sizes."""
    large = min(rows, columns) >= ROWS and inner > 1 and rows * inner * columns >= WORK
    return large and address(dtype) is not None


@dataclass(frozen=True)
class _Matrix:
    """How a matrix lies in memory: where it begins, whether it lies by columns, and how far apart they are."""

    name: str
    first: Affine
    turned: bool
    stride: int

    @property
    def order(self) -> str:
        return "'T'" if self.turned else "'N'"

    @property
    def pointer(self) -> str:
        return f"{self.name} + {self.first}"


def multiplied(writer: Writer, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """The product of `a` and `b`, of each pair of a batch if there is one."""
    batch, (rows, columns), inner = shape[:-2], shape[-2:], a.shape[-1]
    left, right = _matrix(writer, a, batch), _matrix(writer, b, batch)
    name = writer.new_memory(shape, a.dtype, False)
    begin = linear((*batch, rows * columns), [*own_index(batch), Affine()])
    c_type = C_TYPES[a.dtype]
    sizes = f"{columns}, {rows}, {inner}"
    operands = f"{right.pointer}, {right.stride}, {left.pointer}, {left.stride}"
    call = f"multiply_{c_type}({right.order}, {left.order}, {sizes}, {operands}, {name} + {begin});"
    loops = tuple(length for length in batch if length > 1)
    writer.products.add(c_type)
    writer.close(
        Nest(loops, False, [call], ordered=True), name, [(left.name, left.first), (right.name, right.first)]
    )
    return writer.in_memory(name, shape, a.dtype, False)


def _matrix(writer: Writer, value: Value, batch: tuple[int, ...]) -> _Matrix:
    """How the matrices of a value lie, which is put into memory if they do not lie as a BLAS takes them."""
    found = _as_it_is(writer, value, batch)
    if found is None:
        found = _as_it_is(writer, writer.store(value), batch)
    assert found is not None
    return found


def _as_it_is(writer: Writer, value: Value, batch: tuple[int, ...]) -> _Matrix | None:
    reads = writer.reads_of(value, [*own_index(batch), counter("row"), counter("column")])
    if value.cost or len(reads) != 1 or writer.types[reads[0][0]] != value.dtype:
        return None
    name, position = reads[0]
    if name[0] == "s" and value.numel * value.dtype.itemsize % ALIGNMENT:
        # A sample begins anywhere, and how a BLAS adds up may depend on that.
        return None
    row, column = position.factor("row"), position.factor("column")
    first = position + counter("row") * -row + counter("column") * -column
    if column == 1 and row >= value.shape[-1]:
        return _Matrix(name, first, False, row)
    if row == 1 and column >= value.shape[-2]:
        return _Matrix(name, first, True, column)
    return None
