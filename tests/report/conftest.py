"""Two small runs on images of stripes."""

import json

import numpy as np
import pytest
import torch

from firstpage.data import read
from firstpage.report import charts, images
from firstpage.report.markup import tag
from firstpage.training import fit
from support.striped import STRANGE, small_recipe, write_stripes


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for each other on a busy machine
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def stripes(tmp_path_factory):
    """12 training classes and seven test classes, one of them with a single image."""
    root = tmp_path_factory.mktemp("data") / "stripes"
    random = np.random.default_rng(0)
    write_stripes(root / "train", [f"class {number}" for number in range(12)], 6, random, 0)
    write_stripes(root / "test", STRANGE, 6, random, 12)
    write_stripes(root / "test", ["alone"], 1, random, 18)
    return root


@pytest.fixture(scope="session")
def runs(stripes, tmp_path_factory):
    """The folders of two runs and a cache of pixels; the first logged its health and a NaN."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in (("one", []), ("two", ["loss.name=topk", "train.protocol=fair", "train.folds=3"])):
        fit(small_recipe(*changes), read(stripes), folder / name, cache=folder / "cache", progress=False)
    with (folder / "one" / "log.jsonl").open("a") as file:
        for step in range(4):
            line = {"step": step, "spread": 0.5 - 0.1 * step, "odd_thing": step, "beta_histogram": [1, 2]}
            file.write(json.dumps(line) + "\n")
        file.write(
            '{"step": 4, "odd_thing": NaN}\n{"step": 4, "warning": "step 4: <b>collapsed</b>"}\n{"step": 5, '
        )
    return folder


@pytest.fixture
def _undrawn(monkeypatch):
    """Pages have the captions of their charts, and a map by PCA: for tests of what else is on a page."""
    monkeypatch.setattr(charts, "render_chart", lambda figure, title, caption: tag("figcaption", caption))
    monkeypatch.setattr(images, "find_spec", lambda name: None)
