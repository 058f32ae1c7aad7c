"""Writes each tutorial as a Jupyter notebook as well, with what its blocks print and draw."""

import re
from pathlib import Path
from typing import Any

import nbformat.v4 as v4

FOLDER = "tutorials"
SPLIT = re.compile(r"^```python\n(.*?)^```$\n?|^<!---.*?--->$\n?", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r'savefig\("([\w.-]+)"\)')


def notebook(markdown: str, printed: dict[str, str], figures: Path) -> dict[str, Any]:
    """A page as a notebook: text, blocks of code with their outputs, and no block that a reader does not see.

    Args:
        markdown: The page.
        printed: What a block printed, by its first line.
        figures: Where the figures are that its blocks saved.
    """
    cells, end = [], 0
    for match in SPLIT.finditer(markdown):
        cells.append(_text(markdown[end : match.start()]))
        if match[1] is not None:
            line = str(markdown.count("\n", 0, match.start()) + 1)
            cells.append(_code(match[1], printed.get(line, ""), figures))
        end = match.end()
    cells.append(_text(markdown[end:]))
    for number, cell in enumerate(cells := [cell for cell in cells if cell["source"]]):
        cell["id"] = f"cell-{number}"  # the same at every build
    return v4.new_notebook(cells=cells)


def _text(part: str) -> dict[str, Any]:
    """Prose; figures stand below the code that draws them, so the page's own references to them go."""
    return v4.new_markdown_cell(re.sub(r"!\[[^\]]*\]\([\w.-]+\.svg\)\n?", "", part).strip())


def _code(code: str, printed: str, figures: Path) -> dict[str, Any]:
    outputs = [v4.new_output("stream", name="stdout", text=printed)] if printed else []
    for name in SAVED.findall(code):
        outputs.append(v4.new_output("display_data", data={"image/svg+xml": (figures / name).read_text()}))
    return v4.new_code_cell(code.strip(), outputs=outputs)
