"""Loops over time in C and CUDA: a small compiler for the graph of one step.

A step of a small network is a hundred tensor operations of a microsecond of arithmetic in all. Here they become a
few loops over memory that stays in the first-level cache, in one C function that runs a whole chunk of a stream;
or in one CUDA kernel that does, with the same loops shared out over the threads of a block.
"""

from hamlearn.loops.coverage import coverage
from hamlearn.loops.kernel import Kernel as Kernel
from hamlearn.loops.kernel import translate_to_cuda as translate_to_cuda
from hamlearn.loops.kernel_choice import choose as choose
from hamlearn.loops.launch import CudaLoop as CudaLoop
from hamlearn.loops.launch import shared_limit as shared_limit
from hamlearn.loops.library import Loop as Loop
from hamlearn.loops.library import cached as cached
from hamlearn.loops.library import compiler as compiler
from hamlearn.loops.operations import known as known
from hamlearn.loops.program import Kind as Kind
from hamlearn.loops.program import Program as Program
from hamlearn.loops.program import translate as translate
from hamlearn.loops.scanning import scan
from hamlearn.loops.values import UnsupportedError

# The compiled engine is built from the other names; they may change from one version to the next.
__all__ = ["UnsupportedError", "coverage", "scan"]
