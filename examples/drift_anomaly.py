"""Notice drift by River's ADWIN on the loss, and anomalies by the error of an autoencoder.

python examples/drift_anomaly.py
"""

import torch
from river import anomaly, drift, metrics
from torch import nn

import hamlearn as hl


def drifting(n: int = 3000) -> list[hl.Sample]:
    """A regression whose rule changes after two thirds."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(n, 1, 4, generator=generator)
    noise = 0.1 * torch.randn(n, 1, generator=generator)
    before, after = torch.tensor([1.0, -2.0, 0.5, 0.0]), torch.tensor([-1.0, 1.0, 0.5, 2.0])
    rules = torch.stack([before if k < 2 * n // 3 else after for k in range(n)])
    targets = (u[:, 0] * rules).sum(-1, keepdim=True) + noise
    return [hl.Sample(row, target[None]) for row, target in zip(u, targets, strict=True)]


def readings(n: int = 4000) -> tuple[torch.Tensor, list[bool]]:
    """Eight sensors that follow two causes, and which readings are anomalies: one sensor does not follow."""
    generator = torch.Generator().manual_seed(1)
    causes = torch.randn(n, 2, generator=generator)
    u = torch.tanh(causes @ torch.randn(2, 8, generator=generator)) + 0.05 * torch.randn(n, 8, generator=generator)
    odd = torch.rand(n, generator=generator) < 0.02
    sensor = torch.randint(8, (n,), generator=generator)
    u[odd, sensor[odd]] = 2 * torch.rand(int(odd.sum()), generator=generator) - 1
    return u[:, None], odd.tolist()


def noticed() -> list[int]:
    """The samples at which ADWIN finds that the loss has changed."""
    torch.manual_seed(0)
    learner = hl.Learner(
        hl.Network.feedforward(nn.Linear(4, 1)), nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.01)
    )
    detector, found = drift.ADWIN(), []
    for k, report in enumerate(learner.run(drifting(), engine="compiled")):
        detector.update(float(report.loss))
        if detector.drift_detected:
            found.append(k)
    return found


def scores() -> tuple[float, float]:
    """The area under the ROC curve of an autoencoder's error, and of half-space trees."""
    u, odd = readings()
    torch.manual_seed(0)
    inner, outer = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Sequential(nn.Linear(2, 16), nn.Tanh())
    net = nn.Sequential(inner, nn.Linear(16, 2), nn.Tanh(), outer, nn.Linear(16, 8))
    learner = hl.Learner(hl.Network.feedforward(net), nn.functional.mse_loss, hl.Hyper.from_adam(lr=0.003))
    # The target is the input: the loss of a reading, before it is learned, says how unusual it is.
    errors = [float(report.loss) for report in learner.run([hl.Sample(row, row) for row in u], engine="compiled")]
    trees = anomaly.HalfSpaceTrees(limits=dict.fromkeys(range(8), (-2.0, 2.0)), seed=0)
    ours, theirs = metrics.RollingROCAUC(window_size=len(u)), metrics.RollingROCAUC(window_size=len(u))
    for k, row in enumerate(u[:, 0].tolist()):
        features = dict(enumerate(row))
        if k >= 500:
            ours.update(odd[k], errors[k])
            theirs.update(odd[k], trees.score_one(features))
        trees.learn_one(features)
    return ours.get(), theirs.get()


def main() -> None:
    found = noticed()
    print(f"the rule changed at sample 2000, noticed at {found}")
    assert any(2000 <= k < 2100 for k in found)
    ours, theirs = scores()
    print(f"AUC of the autoencoder's error {ours:.3f}, of half-space trees {theirs:.3f}")
    assert ours > 0.8
    assert ours > theirs


if __name__ == "__main__":
    main()
