"""The demo, on fewer scripts and images, and one epoch."""

import importlib

import pytest
from PIL import Image

from firstpage import cli, demo, recipes
from firstpage.data import read
from firstpage.search import Index

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
    folder = tmp_path / "run" / "index"
    assert message.endswith(f"index of 90 images: search it in a browser with\n  firstpage serve {folder}")
    index = Index.open(folder)
    assert index.verify() == []
    assert index.search(ids=[0], k=1)[0][0].probability is not None
    assert {name.split()[0] for name in index.columns["label"]} == {"greek", "coptic"}
    kept = demo._make_index(tmp_path / "run", index.model, few)  # as it is, when the demo is run again
    assert kept.manifest == index.manifest


def test_serving_it_is_a_command_of_its_own(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(demo, "run_demo", lambda out: "done")
    real = cli.app
    monkeypatch.setattr(cli, "app", lambda *arguments, **options: asked.append(arguments))
    with pytest.raises(SystemExit):
        real(["demo", "--out", str(tmp_path), "--serve"])
    assert asked == [(["serve", str(tmp_path / "index")],)]
