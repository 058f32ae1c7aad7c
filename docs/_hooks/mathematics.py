"""Turns blocks marked `math` into MathML while the site is built, so that a page needs no script to show them."""

from typing import Any

from latex2mathml.converter import convert


def formula(source: str, language: str, class_name: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """A block of LaTeX as MathML; lines of an `aligned` environment are rows of one formula."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def on_config(config: Any, **_: Any) -> Any:
    """Called by MkDocs once: blocks marked `math` are formulas."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "formula", "format": formula})
    return config
