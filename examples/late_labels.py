"""Labels that come later: what a delay costs, on a stream of which the truth changes halfway."""

import torch

import hamlearn as hl


def stream(n=2000, seed=0):
    """Two numbers, and whether the first is the larger; from the middle on, whether it is the smaller."""
    g = torch.Generator().manual_seed(seed)
    for k in range(n):
        u = torch.randn(1, 2, generator=g)
        truth = u[:, :1] > u[:, 1:] if k < n // 2 else u[:, :1] < u[:, 1:]
        yield hl.Sample(u, truth.float())


def answers(by):
    """Which answers were right, in the order in which their labels came."""
    torch.manual_seed(0)
    net = hl.Network.feedforward(torch.nn.Linear(2, 1))
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    learner = hl.Learner(net, loss, hl.Hyper.from_sgd(lr=0.5), late=500)
    right = []
    for report in learner.run(hl.streams.delayed(list(stream()), by)):
        if report.loss is not None:  # a label: y is what was answered before anybody knew
            right.append(bool((report.y > 0) == (report.sample.target > 0.5)))
    return right, learner.labels.learned


def main():
    """The answers, by how late the labels were."""
    found = {}
    for by in (0, 10, 100, 400):
        found[by], learned = answers(by)
        share = sum(found[by]) / len(found[by])
        print(f"labels {by:3d} samples late: {share:.1%} of the answers were right ({learned} labels learned)")
    return found


if __name__ == "__main__":
    main()
