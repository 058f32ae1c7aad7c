"""Private functions of PyTorch: in one file alone, and still what they were."""

import ast
import operator
from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn._base import torch_private as private
from hamlearn._base.torch_private import USED

SOURCE = Path(hl.__file__).parent
ALONE = SOURCE / "_base" / "torch_private.py"


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
        if path != ALONE and (names := sorted(set(uses(path))))
    }
    assert found == {}
    assert set(uses(ALONE))


def test_a_release_without_one_of_them_says_so_when_it_is_imported():
    with pytest.raises(ImportError, match=r"has no torch\._no_such, which hamlearn needs \(speed\): install one"):
        private._bound("no_such", "_no_such", "speed")
    USED.pop("no_such")


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
    assert private.tensor_hooks(weight)
    assert list(getattr(module, "_parameters")) == ["weight", "bias"]  # noqa: B009
