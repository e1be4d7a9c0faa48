"""The demo, on fewer images and one epoch."""

from PIL import Image

from firstpage import demo, recipes
from firstpage.data import read


def test_it_trains_and_leaves_a_picture_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    few = read("glyphs", folder=tmp_path / "glyphs", images=2)
    monkeypatch.setattr(demo, "read", lambda name: few)
    short = recipes.find("glyphs").changed(["schedule.epochs=1", "batch.images_per_class=2"])
    message = demo.run_demo(tmp_path / "run", recipe=short, progress=False)
    assert "Searching 568 images of scripts not in training (greek, coptic" in message
    assert "untrained" in message
    assert f"report: {tmp_path / 'run' / 'report.html'}" in message
    assert Image.open(tmp_path / "run" / "first-page.png").width > 500
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "568 queries of 284 classes of glyphs" in page
    assert len(page) < 5_000_000
