"""The calibration of a run or saved model on classes held out of its training."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.evaluation.calibration import FILE, Calibration, fit_calibration
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.runs.opening import OpenRun, open_run


def calibrate_model(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | Catalog | None = None,
    *,
    classes: str | None = None,
    prior: float | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Calibration:
    """Fit what a cosine of a model means, on its test images, and store it beside the model.

    Images of classes that the run was trained on are left out: their cosines are larger than those of the
    classes that a search will meet.

    Args:
        folder: A run folder, whose best model is calibrated, or the folder of a saved model.
        data: A dataset. Defaults to the run's own; see `open_run`.
        classes: What makes a class in folders of images; see `firstpage.data.read`.
        prior: Share of comparisons of the same class where it is used; see `Calibration`.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Show progress bars.

    Raises:
        UserError: All test classes were trained on, or there are too few images to compare.

    >>> calibrate_model("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    run = open_run(folder, data, classes=classes, device=device, cache=cache, progress=progress)
    source = Path(folder)
    place = source / "best" if (source / "best").is_dir() else source
    durable.check(place / FILE)
    labels, test = run.catalog.labels, run.test
    known = _known_classes(run)
    queries, left_out = _held_out(test.queries, labels, known)
    gallery = None if test.gallery is None else _held_out(test.gallery, labels, known)[0]
    if len(np.unique(labels[queries])) < 2:
        raise UserError(
            f"{folder}: of {len(np.unique(labels[test.queries])):,} test classes, {left_out:,} were trained "
            "on: name a dataset of at least two other classes with --data"
        )
    images = f"{len(queries):,} images of {len(np.unique(labels[queries])):,} classes of {run.catalog.name}"
    note = f"; {left_out:,} test classes of the training are left out" if left_out else ""
    searched = "" if gallery is None else f", searching {len(gallery):,}"
    calibration = fit_calibration(
        run.embed(queries),
        labels[queries],
        None if gallery is None else run.embed(gallery),
        None if gallery is None else labels[gallery],
        prior=prior,
        model=model_fingerprint(run.model),
        about=f"fitted on {images} that were not trained on{searched}{note}",
    )
    calibration.save(place)
    return calibration


def _known_classes(run: OpenRun) -> NDArray[np.int64]:
    """Return the classes that the model was trained on, as far as that is known."""
    train = run.splits.get("train") if run.record is not None else None
    return np.zeros(0, np.int64) if train is None else np.unique(run.catalog.labels[train])


def _held_out(
    rows: NDArray[np.int64], labels: NDArray[np.int64], known: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Return the rows of classes that are not known, and the number of classes that are."""
    trained = np.isin(labels[rows], known)
    return rows[~trained], len(np.unique(labels[rows[trained]]))
