"""Tutorials as notebooks: valid, with the code of the page, what it printed and what it drew."""

import nbformat

from tests.docs.pages import DOCS, hook

PAGE = """# A page

Text.

```python
print(1 + 1)
figure.savefig("line.svg")
```

![A line](line.svg)

<!--- invisible-code-block: python
assert True
--->

More.
"""


def test_a_page_becomes_a_notebook_with_outputs_and_without_hidden_blocks(tmp_path):
    (tmp_path / "line.svg").write_text("<svg/>")
    made = hook("notebooks").notebook(PAGE, {"5": "2\n"}, tmp_path)
    nbformat.validate(made)
    assert [(cell.cell_type, cell.source) for cell in made.cells] == [
        ("markdown", "# A page\n\nText."),
        ("code", 'print(1 + 1)\nfigure.savefig("line.svg")'),
        ("markdown", "More."),
    ]
    stream, drawn = made.cells[1].outputs
    assert stream.text == "2\n"
    assert drawn.data["image/svg+xml"] == "<svg/>"


def test_every_tutorial_has_code_for_a_notebook():
    pages = sorted((DOCS / "tutorials").glob("[0-9]-*.md"))
    assert len(pages) >= 8
    for page in pages:
        cells = hook("notebooks").notebook(page.read_text().replace("savefig", "savefig "), {}, DOCS).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        compile(code, str(page), "exec")
