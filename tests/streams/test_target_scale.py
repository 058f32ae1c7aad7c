"""Targets are scaled by what was known before them, and predictions come back in the unit of the data."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import SampleError
from hamlearn.sample import Label
from tests.streams.reading import flat


def prices(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, 3, generator=g)
    return u, (u.sum(1, keepdim=True) * 2e5 + 5e5)


def test_a_target_is_scaled_by_the_mean_and_deviation_of_those_before_it():
    u, y = prices()
    for k, sample in enumerate(streams.standardize(streams.from_any((u, y)), scale_target=True)):
        before = y[:k].double().numpy()
        if k < 2:
            assert sample.target.item() == 0.0
            continue
        expected = (y[k].item() - before.mean()) / before.std()
        assert sample.target.item() == pytest.approx(np.clip(expected, -10, 10), rel=1e-5)
        assert sample.scale.target.equal(y[k])
        assert sample.scale.mean.item() == pytest.approx(before.mean(), rel=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_predictions_come_back_in_the_unit_of_the_data(engine):
    u, y = prices(2000)
    stream = streams.standardize(streams.from_any((u, y)), scale_target=True)
    torch.manual_seed(0)
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(3, 1)), mse_loss, hl.Hyper.from_sgd(lr=0.02))
    errors = [
        abs(report.sample.scale.unscale(report.y) - report.sample.scale.target).item()
        for report in learner.run(stream, engine=engine)
    ]
    assert np.mean(errors[1500:]) < 0.05 * y.std().item()
    assert abs(stream.unscale(learner.predict(torch.zeros(3))).item() - 5e5) < 2e4


def test_classes_and_targets_of_several_tensors_stay():
    u = torch.randn(20, 2)
    whole = streams.standardize(streams.from_any((u, torch.arange(20) % 3)), scale_target=True)
    assert [sample.target.item() for sample in whole] == [k % 3 for k in range(20)]
    assert all(sample.scale is None for sample in flat(whole, 8))


def test_a_label_is_scaled_as_its_sample_was_also_after_a_resume():
    u, y = prices(60)

    def stream():
        return streams.standardize(streams.delayed(streams.from_any((u, y)), by=5), scale_target=True)

    events = list(stream())
    scales = {event.id: event.scale for event in events if not isinstance(event, Label)}
    for event in events:
        if isinstance(event, Label) and scales[event.id] is not None:
            scale = scales[event.id]
            expected = (y[event.id].double() - scale.mean) / scale.spread if scale.spread > 0 else torch.zeros(1)
            torch.testing.assert_close(event.target, expected.clamp(-10, 10).float())
    first, later = stream(), stream()
    for _, _ in zip(range(30), first, strict=False):
        pass
    later.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [event.target for event in later if isinstance(event, Label)] == [
        event.target for event in events[30:] if isinstance(event, Label)
    ]


def test_a_target_that_is_not_finite_is_named():
    rows = [([1.0], [2.0]), ([2.0], [float("nan")])]
    with pytest.raises(SampleError, match="a target of standardize is not finite"):
        list(streams.standardize(rows, scale_target=True))


def test_differences_of_targets_are_taken_before_they_are_scaled():
    rows = [([float(k)], [float(k * k)]) for k in range(9)]
    inside = list(streams.standardize(streams.autoregress(rows, 2, relative=True), scale_target=True))
    assert inside[5].scale.target.item() == 9.0
    with pytest.raises(SampleError, match="Standardise around it"):
        list(streams.autoregress(streams.standardize(rows, scale_target=True), 2, relative=True))


@pytest.mark.parametrize("order", ["scaled, then delayed", "delayed, then scaled"])
def test_late_labels_are_scored_in_the_unit_of_the_data_also_where_a_run_was_resumed(order, tmp_path):
    metrics = pytest.importorskip("river.metrics")
    u, y = prices(40)

    def stream():
        if order == "scaled, then delayed":
            return streams.delayed(streams.standardize(streams.from_any((u, y)), scale_target=True), by=3)
        return streams.standardize(streams.delayed(streams.from_any((u, y)), by=3), scale_target=True)

    def learner():
        torch.manual_seed(0)
        return hl.Learner(hl.Network.feedforward(nn.Linear(3, 1)), mse_loss, hl.Hyper.from_sgd(lr=0.02))

    whole = [step.scores for step in hl.evaluate(learner(), stream(), metrics.MAE(), resume=True)]
    one, other = learner(), learner()
    for count, _ in enumerate(hl.evaluate(one, stream(), metrics.MAE(), resume=True), start=1):
        if count == 41:
            break
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    assert [step.scores for step in hl.evaluate(other, stream(), metrics.MAE(), resume=True)] == whole[41:]
