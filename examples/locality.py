"""A network in which all layers learn at once, from a new sample in every tick.

Handwritten digits stream by one at a time. BackPropagation takes each through all layers and back before the next.
The aligned learner has a different digit in every layer, and hardly loses by it. The unaligned one compares its
output with the target of a later digit; only its middle layer meets input and target of the same one.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner


def layer(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_normal_(linear.weight)
    return linear


def main() -> dict[str, list[bool]]:
    """Which digits were classified correctly while learning, for each setting."""
    torch.set_num_threads(1)
    digits = load_digits()
    u = torch.tensor(digits.data, dtype=torch.float32)
    u = (u - u.mean()) / u.std()
    target = torch.tensor(digits.target)
    order = torch.randperm(len(u), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    stream = [hl.Sample(u[i : i + 1], target[i : i + 1]) for i in train.tolist()]
    answers = {}
    for name, setting in {
        "BackPropagation": {"groups": 1, "order": "sequential"},
        "4 nodes, aligned": {"align": True},
        "4 nodes, unaligned": {},
    }.items():
        torch.manual_seed(0)
        hidden = [nn.Sequential(layer(64, 64), nn.Tanh()) for _ in range(3)]
        net = nn.Sequential(*hidden, layer(64, 10))
        learner = LocalLearner(net, nn.functional.cross_entropy, hl.Hyper.from_sgd(lr=0.01), **setting)
        answers[name] = [bool(report.y.argmax() == report.sample.target) for report in learner.run(stream)]
        right = sum(answers[name])
        known = (learner.predict(u[test]).argmax(-1) == target[test]).double().mean()
        print(f"{name:20} while learning {right / len(stream):5.1%}, on new digits {known:5.1%}")
    return answers


if __name__ == "__main__":
    main()
