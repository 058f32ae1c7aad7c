"""Private functions of PyTorch: in one file alone, and still what they were."""

import ast
from pathlib import Path

import pytest

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
