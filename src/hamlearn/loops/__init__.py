"""Loops over time in C and CUDA: a small compiler for the graph of one step.

A step of a small network is a hundred tensor operations of a microsecond of arithmetic in all. Here they become a
few loops over memory that stays in the first-level cache, in one C function that runs a whole chunk of a stream;
or in one CUDA kernel that does, with the same loops shared out over the threads of a block.
"""

from hamlearn.loops.choice import choose
from hamlearn.loops.coverage import coverage
from hamlearn.loops.kernel import Kernel, translate_to_cuda
from hamlearn.loops.launch import CudaLoop, shared_limit
from hamlearn.loops.library import Loop, cached, compiler
from hamlearn.loops.operations import known
from hamlearn.loops.program import Kind, Program, translate
from hamlearn.loops.scanning import scan
from hamlearn.loops.values import UnsupportedError

__all__ = [
    "CudaLoop",
    "Kernel",
    "Kind",
    "Loop",
    "Program",
    "UnsupportedError",
    "cached",
    "choose",
    "compiler",
    "coverage",
    "known",
    "scan",
    "shared_limit",
    "translate",
    "translate_to_cuda",
]
