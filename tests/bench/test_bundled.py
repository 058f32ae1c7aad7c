"""River's bundled data beside the paper's experiments, on one page."""

from benchmarks import bundled


def test_a_section_is_added_to_the_page_once(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("<main>the paper's cells</main>", "utf-8")
    for text in ("first", "second"):
        bundled._onto(path, f"{bundled.BEGIN}<p>{text}</p>{bundled.END}")
    assert path.read_text("utf-8") == (f"<main>the paper's cells{bundled.BEGIN}<p>second</p>{bundled.END}</main>")
