"""Loops over time in C: a small compiler for the graph of one step.

A step of a small network is a hundred tensor operations of a microsecond of arithmetic in all. Here they become a
few loops over memory that stays in the first-level cache, in one C function that runs a whole chunk of a stream.
"""

from hamlearn.loops.library import Loop, cached, compiler
from hamlearn.loops.operations import known
from hamlearn.loops.program import Kind, Program, translate
from hamlearn.loops.values import UnsupportedError

__all__ = ["Kind", "Loop", "Program", "UnsupportedError", "cached", "compiler", "known", "translate"]
