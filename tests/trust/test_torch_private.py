"""Private functions of PyTorch: in one file alone, still what they were, and none of them needed."""

import ast
import copy
import json
import operator
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn._base import torch_private as private
from hamlearn._base.torch_private import USED

SOURCE = Path(hl.__file__).parent
ALONE = (SOURCE / "_base" / "torch_private.py", SOURCE / "_base" / "plain_trees.py")


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def uses(path):
    """Private names of PyTorch in a file: attributes of torch that begin with an underscore, and such imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith(("torch.", "aten.", "_aten.")) and any(
                part.startswith("_") and not part.startswith("__") for part in name.split(".")[1:]
            ):
                yield name
            if node.attr in ("_schema", "_execution_engine"):
                yield node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            if "experimental" in parts or any(part.startswith("_") for part in parts):
                yield f"{node.module}: {', '.join(alias.name for alias in node.names)}"


def test_no_other_file_uses_a_private_function_of_pytorch():
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if path not in ALONE and (names := sorted(set(uses(path))))
    }
    assert found == {}
    assert set(uses(ALONE[0]))


@pytest.mark.parametrize("name", USED)
def test_this_release_has_every_private_function_and_it_is_the_one_in_use(name):
    """Where this fails, a release has changed something, and the substitute is in use: see what that costs."""
    assert operator.attrgetter(USED[name].path)(torch) == getattr(private, name)
    assert USED[name].why


def test_this_release_can_record_a_step_as_before():
    from torch._decomp import decomposition_table
    from torch._dynamo.exc import TorchDynamoException

    assert private.decompositions() == dict(decomposition_table) != {}
    assert private.compile_errors() is TorchDynamoException
    graph = private.traced(lambda x: x * torch.ones(2), [torch.zeros(2)])
    assert [node.op for node in graph.graph.nodes].count("placeholder") == 1
    told = private.schema(torch.ops.aten.add_.Tensor)
    assert told.is_mutable
    assert [argument.name for argument in told.arguments] == ["self", "other", "alpha"]
    assert private.schema(len) is None
    for name in ("_to_copy", "_unsafe_view", "_foreach_mul.Scalar", "_foreach_add.List"):
        assert private.aten(name) is operator.attrgetter(name)(torch.ops.aten)
    assert private.aten("_no_such_operation") != private.aten("_no_such_operation")


def test_modules_and_tensors_keep_their_hooks_and_parts_where_they_did():
    module, weight = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    assert not private.forward_hooks(module)
    assert not private.tensor_hooks(weight)
    for register, name in zip(
        (
            module.register_forward_hook,
            module.register_forward_pre_hook,
            module.register_full_backward_hook,
            module.register_full_backward_pre_hook,
        ),
        private.HOOKS,
        strict=True,
    ):
        assert not getattr(module, name)
        register(lambda *given: None)
        assert getattr(module, name)
    weight.register_hook(lambda gradient: None)
    assert private.forward_hooks(module)
    assert private.tensor_hooks(weight)
    assert not private.global_hooks()
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    assert private.global_hooks()
    handle.remove()
    assert list(getattr(module, "_parameters")) == ["weight", "bias"]  # noqa: B009


def lists(dtype, count):
    torch.manual_seed(0)
    return [[torch.rand(size, dtype=dtype) + 0.5 for size in ((3,), (2, 5), (1,))] for _ in range(count)]


GIVEN = {
    "foreach_mul": (1, (0.3,), {}),
    "foreach_mul_": (1, (0.3,), {}),
    "foreach_add": (2, (), {"alpha": 0.7}),
    "foreach_add_": (2, (), {"alpha": 0.7}),
    "foreach_addcmul_": (3, (), {"value": 0.7}),
    "foreach_addcdiv_": (3, (), {"value": 0.7}),
    "foreach_div_": (1, (0.3,), {}),
    "foreach_sqrt": (1, (), {}),
    "foreach_lerp": (2, (0.3,), {}),
    "foreach_copy_": (2, (), {}),
    "foreach_norm": (1, (), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GIVEN)
def test_the_substitute_of_a_call_for_many_tensors_has_the_same_bits(name, dtype):
    count, numbers, named = GIVEN[name]
    results = []
    for function in (operator.attrgetter(USED[name].path)(torch), USED[name].instead):
        given = lists(dtype, count)
        made = function(*given, *numbers, **named)
        # What is done in place may return the tensors or nothing.
        results.append([*(() if name.endswith("_") else made), *(tensor for part in given for tensor in part)])
    assert len(results[0]) == len(results[1])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_number_can_be_added_to_many_tensors_and_a_tensor_multiply_them():
    for function in (torch._foreach_add_, USED["foreach_add_"].instead):
        (given,) = lists(torch.float32, 1)
        function(given, 0.25)
        assert torch.equal(given[0], lists(torch.float32, 1)[0][0] + 0.25)
    by = torch.scalar_tensor(0.3)
    for function in (torch._foreach_mul, USED["foreach_mul"].instead):
        (given,) = lists(torch.float32, 1)
        assert torch.equal(function(given, by)[0], given[0] * by)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), -float("inf")])
def test_the_substitute_finds_what_is_not_finite(value):
    for function in (operator.attrgetter(USED["non_finite_"].path)(torch), USED["non_finite_"].instead):
        given, found = [torch.ones(3), torch.tensor([1.0, value])], torch.zeros(1)
        function(given, found, torch.ones(1))
        assert bool(found) == (value != 0.5)
        assert torch.equal(given[0], torch.ones(3))


def test_the_substitute_of_the_engine_differentiates_to_the_same_bits():
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    unused, inputs = torch.ones(1, requires_grad=True), tuple(module.parameters())
    found = []
    for function in (operator.attrgetter(USED["run_backward"].path)(torch), USED["run_backward"].instead):
        y = module(x)
        roots, seeds = (y.sum(), y), (torch.ones(()), torch.full_like(y, 0.5))
        found.append(function(roots, seeds, False, False, (*inputs, unused), True, accumulate_grad=False))
    assert found[0][-1] is found[1][-1] is None
    assert all(torch.equal(a, b) for a, b in zip(found[0][:-1], found[1][:-1], strict=True))
    assert all(weight.grad is None for weight in inputs)


Pair = namedtuple("Pair", ["one", "other"])
TREES = [
    3,
    (1, [2, 3]),
    {"b": 1, "a": (2, {"c": 3})},
    Pair(1, [2]),
    OrderedDict(b=1, a=2),
    [],
    (None, 1),
    [[], {}],
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_the_substitutes_for_trees_take_them_apart_as_pytorch_does(tree):
    own = {name: USED[name].instead for name in USED if name.startswith("tree_")}
    theirs = {name: operator.attrgetter(USED[name].path)(torch) for name in own}
    leaves, spec = own["tree_flatten"](tree)
    their_leaves, their_spec = theirs["tree_flatten"](tree)
    assert leaves == their_leaves == own["tree_leaves"](tree)
    assert spec.num_leaves == their_spec.num_leaves
    assert own["tree_unflatten"](leaves, spec) == tree
    assert spec == own["tree_flatten"](copy.deepcopy(tree))[1]
    twice = [functions["tree_map"](lambda a, b: (a, b), tree, tree) for functions in (own, theirs)]
    assert twice[0] == twice[1]
    assert type(twice[0]) is type(twice[1])
    only = [functions["tree_map_only"](int, lambda leaf: leaf + 1, tree) for functions in (own, theirs)]
    assert only[0] == only[1]


def mlp():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def recurrent(cell):
    return hl.Network.recurrent(cell(2, 4).double(), nn.Linear(4, 3).double())


MSE, CROSS = nn.functional.mse_loss, nn.functional.cross_entropy
SGD = hl.Hyper.from_sgd(lr=0.1, momentum=0.5, weight_decay=0.01)
LITERAL = hl.Hyper(tau=0.1, beta=0.1, clock="continuous")
MADE = {
    "sgd": lambda: hl.Learner(hl.Network.feedforward(mlp()), MSE, SGD),
    "adam": lambda: hl.Learner(hl.Network.feedforward(mlp()), MSE, hl.Hyper.from_adamw(lr=0.01)),
    "echo of a tree": lambda: hl.Learner(recurrent(nn.LSTMCell), MSE, SGD, credit=hl.Echo(every=3)),
    "parallel": lambda: hl.Learner(
        recurrent(nn.GRUCell), MSE, LITERAL, order="parallel", credit=hl.Forward(), integrator=hl.RK4()
    ),
    "local": lambda: hl.local.LocalLearner(mlp(), CROSS, hl.Hyper.from_sgd(lr=0.1), align=True),
    "compiled": lambda: hl.Learner(recurrent(nn.GRUCell), MSE, SGD),
}
"""Learners that between them call every function of the list."""


def learned():
    """The losses and weights that each of them comes to."""
    found = {}
    for name, make in MADE.items():
        torch.manual_seed(0)
        learner = make()
        target = (lambda: torch.randint(3, (2,))) if name == "local" else lambda: torch.randn(2, 3).double()
        samples = [hl.Sample(torch.randn(2, 2).double(), target()) for _ in range(12)]
        more = {"engine": "compiled"} if name == "compiled" else {}
        losses = [float(report.loss) for report in learner.run(samples, **more)]
        module = learner.module if name == "local" else learner.network
        found[name] = losses + [x for weight in module.parameters() for x in weight.detach().flatten().tolist()]
    return found


WITHOUT = """
import json, sys, warnings
import hamlearn._base.torch_private as private
originals = {name: getattr(private, name) for name in private.USED}
for name, one in private.USED.items():
    setattr(private, name, one.instead)
private.decompositions = dict
from tests.trust.test_torch_private import learned
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(json.dumps(learned()))
bound = 0
for path, module in list(sys.modules.items()):
    for name, one in private.USED.items():
        if path.startswith("hamlearn.") and name in vars(module):
            assert vars(module)[name] is not originals[name], (path, name)
            bound += vars(module)[name] is one.instead
assert bound > 2 * len(private.USED)
"""


def test_learners_come_to_the_same_bits_without_any_private_function():
    path = os.pathsep.join([str(SOURCE.parent), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    without, with_them = json.loads(done.stdout), learned()
    # Without the table that takes operations apart a step runs eagerly, which rounds in another order.
    compiled = zip(without.pop("compiled"), with_them.pop("compiled"), strict=True)
    assert without == with_them
    assert max(abs(a - b) for a, b in compiled) <= 1e-12
