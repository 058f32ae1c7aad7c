"""Remember a cue for twenty steps: forward credit without a look back, beside credit for one step alone.

Four cue lines, a go line, and a random bit as distraction. The cue comes first, the question last; in between
there is nothing to learn from. Run it with `python examples/recall.py`.
"""

import torch
from torch import nn

import hamlearn as hl

DELAY, LANES, STEPS = 20, 8, 12_000


def episodes(seed=0):
    """Samples without end, eight episodes side by side; the target comes with the last of each."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        cue = torch.randint(0, 4, (LANES,), generator=draw)
        for k in range(DELAY + 2):
            u = torch.zeros(LANES, 6)
            u[:, 5] = torch.randint(0, 2, (LANES,), generator=draw).float()
            if k == 0:
                u[torch.arange(LANES), cue] = 1.0
            last = k == DELAY + 1
            u[:, 4] = float(last)
            yield hl.Sample(u, target=cue if last else None)


def answers(credit):
    """Share of right answers at the end of each episode."""
    torch.manual_seed(0)
    network = hl.Network.recurrent(hl.cells.ColumnarGRU(6, 64, t_max=2 * DELAY), nn.Linear(64, 4))
    hyper = hl.Hyper.from_adam(lr=2e-3)
    learner = hl.Learner(network, nn.functional.cross_entropy, hyper, credit=credit)
    right = []
    for report in learner.run(episodes(), max_steps=STEPS, engine="compiled"):
        if report.loss is not None:
            right.append((report.y.argmax(-1) == report.sample.target).float().mean())
    return torch.stack(right)


def main():
    """The answers by either credit."""
    found = {}
    for credit in (hl.Cleared(), hl.Sensitivity()):
        found[type(credit).__name__] = right = answers(credit)
        print(f"{credit!r:40} {right[-len(right) // 5 :].mean():.2f} right in the last fifth")
    return found


if __name__ == "__main__":
    main()
