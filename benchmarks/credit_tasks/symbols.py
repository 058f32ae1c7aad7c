"""Tasks of symbols: recall after a delay, copies, two coin tosses added up, strings of equal halves."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.credit_tasks.task import LANES, Task, cross_entropy

CUES = 4
LONGEST = 16
"""Largest n of aⁿbⁿ."""
LAGS = (5, 9)
FLOORS = {"neither lag": 0.6616, "the first": 0.5192, "both": 0.4544}
"""Cross-entropy of delayed-add for a learner that uses neither term, the first one, or both."""


def recall(steps: int, delay: int, seed: int = 0, lanes: int = LANES) -> Task:
    """One of four cues at the first step of an episode, to be named at the last, `delay` + 1 steps later.

    Four cue lines, a go line that marks the last step, and a random bit at every step that means nothing. Nothing
    is ever reset. Metric: accuracy over the last tenth; chance is 0.25.

    Example:
        >>> task = recall(24, delay=10)
        >>> task.has.nonzero().flatten().tolist()
        [11, 23]
    """
    generator = torch.Generator().manual_seed(seed)
    length = delay + 2
    at = torch.arange(steps)
    cue = torch.randint(CUES, (steps // length + 1, lanes), generator=generator)[at // length]
    u = torch.zeros(steps, lanes, CUES + 2)
    u[..., :CUES] = nn.functional.one_hot(cue, CUES) * (at % length == 0)[:, None, None]
    u[..., CUES] = (at % length == length - 1)[:, None]
    u[..., CUES + 1] = torch.randint(2, (steps, lanes), generator=generator)
    return Task(
        f"recall {delay}", u, cue, at % length == length - 1, CUES, cross_entropy, "accuracy", 0.1, span=delay
    )


def copy(steps: int, length: int = 3, delay: int = 5, seed: int = 0, lanes: int = LANES) -> Task:
    """Some symbols, a pause, and then the same symbols again, in order, while a go line is on.

    Nothing is ever reset. Metric: accuracy over the last tenth of the symbols; chance is 0.25.

    Example:
        >>> task = copy(11)
        >>> task.has.nonzero().flatten().tolist(), bool((task.target[8:] == task.u[:3, :, :4].argmax(-1)).all())
        ([8, 9, 10], True)
    """
    generator = torch.Generator().manual_seed(seed)
    episode, at = 2 * length + delay, torch.arange(steps)
    symbols = torch.randint(CUES, (steps // episode + 1, length, lanes), generator=generator)
    place, shown, asked = at % episode, at % episode < length, at % episode >= length + delay
    u = torch.zeros(steps, lanes, CUES + 1)
    given = symbols[at // episode, place.clamp(max=length - 1)]
    u[..., :CUES] = nn.functional.one_hot(given, CUES) * shown[:, None, None]
    u[..., CUES] = asked[:, None]
    target = symbols[at // episode, (place - length - delay).clamp(min=0)]
    return Task("copy 3", u, target, asked, CUES, cross_entropy, "accuracy", 0.1, span=episode - 2)


def delayed_add(steps: int, seed: int = 0, lanes: int = LANES) -> Task:
    """Tell the chance 0.5 + 0.5 x(t − 5) − 0.25 x(t − 9), with a fair coin x that is 0 before the first toss."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(2, (steps, lanes, 1), generator=generator).float()
    late = [torch.cat([torch.zeros(min(lag, steps), lanes, 1), x[: max(steps - lag, 0)]]) for lag in LAGS]
    target = 0.5 + 0.5 * late[0] - 0.25 * late[1]
    has = torch.ones(steps, dtype=torch.bool)
    bce = nn.functional.binary_cross_entropy_with_logits
    return Task("delayed-add", x, target, has, 1, bce, "cross-entropy", 0.1, units=32, span=LAGS[1])


def anbn(steps: int, seed: int = 0, lanes: int = LANES) -> Task:
    """Strings of n a's, n b's and a separator, n uniform in 1…16: foretell the next symbol.

    Each lane has strings of its own and restarts at the first symbol of each. The end of the a's cannot be
    predicted: the ceiling is about 0.948.
    """
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.empty(steps + 1, lanes, dtype=torch.long)
    restart = torch.zeros(steps + 1, lanes, dtype=torch.bool)
    for lane in range(lanes):
        row: list[int] = []
        while len(row) <= steps:
            n = int(torch.randint(1, LONGEST + 1, (), generator=generator))
            restart[len(row), lane] = True
            row += [0] * n + [1] * n + [2]
        symbols[:, lane] = torch.tensor(row[: steps + 1])
    u = nn.functional.one_hot(symbols[:-1], 3).float()
    has = torch.ones(steps, dtype=torch.bool)
    return Task("aⁿbⁿ", u, symbols[1:], has, 3, cross_entropy, "accuracy", 0.1, restart[:-1], span=LONGEST)
