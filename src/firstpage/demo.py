"""The demo: train on the embedded glyphs, and show first results before and after."""

import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from firstpage import recipes
from firstpage.data import Catalog, read
from firstpage.figures import draw_retrieved_lists
from firstpage.figures.style import save
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.recipes import Recipe
from firstpage.report import embed_test, evaluate_test, write_page
from firstpage.runs import open_run
from firstpage.runs.calibrating import calibrate_model
from firstpage.search import Index
from firstpage.search.index_folder import MANIFEST, read_manifest
from firstpage.training import fit


def run_demo(
    folder: str | os.PathLike[str] = "runs/demo", *, recipe: Recipe | None = None, progress: bool = True
) -> str:
    """Train with the top-k precision loss on Latin and Cyrillic, and search seven scripts not in training.

    Args:
        folder: The run folder, which also gets `first-page.png`, `report.html` and `index/`.
        recipe: The recipe. Defaults to `glyphs`.
        progress: Whether to show progress.

    Returns:
        A message with the metrics before and after training.

    >>> run_demo.__name__
    'run_demo'
    """
    chosen = recipe or recipes.find("glyphs")
    catalog = read("glyphs")
    result = fit(chosen, catalog, folder, progress=progress)
    run = open_run(folder, catalog, progress=False)
    test = embed_test(run)
    torch.manual_seed(chosen.train.seed)  # the weights that `fit` started from
    untrained = Embedder(chosen.model).embed(run.pixels, rows=test.rows.queries, progress=False)
    queries = np.random.default_rng(1).choice(len(untrained), 8, replace=False).tolist()
    paths = [catalog.path(int(row)) for row in test.rows.queries]
    sheets = [
        draw_retrieved_lists(
            vectors, test.labels.cpu(), lambda query: np.asarray(Image.open(paths[query])), queries
        )
        for vectors in (untrained, test.queries.cpu())
    ]
    path = save(_side_by_side(sheets, ["untrained", "trained"]), Path(folder, "first-page.png"))
    page = write_page({test.name: evaluate_test(test)}, Path(folder, "report.html"))
    assert catalog.groups is not None
    groups = sorted({*catalog.groups[catalog.splits["test"]].tolist()})
    scripts = ", ".join(catalog.group_names[group] for group in groups)
    index = _make_index(Path(folder), run.model, catalog.take(test.rows.queries))
    return (
        f"\nSearching {len(untrained):,} images of scripts not in training ({scripts}):\n\n"
        f"{result.text()}\nfirst results of {len(queries)} queries: {path}\nreport: {page}\n"
        f"index of {len(index):,} images: search it in a browser with\n"
        f"  firstpage serve {shlex.quote(str(index.folder))}"
    )


def _make_index(folder: Path, model: Embedder, catalog: Catalog) -> Index:
    """Calibrate the model, and make an index of images that it was not trained on, unless there is one."""
    place = folder / "index"
    if (place / MANIFEST).exists() and read_manifest(place).model == model_fingerprint(model):
        return Index.open(place)
    shutil.rmtree(place, ignore_errors=True)
    calibration = calibrate_model(folder, read("glyphs"), progress=False)
    return Index.build(place, model, catalog, calibration=calibration, progress=False)


def _side_by_side(sheets: list[Image.Image], titles: list[str]) -> Image.Image:
    header, gap = 28, 24
    width = sum(sheet.width for sheet in sheets) + gap * (len(sheets) - 1)
    combined = Image.new("RGB", (width, header + max(sheet.height for sheet in sheets)), "white")
    canvas = ImageDraw.Draw(combined)
    left = 0
    for sheet, title in zip(sheets, titles, strict=True):
        canvas.text((left + 10, 8), title, fill="black", font_size=16)
        combined.paste(sheet, (left, header))
        left += sheet.width + gap
    return combined
