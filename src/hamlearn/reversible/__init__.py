"""Backpropagation that stores nothing: networks integrated by the midpoint rule, rebuilt exactly.

`Midpoint` and `MidpointSequential` are deep networks, `MidpointRNN` a recurrent one; their memory does not
grow with the number of steps and their gradients are exact. Fields that the rule is stable for come with it.
"""

from hamlearn.reversible._errors import GridOverflowError, RebuildError
from hamlearn.reversible.blocks import ResidualField, TransformerField
from hamlearn.reversible.cell import MidpointCell
from hamlearn.reversible.fields import AntisymmetricConv, AntisymmetricLinear
from hamlearn.reversible.midpoint import Midpoint, MidpointSequential
from hamlearn.reversible.rnn import MidpointRNN
from hamlearn.reversible.stability import Stability, stability

__all__ = [
    "AntisymmetricConv",
    "AntisymmetricLinear",
    "GridOverflowError",
    "Midpoint",
    "MidpointCell",
    "MidpointRNN",
    "MidpointSequential",
    "RebuildError",
    "ResidualField",
    "Stability",
    "TransformerField",
    "stability",
]
