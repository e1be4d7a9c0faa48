"""The demonstration: train on the embedded glyphs, and show the first page before and after."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from firstpage import recipes
from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.data.store import PixelStore
from firstpage.figures import retrieved_lists
from firstpage.models.embedder import Embedder
from firstpage.recipes import Recipe
from firstpage.report import Subject, measure, write
from firstpage.training import fit

__all__ = ["demo"]


def demo(
    folder: str | os.PathLike[str] = "runs/demo", *, recipe: Recipe | None = None, progress: bool = True
) -> str:
    """Train with the top-k precision loss on Latin and Cyrillic, search in seven scripts never seen.

    Args:
        folder: the run folder; the picture is `first-page.png` in it, the report `report.html`.
        recipe: another recipe than `glyphs`.
        progress: show progress.

    Returns:
        The figures before and after, for a person.

    >>> demo.__name__
    'demo'
    """
    chosen = recipe or recipes.find("glyphs")
    catalog = read("glyphs")
    pixels = PixelStore.build(
        catalog,
        size=chosen.model.stored,
        resize=chosen.model.resize,
        progress=progress,
    )
    result = fit(chosen, catalog, folder, pixels=pixels, progress=progress)
    subject = Subject.open(folder, catalog, progress=False)
    torch.manual_seed(chosen.train.seed)  # as `fit` begins
    untrained = Embedder(chosen.model).embed(pixels, rows=subject.search.queries, progress=False)
    queries = np.random.default_rng(1).choice(len(untrained), 8, replace=False).tolist()
    sheets = [
        retrieved_lists(
            vectors,
            subject.labels.cpu(),
            lambda row: np.asarray(Image.open(catalog.path(int(subject.search.queries[row])))),
            queries,
        )
        for vectors in (untrained, subject.queries.cpu())
    ]
    path = Path(folder, "first-page.png")
    _side_by_side(sheets, ["untrained", "trained"]).save(path)
    page = write({subject.name: measure(subject)}, Path(folder, "report.html"))
    return (
        f"\nSearching {len(untrained):,} images of scripts not seen in training ({_scripts(catalog)}):\n\n"
        f"{result.text()}\nfirst pages of {len(queries)} queries in {path}\neverything else in {page}"
    )


def _scripts(catalog: Catalog) -> str:
    assert catalog.groups is not None
    tested = sorted({*catalog.groups[catalog.splits["test"]].tolist()})
    return ", ".join(catalog.group_names[group] for group in tested)


def _side_by_side(sheets: list[Image.Image], titles: list[str]) -> Image.Image:
    head, gap = 28, 24
    width = sum(sheet.width for sheet in sheets) + gap * (len(sheets) - 1)
    whole = Image.new("RGB", (width, head + max(sheet.height for sheet in sheets)), "white")
    pen = ImageDraw.Draw(whole)
    left = 0
    for sheet, title in zip(sheets, titles, strict=True):
        pen.text((left + 10, 8), title, fill="black", font_size=16)
        whole.paste(sheet, (left, head))
        left += sheet.width + gap
    return whole
