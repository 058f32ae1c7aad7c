"""Steps that are faster in the eager engine, though there are loops for them.

Loops save what PyTorch spends on each operation, which is much for small tensors and nothing for large ones. They
are as fast in products of matrices, the wide ones of which they leave to a BLAS, but not in large convolutions: as
products of matrices these need memory for all that the kernel meets, and PyTorch's own do not. Measured on an AMD
EPYC, steps of two convolutions with 64 channels of 16×16 and kernels of 3×3: where that memory holds 150,000
numbers, a compiled step takes half the time of an eager one, at 1.2 million about as long, and at 4.7 million 1.5
times as long.
"""

from __future__ import annotations

import math

import torch
from torch import fx

COLUMNS = 1 << 20
"""Numbers that the kernel of a convolution meets, up to which loops are faster."""
TERMS = 1 << 22
"""Terms of a convolution in groups, which no BLAS computes, up to which loops are faster."""


def faster_eagerly(graph: fx.GraphModule) -> str | None:
    """Why the eager engine is faster on a CPU; `None` where loops are.

    Example:
        >>> from hamlearn.loops.recording import pure_graph
        >>> step = lambda x, w: [torch.conv2d(x, w)]
        >>> faster_eagerly(pure_graph(step, [torch.ones(1, 1, 8, 8), torch.ones(2, 1, 3, 3)])) is None
        True
        >>> faster_eagerly(pure_graph(step, [torch.ones(9, 64, 66, 66), torch.ones(2, 64, 3, 3)]))
        'a convolution whose kernel meets 21,233,664 numbers is faster there'
    """
    for node in graph.graph.nodes:
        if getattr(node.target, "overloadpacket", None) is not torch.ops.aten.convolution:
            continue
        x, weight = (node.args[k].meta["val"] for k in (0, 1))
        transposed, groups = node.args[6], node.args[8]
        small = x if transposed else node.meta["val"]
        places = small.shape[0] * math.prod(small.shape[2:])
        met = places * math.prod(weight.shape[1:])
        if groups == 1 and met > COLUMNS:
            return f"a convolution whose kernel meets {met:,} numbers is faster there"
        if groups > 1 and met * small.shape[1] > TERMS:
            return f"a convolution in {groups} groups with {met * small.shape[1]:,} terms is faster there"
    return None
