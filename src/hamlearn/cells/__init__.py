"""State nets ready to use: units that do not see each other's past, stacks of cells, nets for continuous time."""

from hamlearn.cells.columnar import Columnar, Local
from hamlearn.cells.continuous import Antisymmetric, Leaky
from hamlearn.cells.diagonal import Diagonal
from hamlearn.cells.feedback import FeedbackLinear
from hamlearn.cells.gru import ColumnarGRU
from hamlearn.cells.rotating import LRU, RTU
from hamlearn.cells.stack import Stack

__all__ = [
    "LRU",
    "RTU",
    "Antisymmetric",
    "Columnar",
    "ColumnarGRU",
    "Diagonal",
    "FeedbackLinear",
    "Leaky",
    "Local",
    "Stack",
]
