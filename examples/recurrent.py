"""One endless stream, one recurrent network, four kinds of credit: change a word and learn differently.

A cue is shown at the first step of every episode, and asked for at the last. Cleared credit sees one step, and so
learns what the state happens to remember; Forward pairs past errors with present Jacobians; Echo looks back over a
window; Sensitivity carries forward what every weight has done to the state, and looks back at nothing.
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn

import hamlearn as hl

CUES, DELAY, LANES = 4, 6, 8


def recall(steps: int, seed: int = 0) -> Iterator[hl.Sample]:
    """Four cue lines and a line that asks; a target at the last step of an episode alone."""
    draw = torch.Generator().manual_seed(seed)
    for k in range(steps):
        at = k % (DELAY + 2)
        if at == 0:
            cue = torch.randint(CUES, (LANES,), generator=draw)
        u = torch.zeros(LANES, CUES + 1)
        if at == 0:
            u[:, :CUES] = nn.functional.one_hot(cue, CUES)
        asked = at == DELAY + 1
        u[:, CUES] = float(asked)
        yield hl.Sample(u, target=cue if asked else None)


def answers(credit: object, steps: int = 4_000) -> torch.Tensor:
    """Share of right answers at the end of each episode, given before they were learned from."""
    torch.manual_seed(0)
    network = hl.Network.recurrent(hl.cells.ColumnarGRU(CUES + 1, 32, t_max=DELAY), nn.Linear(32, CUES))
    learner = hl.Learner(network, nn.functional.cross_entropy, hl.Hyper.from_sgd(lr=0.3), credit=credit)
    reports = learner.run(recall(steps), engine="compiled")
    right = [(r.y.argmax(-1) == r.sample.target).float().mean() for r in reports if r.sample.target is not None]
    return torch.stack(right)


def main(steps: int = 4_000) -> dict[str, torch.Tensor]:
    """The answers by each credit."""
    found = {}
    for credit in (hl.Cleared(), hl.Forward(), hl.Echo(every=DELAY + 2), hl.Sensitivity()):
        name = type(credit).__name__
        found[name] = right = answers(credit, steps)
        print(f"{name:12} {right[-len(right) // 5 :].mean():.2f}")
    print(f"chance       {1 / CUES:.2f}")
    return found


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
