"""Counts of metrics go on exactly after a resume, or the metric is refused by name before a run."""

import json

import pytest
import torch
import torchmetrics
from river import metrics, utils
from torch.nn import functional
from torchmetrics import classification

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import Scores

SETTINGS = {
    "FBeta": (2.0,),
    "MacroFBeta": (2.0,),
    "MicroFBeta": (2.0,),
    "WeightedFBeta": (2.0,),
    "MultiFBeta": ({0: 1.0, 1: 2.0}, {0: 0.5, 1: 0.5}),
}
"""What a metric cannot be made without."""
REFUSED = {"ClassificationReport", "ConfusionMatrix", "RollingPRAUC", "RollingROCAUC"}
RIVER = {
    name: kind
    for name in dict.fromkeys(metrics.__all__)
    if isinstance(kind := getattr(metrics, name, None), type) and name not in ("Silhouette", "multioutput")
}
TORCH = {
    "MeanSquaredError": (torchmetrics.MeanSquaredError, "number"),
    "PearsonCorrCoef": (torchmetrics.PearsonCorrCoef, "number"),
    "BinaryAUROC": (classification.BinaryAUROC, "bit"),
    "BinaryAUROC, binned": (lambda: classification.BinaryAUROC(thresholds=10), "bit"),
    "MulticlassAccuracy": (lambda: classification.MulticlassAccuracy(3), "class"),
    "MulticlassCohenKappa": (lambda: classification.MulticlassCohenKappa(3), "class"),
}
LOSS = {
    "number": functional.mse_loss,
    "bit": functional.binary_cross_entropy_with_logits,
    "class": functional.cross_entropy,
}


def pairs(kind, n=60):
    generator = torch.Generator().manual_seed(1)
    if kind == "number":
        return torch.rand(n, 1, generator=generator), torch.rand(n, 1, generator=generator)
    if kind == "bit":
        return torch.randn(n, 1, generator=generator), torch.randint(2, (n, 1), generator=generator).float()
    return torch.randn(n, 3, generator=generator), torch.randint(3, (n,), generator=generator)


def check(make, window, kind):
    """A metric that is saved and loaded at every tenth pair is, at each, as one that never was."""
    whole, now = (Scores(make(), window, loss=LOSS[kind]) for _ in range(2))
    whole.require_resumable()
    for k, (y, target) in enumerate(zip(*pairs(kind), strict=True)):
        if k % 10 == 7:
            state = json.loads(json.dumps(now.state_dict(), allow_nan=False))
            now = Scores(make(), window, loss=LOSS[kind])
            now.load_state_dict(state)
            assert now.state_dict() == state
        for scores in (whole, now):
            scores.update(y, target)
        if k % 10 in (0, 8):
            assert repr(now.summary()) == repr(whole.summary())


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", RIVER)
def test_every_metric_of_river_goes_on_exactly_or_is_refused_by_name(name, window):
    def make():
        return RIVER[name](*SETTINGS.get(name, ()))

    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"the metric '{name}' "):
            Scores(make(), window).require_resumable()
        return
    binary = issubclass(RIVER[name], metrics.base.BinaryMetric) or name == "MultiFBeta"
    number = issubclass(RIVER[name], metrics.base.RegressionMetric)
    check(make, window, "number" if number else "bit" if binary else "class")


def test_a_rolling_metric_of_rivers_own_goes_on_exactly():
    check(lambda: {"rolling": utils.Rolling(metrics.MAE, window_size=5)}, None, "number")


# PearsonCorrCoef and others warn of too few samples: that is the library's own matter.
@pytest.mark.filterwarnings("ignore:::torchmetrics")
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", TORCH)
def test_metrics_of_torchmetrics_go_on_exactly(name, window):
    check(TORCH[name][0], window, TORCH[name][1])


class Largest:
    """A metric of one's own."""

    def __init__(self):
        self.largest = torch.tensor(0.0)

    def update(self, truth, prediction):
        self.largest = max(self.largest, torch.tensor(prediction - truth))

    def get(self):
        return float(self.largest)


def test_a_metric_of_ones_own_is_saved_by_its_attributes():
    check(Largest, 7, "number")


def test_counts_of_other_metrics_are_refused():
    state = Scores(metrics.MAE(), 7).state_dict()
    for other in (Scores({"other": metrics.MAE()}, 7), Scores(metrics.MAE(), 8)):
        with pytest.raises(CheckpointError, match="Resume with the same metrics"):
            other.load_state_dict(state)
    with pytest.raises(CheckpointError, match="which a R2 does not have"):
        Scores({"MAE": metrics.R2()}, 7).load_state_dict(state)
