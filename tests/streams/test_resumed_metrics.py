"""Every metric goes on to the bit after a resume, or is refused by name before a run."""

import json

import pytest
import torch
import torchmetrics
from river import metrics
from torchmetrics import classification

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import object_graph
from hamlearn.evaluate.scores import Scores
from hamlearn.experiments.run import run

SETTINGS = {
    "FBeta": (2.0,),
    "MacroFBeta": (2.0,),
    "MicroFBeta": (2.0,),
    "WeightedFBeta": (2.0,),
    "MultiFBeta": ({0: 1.0, 1: 2.0}, {0: 0.5, 1: 0.5}),
}
"""What a metric cannot be made without."""

REFUSED = {
    "ClassificationReport": "single number",
    "ConfusionMatrix": "single number",
    "RollingPRAUC": "whose inside cannot be seen",
    "RollingROCAUC": "whose inside cannot be seen",
    "Silhouette": "a prediction and a truth",
}

RIVER = {
    name: kind for name in dict.fromkeys(metrics.__all__) if isinstance(kind := getattr(metrics, name, None), type)
}

TORCH = {
    "MeanSquaredError": (torchmetrics.MeanSquaredError, "number"),
    "MeanAbsoluteError": (torchmetrics.MeanAbsoluteError, "number"),
    "ExplainedVariance": (torchmetrics.ExplainedVariance, "number"),
    "PearsonCorrCoef": (torchmetrics.PearsonCorrCoef, "number"),
    "BinaryAccuracy": (classification.BinaryAccuracy, "bit"),
    "BinaryF1Score": (classification.BinaryF1Score, "bit"),
    "BinaryAUROC": (classification.BinaryAUROC, "bit"),
    "BinaryAUROC, binned": (lambda: classification.BinaryAUROC(thresholds=10), "bit"),
    "BinaryAveragePrecision": (classification.BinaryAveragePrecision, "bit"),
    "MulticlassAccuracy": (lambda: classification.MulticlassAccuracy(3), "class"),
    "MulticlassF1Score": (lambda: classification.MulticlassF1Score(3), "class"),
    "MulticlassAUROC": (lambda: classification.MulticlassAUROC(3), "class"),
    "MulticlassCohenKappa": (lambda: classification.MulticlassCohenKappa(3), "class"),
    "MulticlassMatthewsCorrCoef": (lambda: classification.MulticlassMatthewsCorrCoef(3), "class"),
}


def pairs(kind, n=60):
    generator = torch.Generator().manual_seed(1)
    if kind == "number":
        return torch.rand(n, 1, generator=generator), torch.rand(n, 1, generator=generator)
    if kind == "bit":
        return torch.rand(n, 1, generator=generator), torch.randint(2, (n, 1), generator=generator)
    return torch.randn(n, 3, generator=generator).softmax(1), torch.randint(3, (n,), generator=generator)


def stopped_and_resumed(make, window, y, target):
    """Whether a metric that is put back at every tenth pair is, at each, as one that never was."""
    whole, now = Scores(make(), window, None), Scores(make(), window, None)
    for k in range(len(y)):
        if k % 10 == 7:
            state = json.loads(json.dumps(now.state_dict(), allow_nan=False))
            now = Scores(make(), window, None)
            now.load_state_dict(state)
            assert now.state_dict() == state
        for scores in (whole, now):
            scores.update(y[k], target[k])
        assert repr(now.read()) == repr(whole.read())


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", RIVER)
def test_every_metric_of_river_goes_on_exactly_or_is_refused_by_name(name, window):
    def make():
        return RIVER[name](*SETTINGS.get(name, ()))

    if name == "RMSLE" and window is not None:
        # River 0.26 takes back another number than it counted.
        with pytest.raises(ConfigError, match="RMSLE cannot forget"):
            Scores(make(), window, None)
        return
    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"the metric '{name}' .*{REFUSED[name]}"):
            Scores(make(), window, None).require_resumable()
        return
    Scores(make(), window, None).require_resumable()
    numbers = issubclass(RIVER[name], metrics.base.RegressionMetric)
    binary = issubclass(RIVER[name], metrics.base.BinaryMetric) or name == "MultiFBeta"
    y, target = pairs("number" if numbers else "bit" if binary else "class")
    stopped_and_resumed(make, window, y if not binary else 4 * y - 2, target)


# PearsonCorrCoef and others warn of too few samples: that is the library's own matter.
@pytest.mark.filterwarnings("ignore:::torchmetrics")
@pytest.mark.parametrize("name", TORCH)
def test_metrics_of_torchmetrics_go_on_exactly(name):
    make, kind = TORCH[name]
    Scores(make(), None, None).require_resumable()
    stopped_and_resumed(make, None, *pairs(kind))


@pytest.mark.filterwarnings("ignore:::torchmetrics")
@pytest.mark.parametrize("name", ["MeanSquaredError", "BinaryAccuracy", "MulticlassAccuracy"])
def test_windows_of_torchmetrics_go_on_exactly(name):
    make, kind = TORCH[name]
    stopped_and_resumed(make, 7, *pairs(kind))


class Odd:
    """A metric of one's own, whose counts lie in everything that Python has."""

    def __init__(self):
        import numpy as np

        self.array, self.scalar = np.zeros(3), np.float32(0)
        self.nested = {"a": [{1, 2}, (3, [4])], 5: None}
        self.shared = self.nested["a"]
        self.ring = __import__("collections").deque(maxlen=3)

    def update(self, truth, prediction):
        self.array[int(truth) % 3] += prediction
        self.scalar += type(self.scalar)(prediction)
        self.shared[1][1].append(prediction)
        self.ring.append((truth, prediction))

    def get(self):
        assert self.shared is self.nested["a"]
        return float(self.array.sum() + self.scalar + sum(self.nested["a"][1][1]) + sum(p for _, p in self.ring))


def test_a_metric_of_ones_own_with_arrays_and_shared_parts_goes_on_exactly():
    Scores(Odd(), None, None).require_resumable()
    stopped_and_resumed(Odd, None, *pairs("number"))


class Forgetful(Odd):
    """Keeps its count where nobody can see it."""

    def __init__(self):
        count = iter(range(1000))
        self.get = lambda: float(next(count))

    def update(self, truth, prediction):
        return None


class Closed(Odd):
    def __init__(self):
        self.lock = __import__("threading").Lock()


def test_a_metric_whose_count_cannot_be_seen_is_refused():
    with pytest.raises(
        ConfigError, match=r"'Forgetful'.*its value was another one|'Forgetful'.*not what was written"
    ):
        Scores(Forgetful(), None, None).require_resumable()
    with pytest.raises(ConfigError, match=r"'Closed'.*cannot be copied"):
        Scores(Closed(), None, None).require_resumable()


def test_a_state_that_does_not_fit_leaves_the_metric_as_it_was():
    scores = Scores(metrics.ROCAUC(), None, None)
    scores.update(torch.tensor([1.0]), torch.tensor([1]))
    before = scores.state_dict()
    for damage in (
        lambda s: s["all"]["ROCAUC"]["parts"][1]["held"].pop("cms"),
        lambda s: s["all"]["ROCAUC"].update(value="0.25"),
        lambda s: s["all"]["ROCAUC"]["parts"].pop(),
    ):
        state = json.loads(json.dumps(before))
        damage(state)
        with pytest.raises(CheckpointError, match="the state of the metric 'ROCAUC' cannot be put back"):
            scores.load_state_dict(state)
        assert scores.state_dict() == before


def test_a_table_names_nothing_that_would_be_imported():
    table = object_graph.dump({"a": [1.5, float("nan")]})
    table[0]["kind"], table[0]["class"], table[0]["held"] = "object", "os.system", {}
    with pytest.raises(object_graph.NotPlainError, match="only a running metric has"):
        object_graph.load({"a": []}, table)


CONFIG = """
[run]
steps = 90
[stream]
kind = "csv"
path = "data.csv"
u = ["a", "b"]
target = "kind"
classes = ["0", "1"]
[network]
kind = "linear"
[loss]
kind = "cross_entropy"
[records]
every = 10
metrics = ["{metric}"]
metric_window = 20
[checkpoint]
every = 20
"""


@pytest.fixture
def config(tmp_path):
    rows = (f"{k % 7},{-(k % 3)},{int(k % 5 > 2)}\n" for k in range(90))
    (tmp_path / "data.csv").write_text("a,b,kind\n" + "".join(rows))

    def write(metric):
        path = tmp_path / "config.toml"
        path.write_text(CONFIG.format(metric=metric))
        return path

    return write


def test_a_resumed_run_ends_with_the_roc_auc_of_one_that_was_not_stopped(config, tmp_path, monkeypatch):
    path = config("ROCAUC")
    whole = run(path, out=tmp_path / "whole", progress=False)
    path.write_text(path.read_text().replace("steps = 90", "steps = 50"))
    run(path, out=tmp_path / "cut", progress=False)
    path.write_text(path.read_text().replace("steps = 50", "steps = 90"))
    resumed = run(path, resume=True, out=tmp_path / "cut", progress=False)
    assert (resumed.scores, resumed.window) == (whole.scores, whole.window)
    assert 0 < whole.scores["ROCAUC"] < 1


@pytest.mark.parametrize("metric", ["RollingROCAUC", "ConfusionMatrix", "FBeta", "multioutput", "MAE"])
def test_a_metric_that_cannot_be_resumed_or_does_not_fit_is_refused_before_anything_is_written(
    config, tmp_path, metric
):
    with pytest.raises(ConfigError, match=metric):
        run(config(metric), out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "record.jsonl").exists()
    assert not (tmp_path / "out" / "checkpoint.safetensors").exists()
