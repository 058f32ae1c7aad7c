"""What bad input gets: an error that names the value and the remedy, and a learner that is exactly as it was."""

import math
import warnings

import numpy as np
import pytest
import torch
from river import metrics
from torch import nn

import hamlearn as hl
from tests.comparing import same


def snapshot(learner):
    tensors = [p.detach().clone() for p in learner.network.parameters()]
    tensors += [b.clone() for b in learner.network.buffers()]
    tensors += [o.clone() for o in learner._eager.state.carry.omega]
    tensors += [x.clone() for x in (*learner._eager.state.carry.h, *learner._eager.state.carry.z)]
    return tensors, (learner.state.t, learner.state.updates, learner.position, learner._eager.state.fresh)


def unchanged(before, learner):
    return same(before, snapshot(learner))


class Cell(nn.Module):
    """A cell with running statistics, so that a failed step could leave a trace."""

    hidden_size = 4

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.cell = nn.RNNCell(3, 4)

    def forward(self, u, h):
        return self.cell(self.norm(u), h)


def classifier(order="sequential", credit=hl.Forward(), **kwargs):  # noqa: B008 (frozen)
    torch.manual_seed(0)
    network = hl.Network.recurrent(Cell(), nn.Linear(4, 3))
    hyper = hl.Hyper(eta=0.0, beta=0.1)
    learner = hl.Learner(network, nn.functional.cross_entropy, hyper, order=order, credit=credit, **kwargs)
    learner.step(hl.Sample(torch.randn(2, 3), torch.tensor([0, 1])))
    return learner


def u(*shape):
    return torch.randn(*shape or (2, 3))


BAD_SAMPLES = {
    "an input of the wrong size": (hl.Sample(u(2, 5), torch.tensor([0, 1])), r"u=float32\[2, 5\].*shape"),
    "a batch that changes in mid-sequence": (
        hl.Sample(u(3, 3), torch.tensor([0, 1, 2])),
        r"u=float32\[3, 3\].*boundary=True",
    ),
    "an input of the wrong dtype": (hl.Sample(u().double(), torch.tensor([0, 1])), r"float64\[2, 3\].*dtype"),
    "a target of the wrong kind": (
        hl.Sample(u(), torch.tensor([0.5, 1.0])),
        r"target=float32\[2\].*shape and dtype",
    ),
    "a target out of range": (hl.Sample(u(), torch.tensor([0, 7])), r"Target 7 is out of bounds.*target"),
    "a target of the wrong length": (hl.Sample(u(), torch.tensor([0])), r"target=int64\[1\].*shape"),
    "tau of zero": (hl.Sample(u(), tau=0.0), r"tau=0.0.*above 0"),
    "tau below zero": (hl.Sample(u(), tau=-0.5), r"tau=-0.5.*time since the previous"),
    "tau that is not a number": (hl.Sample(u(), tau=math.nan), r"tau=nan.*finite"),
    "tau without end": (hl.Sample(u(), tau=math.inf), r"tau=inf.*finite"),
    "tau of another kind": (hl.Sample(u(), tau="soon"), r"tau='soon'.*finite number"),
    "a target that is no tensor": (hl.Sample(u(), "yes"), r"target=str.*shape and dtype"),
    "no sample at all": (u(), r"not Tensor: use hl.Sample"),
}


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_a_bad_sample_is_named_and_leaves_the_learner_as_it_was(case, order):
    sample, message = BAD_SAMPLES[case]
    learner = classifier(order)
    before = snapshot(learner)
    with pytest.raises(hl.errors.SampleError, match=f"(?s){message}"):
        learner.step(sample)
    assert unchanged(before, learner)


@pytest.mark.parametrize("target", [torch.randn(4), torch.arange(4), torch.randn(1, 4)])
def test_a_target_that_would_be_broadcast_is_refused(target):
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), nn.functional.mse_loss, hl.Hyper())
    before = snapshot(learner)
    with pytest.raises(hl.errors.SampleError, match=r"(?s)y=float32\[4, 1\] with target=.*shape and dtype"):
        learner.step(hl.Sample(torch.randn(4, 2), target))
    assert unchanged(before, learner)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("batch", [(), (1,), (3,)], ids=str)
def test_class_indices_are_refused_by_a_loss_that_would_broadcast_them(batch, engine):
    losses = nn.functional.mse_loss, nn.MSELoss(), lambda y, target: nn.functional.l1_loss(y, target)
    for loss in losses:
        learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 3)), loss, hl.Hyper())
        before = snapshot(learner)
        stream = [hl.Sample(torch.randn(*batch, 2), torch.ones(batch, dtype=torch.int64))] * 4
        with pytest.raises(
            hl.errors.SampleError, match=r"could not compare y=.* with target=.*Using a target size"
        ):
            list(learner.run(stream, engine=engine))
        assert unchanged(before, learner)


def test_a_loss_of_ones_own_may_take_class_indices_and_warn():
    def loss(y, target):
        warnings.warn("rare class", UserWarning, stacklevel=2)
        return nn.functional.cross_entropy(y, target)

    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 3)), loss, hl.Hyper())
    with pytest.warns(UserWarning, match="rare class"):
        learner.step(hl.Sample(torch.randn(1, 2), torch.tensor([1])))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ["Linear", "GRUCell"])
def test_a_wrong_number_of_inputs_is_told_with_what_the_first_layer_takes(kind, engine):
    deep = nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 1))
    network = {
        "Linear": lambda: hl.Network.feedforward(deep),
        "GRUCell": lambda: hl.Network.recurrent(nn.GRUCell(4, 5), nn.Linear(5, 1)),
    }[kind]()
    learner = hl.Learner(network, nn.functional.mse_loss)
    with pytest.raises(
        hl.errors.SampleError, match=f"the stream gives 3 inputs, and the first layer, {kind}, takes 4"
    ):
        list(learner.run([hl.Sample(torch.ones(1, 3), torch.ones(1, 1))] * 3, engine=engine))


def test_a_module_of_the_input_alone_is_pointed_to_feedforward():
    learner = hl.Learner(hl.Network(output=nn.Linear(2, 1)), nn.functional.mse_loss, hl.Hyper())
    with pytest.raises(hl.errors.SampleError, match=r"output\(u, h\).*hl.Network.feedforward"):
        learner.step(hl.Sample(torch.randn(4, 2), torch.randn(4, 1)))


@pytest.mark.parametrize(
    ("order", "what"), [("sequential", "the input u is not finite"), ("parallel", "the input u is not finite")]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_loss_or_costate_raises_and_keeps_the_last_good_state(order, what, bad):
    learner = classifier(order)
    before = snapshot(learner)
    with pytest.raises(hl.errors.NonFiniteError, match=rf"{what}.* at t=1.*on_nonfinite='skip'"):
        learner.step(hl.Sample(torch.full((2, 3), bad), torch.tensor([0, 1])))
    assert unchanged(before, learner)


@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Echo()], ids=repr)
def test_a_skipped_sample_that_ends_a_sequence_still_ends_it(credit):
    network = hl.Network.recurrent(nn.RNNCell(3, 4), nn.Linear(4, 3))
    learner = hl.Learner(
        network, nn.functional.cross_entropy, hl.Hyper(), order="sequential", credit=credit, on_nonfinite="skip"
    )
    learner.step(hl.Sample(u(), torch.tensor([0, 1])))
    omega = {name: value.clone() for name, value in learner.state.omega.items()}
    assert learner.step(hl.Sample(torch.full((2, 3), math.nan), torch.tensor([0, 1]), boundary=True)).skipped
    assert learner.stored_tokens == 0
    assert all(torch.equal(omega[name], value) for name, value in learner.state.omega.items())
    # The next sequence starts from h0, and may have another batch size.
    learner.step(hl.Sample(u(5, 3), torch.tensor([0, 1, 2, 0, 1])))
    assert learner.state.h.shape == (5, 4)


def test_a_costate_that_overflows_while_the_loss_is_finite_is_caught_and_named():
    network = hl.Network.feedforward(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(network.output.weight)
    learner = hl.Learner(network, lambda y, target: (1e30 * y).sum(), hl.Hyper(), order="sequential")
    before = snapshot(learner)
    with pytest.raises(hl.errors.NonFiniteError, match=r"omega of output.weight.*Lower beta or tau"):
        learner.step(hl.Sample(torch.tensor([[1e20]]), torch.zeros(1)))
    assert unchanged(before, learner)


def test_a_state_that_overflows_without_any_target_is_caught():
    network = hl.Network(lambda u, h: 1e30 * h, nn.Bilinear(1, 1, 1), h0=torch.ones(1, 1))
    learner = hl.Learner(network, nn.functional.mse_loss, order="parallel", credit=hl.Forward())
    learner.step(hl.Sample(torch.ones(1, 1)))
    before = snapshot(learner)
    with pytest.raises(hl.errors.NonFiniteError, match=r"(the input u|the state h) is not finite"):
        learner.step(hl.Sample(torch.ones(1, 1)))
    assert unchanged(before, learner)


def test_a_batch_that_changes_while_z_is_carried_is_refused():
    network = hl.Network.feedforward(nn.Linear(2, 3), role="state")
    learner = hl.Learner(network, nn.functional.mse_loss, credit=hl.Forward(), reset_h="sample")
    learner.step(hl.Sample(torch.randn(4, 2), torch.randn(4, 3)))
    before = snapshot(learner)
    with pytest.raises(hl.errors.SampleError, match=r"\[1, 3\].*\[4, 3\].*lives on.*boundary=True"):
        learner.step(hl.Sample(torch.randn(1, 2), torch.randn(1, 3)))
    assert unchanged(before, learner)


def test_a_schedule_of_beta_that_returns_a_tensor_is_refused_before_anything_moves():
    network = hl.Network.recurrent(nn.RNNCell(2, 3), nn.Linear(3, 1))
    hyper = hl.Hyper(beta={"state.*": 0.1, "*": lambda t: torch.ones(3)})
    learner = hl.Learner(network, nn.functional.mse_loss, hyper, order="sequential")
    before = snapshot(learner)
    with pytest.raises(hl.errors.ConfigError, match=r"beta=tensor.*at t=0"):
        learner.step(hl.Sample(torch.randn(1, 2), torch.randn(1, 1)))
    assert unchanged(before, learner)


@pytest.mark.parametrize(
    "network",
    [
        hl.Network.feedforward(nn.Linear(2, 3), role="state"),
        hl.Network.recurrent(nn.RNNCell(2, 3)),
    ],
)
@pytest.mark.parametrize("bad", [torch.ones(1, 5), [1.0, 2.0]])
def test_an_input_for_which_no_first_state_can_be_made_is_named(network, bad):
    learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(), order="sequential")
    with pytest.raises(hl.errors.SampleError, match="could not"):
        learner.step(hl.Sample(bad))


def test_checks_can_be_turned_off():
    learner = classifier(on_nonfinite="ignore")
    report = learner.step(hl.Sample(torch.full((2, 3), math.nan), torch.tensor([0, 1])))
    assert report.loss.isnan()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau=0.0"),
        ({"tau": -1}, "tau=-1"),
        ({"tau": math.inf}, "tau=inf"),
        ({"beta": -0.1}, "beta=-0.1 must be"),
        ({"beta": torch.tensor([0.1, -2.0])}, "beta holds -2"),
        ({"beta": torch.tensor([1.0, math.inf])}, "beta holds inf"),
        ({"beta": {"*": -3.0}}, "beta=-3.0"),
        ({"beta": "fast"}, "beta='fast'"),
        ({"beta": "0.1"}, "beta='0.1'"),
        ({"beta": {1: 0.1, "*": 0.1}}, "beta maps 1, which is not a name"),
        ({"beta": torch.tensor(1j)}, "beta is a tensor of torch.complex64"),
        ({"eta": None}, "eta=None"),
        ({"phi": None}, "phi=None"),
        ({"phi_first": lambda t: 1.0}, "phi_first="),
        ({"eta": -1.0}, "eta=-1.0"),
        ({"eta_z": math.nan}, "eta_z=nan"),
        ({"phi": -0.5}, "phi=-0.5"),
        ({"s": 0}, "s=0 must be -1"),
    ],
)
def test_hyper_parameters_that_cannot_be_are_named(settings, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        hl.Hyper(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lr": -1.0}, "lr=-1.0"), ({"lr": 0.1, "momentum": 1.2}, "momentum=1.2"), ({"lr": 0.1, "tau": 0}, "tau=0")],
)
def test_sgd_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        hl.Hyper.from_sgd(**settings)


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        (hl.Hyper(beta=lambda t: 0.1 - t), "beta=-0.9"),
        (hl.Hyper(eta=lambda t: -t), "eta=-1.0 at t=1"),
        (hl.Hyper(phi=lambda t: 1 - 2 * t), "phi=-1.0 at t=1"),
    ],
)
def test_a_schedule_that_leaves_its_range_is_named_with_the_time(hyper, message):
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), nn.functional.mse_loss, hyper)
    sample = hl.Sample(torch.randn(1, 2), torch.randn(1, 1))
    learner.step(sample)
    before = snapshot(learner)
    with pytest.raises(hl.errors.ConfigError, match=message):
        learner.step(sample)
    assert unchanged(before, learner)


NET = hl.Network.feedforward(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hl.Learner(nn.Linear(1, 1), print, hl.Hyper()), r"Linear: wrap it.*feedforward"),
        (lambda: hl.Learner(NET, print, {"lr": 1}), r"hyper is a dict.*hl.Hyper"),
        (lambda: hl.Learner(NET, print, hl.Hyper(), order="backward"), r"order='backward'.*'parallel'"),
        (lambda: hl.Learner(NET, print, hl.Hyper()).run([], max_steps=2.5), r"max_steps=2\.5"),
        (lambda: hl.Learner(NET, print, hl.Hyper(), credit=hl.Cleared), r"credit=.*hl.Cleared\(\)"),
        (lambda: hl.Learner(NET, print, hl.Hyper(), reset_h="never"), r"reset_h='never'.*'boundary'"),
        (lambda: hl.Learner(NET, print, hl.Hyper(), integrator="euler"), r"integrator='euler'.*hl.Euler"),
        (lambda: hl.Learner(NET, print, hl.Hyper(), on_nonfinite="warn"), r"on_nonfinite='warn'.*'skip'"),
        (
            lambda: hl.Learner(NET, print, hl.Hyper(), order="sequential", integrator=hl.RK4()),
            r"hl.Euler\(\) only, not RK4\(\).*order='parallel'",
        ),
        (lambda: hl.Learner(NET, print, hl.Hyper(beta={"output.7.*": 1, "*": 0})), r"'output.7.\*'.*no learnable"),
        (
            lambda: hl.Learner(NET, print, hl.Hyper(beta={"*": 0, "*.bias": 1})),
            r"'\*.bias' behind '\*', which matches the same weights and more.*put '\*.bias' before it",
        ),
        (lambda: hl.Learner(NET, print, hl.Hyper(beta={"output.0.*": 1})), r"nothing of 'output.1.weight'.*'\*'"),
        (lambda: hl.Learner(NET, print, hl.Hyper(beta=torch.ones(7))), r"beta of shape \(7,\).*output.0.weight"),
        (lambda: hl.Network(), "got neither"),
        (lambda: hl.Network(nn.Linear(1, 1), h0=0.0), "h0 holds a float"),
        (lambda: hl.Network(nn.Linear(1, 1)), "pass h0="),
        (lambda: hl.Network(None, nn.Linear(1, 1), h0=torch.zeros(1)), "drop h0"),
        (lambda: hl.Network(nn.Linear(1, 1), h0=torch.zeros(1), transition="jump"), "transition='jump'.*'next'"),
        (lambda: hl.Network.feedforward(nn.Linear(1, 1), role="both"), "role='both'"),
        (lambda: hl.Network.feedforward(nn.Linear(1, 1), readout=nn.Linear(1, 1)), "role='state'"),
        (lambda: hl.Network.recurrent(nn.Linear(1, 1)), "Linear has no hidden_size.*pass h0"),
        (lambda: hl.Network.recurrent(nn.GRU(1, 1)), "nn.GRU takes whole sequences.*nn.GRUCell"),
        (
            lambda: hl.Learner(
                hl.Network.feedforward(nn.Linear(1, 1), role="state"), print, order="parallel", reset_h="sample"
            ),
            "never show its input.*order='sequential'",
        ),
        (lambda: hl.Learner(hl.Network.feedforward(nn.Flatten()), print, hl.Hyper()), "nothing to learn"),
        (lambda: hl.cells.Stack(nn.GRUCell(1, 2), nn.GRUCell(3, 2)), "hidden size 2 cannot feed.*3"),
        (lambda: hl.cells.Stack(nn.Linear(1, 2)), "Stack takes nn.RNNCell"),
        (lambda: hl.cells.Antisymmetric(1, 2, gamma=-1), "gamma=-1"),
        (lambda: hl.cells.Diagonal(1, 2, decay=(0.0, 1.0)), "decay="),
    ],
)
def test_what_cannot_be_put_together_is_named_with_a_remedy(build, message):
    with pytest.raises(hl.errors.ConfigError, match=f"(?s){message}"):
        build()


def test_a_loss_that_is_not_reduced_is_named():
    learner = hl.Learner(NET, lambda y, target: (y - target) ** 2, hl.Hyper())
    with pytest.raises(hl.errors.ConfigError, match=r"float32\[1, 1\].*mean"):
        learner.step(hl.Sample(torch.zeros(1, 2), torch.zeros(1, 1)))


def test_a_state_net_that_returns_another_shape_is_named():
    network = hl.Network(lambda u, h: torch.cat([h, h], -1), nn.Bilinear(2, 3, 1), h0=torch.zeros(1, 3))
    for order in ("parallel", "sequential"):
        learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(), order=order)
        with pytest.raises(hl.errors.SampleError, match=r"\[1, 6\].*\[1, 3\].*h0"):
            learner.step(hl.Sample(torch.zeros(1, 2), torch.zeros(1, 1)))


@pytest.mark.parametrize(
    "credit", [hl.Cleared(), hl.Forward(), hl.Echo()], ids=lambda credit: type(credit).__name__
)
def test_a_state_of_whole_numbers_is_named(credit):
    class Counting(nn.RNNCell):
        def initial_state(self, u):
            return torch.zeros(len(u), 4), torch.zeros(len(u), dtype=torch.long)

        def forward(self, u, h):
            return super().forward(u, h[0]), h[1] + 1

    network = hl.Network(Counting(3, 4), lambda u, h: h[0], transition="next")
    learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(), credit=credit)
    with pytest.raises(hl.errors.SampleError, match=r"int64\[2\].*make that part a floating-point tensor"):
        learner.step(hl.Sample(torch.ones(2, 3), torch.ones(2, 4)))


def test_a_stream_that_ends_in_mid_sequence_is_an_error_after_its_tokens_were_learned():
    learner = classifier()
    learner.reset()
    tokens = [hl.Sample(u(), torch.tensor([0, 1]), boundary=k == 2) for k in range(5)]
    seen = []
    with pytest.raises(hl.errors.StreamError, match=r"2 tokens into a sequence.*boundary=True"):
        seen.extend(learner.run(tokens))
    assert len(seen) == 5


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_step_in_inference_mode_is_refused_and_a_prediction_is_not(engine):
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(1, 1)), nn.functional.mse_loss)
    with torch.inference_mode():
        with pytest.raises(hl.errors.ConfigError, match="inference_mode"):
            list(learner.run([hl.Sample(torch.ones(1, 1), torch.ones(1, 1))], engine=engine))
        y = learner.predict(torch.ones(1, 1))
    assert learner.state.updates == 0
    assert torch.equal(y, learner.predict(torch.ones(1, 1)))


def test_a_weight_without_a_shape_is_named_when_the_learner_is_made():
    with pytest.raises(hl.errors.ConfigError, match="has no shape yet: call the module"):
        hl.Learner(hl.Network.feedforward(nn.LazyLinear(1)), nn.functional.mse_loss)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_target_that_fails_on_the_way_back_is_refused_in_our_words(engine):
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(3, 2)), nn.functional.cross_entropy)
    before = [weight.clone() for weight in learner.network.parameters()]
    with pytest.raises(hl.errors.SampleError, match=r"could not be differentiated: .*Give a target of the shape"):
        list(learner.run([hl.Sample(torch.randn(3), torch.tensor([1]))] * 4, engine=engine))
    assert all(torch.equal(a, b) for a, b in zip(before, learner.network.parameters(), strict=True))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize(
    "data",
    [
        np.ones((3, 2)),
        (np.ones((3, 2)), np.ones(3)),
        [(torch.ones(2), torch.ones(1))],
        [{"a": 1.0}],
        {"a": [1.0]},
        "data.csv",
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3, 2), torch.ones(3, 1))),
        None,
        3,
    ],
    ids=["array", "pair", "pairs", "rows", "columns", "path", "loader", "none", "number"],
)
def test_data_that_is_no_stream_is_refused_with_the_way_to_make_it_one(data, engine):
    def make():
        return hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), nn.functional.mse_loss)

    with pytest.raises(hl.errors.HamlearnError, match=r"hl\.streams\.from_any\(data\)"):
        list(make().run(data, engine=engine))
    with pytest.raises(hl.errors.HamlearnError, match=r"hl\.streams\.from_any\(data\)"):
        list(hl.evaluate(make(), data, metrics.MAE(), engine=engine))


def test_arguments_of_an_optimizer_lead_to_the_constructor_that_takes_them():
    with pytest.raises(
        hl.errors.ConfigError, match=r"Hyper has no 'lr': use Hyper.from_sgd\(lr=0.1, momentum=0.9\)"
    ):
        hl.Hyper(lr=0.1, momentum=0.9)
