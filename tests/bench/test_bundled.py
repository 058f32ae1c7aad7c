"""River's bundled data beside the paper's experiments, on one page."""

from benchmarks import bundled


def test_a_section_is_added_to_the_page_once(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("<body>the paper's cells</body>", "utf-8")
    for text in ("first", "second"):
        bundled.onto(path, text)
    section = f"{bundled.BEGIN}second{bundled.END}"
    assert path.read_text("utf-8") == f"<body>the paper's cells{section}</body>"
