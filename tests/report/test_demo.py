"""The demo, on fewer scripts and images, and one epoch."""

import importlib

from PIL import Image

from firstpage import demo, recipes
from firstpage.data import read

glyphs = importlib.import_module("firstpage.data.glyphs")


def test_it_trains_and_leaves_a_picture_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "_TRAIN", {"latin": glyphs._TRAIN["latin"]})
    monkeypatch.setattr(glyphs, "_TEST", {name: glyphs._TEST[name] for name in ("greek", "coptic")})
    few = read("glyphs", folder=tmp_path / "glyphs", images=2)
    monkeypatch.setattr(demo, "read", lambda name: few)
    short = recipes.find("glyphs").changed(["schedule.epochs=1", "batch.images_per_class=2"])
    message = demo.run_demo(tmp_path / "run", recipe=short, progress=False)
    assert "Searching 90 images of scripts not in training (greek, coptic):" in message
    assert "untrained" in message
    assert f"report: {tmp_path / 'run' / 'report.html'}" in message
    assert Image.open(tmp_path / "run" / "first-page.png").width > 500
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "90 queries of 45 classes of glyphs" in page
    assert len(page) < 5_000_000
