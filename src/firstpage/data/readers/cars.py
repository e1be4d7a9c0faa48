"""Cars-196 (Krause et al., 2013)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstpage.data.catalog import Catalog
from firstpage.data.readers.folder import read_class_folders
from firstpage.data.readers.layout import list_folders, require_root, split_first_classes
from firstpage.errors import UserError

TRAIN_CLASSES = 98
CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def read_cars(path: Path) -> Catalog:
    """Read Cars-196 in any of its three layouts. The first 98 classes are for training.

    Only the layouts with annotations have boxes. The publisher's train and test files are both read: that
    split is within classes, whereas a retrieval split is between classes.

        cars_annos.mat  car_ims/000001.jpg
        devkit/cars_train_annos.mat  devkit/cars_meta.mat  [devkit/]cars_test_annos_withlabels.mat
            cars_train/00001.jpg  cars_test/00001.jpg
        [train/ | test/]AM General Hummer SUV 2000/....jpg

    Args:
        path: The folder that contains these, or its parent.

    Raises:
        FileNotFoundError: The dataset or one of its annotation files is missing.
        UserError: An annotation cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for split in ("train", "test"):
    ...         Path(root, split, "AM General Hummer SUV 2000").mkdir(parents=True)
    ...         Path(root, split, "AM General Hummer SUV 2000", "1.jpg").touch()
    ...     catalog = read_cars(Path(root))
    >>> catalog.classes, len(catalog.splits["train"])
    (['AM General Hummer SUV 2000'], 2)
    """
    root = require_root(path, "cars")
    if (root / "cars_annos.mat").exists():
        catalog = _read_annotations(root, {"": root / "cars_annos.mat"}, root / "cars_annos.mat")
    elif (root / "devkit").exists():
        labeled = "cars_test_annos_withlabels.mat"
        test = root / labeled if (root / labeled).exists() else root / "devkit" / labeled
        files = {"cars_train/": root / "devkit/cars_train_annos.mat", "cars_test/": test}
        catalog = _read_annotations(root, files, root / "devkit/cars_meta.mat")
    else:
        parts = [part for part in ("train", "test") if part in list_folders(root)]
        catalog = read_class_folders("cars", root, parts or [""])
    return replace(catalog, splits=split_first_classes(catalog.labels, TRAIN_CLASSES))


def _read_annotations(root: Path, files: dict[str, Path], meta: Path) -> Catalog:
    """Return the catalog of annotation files, given by the folder that their file names are relative to."""
    paths: list[str] = []
    labels, boxes = [], []
    for folder, file in files.items():
        rows = _load(file, "annotations")
        fields = rows.dtype.names or ()
        name = "relative_im_path" if "relative_im_path" in fields else "fname"
        for needed in (name, "class", *CORNERS):
            if needed not in fields:
                raise UserError(f"{file}: annotations have no field {needed!r}, only {', '.join(fields)}")
        paths += [f"{folder}{image}" for image in rows[name]]
        labels.append(rows["class"].astype(np.int64) - 1)
        corners = [rows[corner].astype(np.float32) for corner in CORNERS]
        boxes.append(np.stack(corners, axis=1))
        boxes[-1][:, :2] -= 1  # MATLAB counts from 1, and the box includes its last pixel
    classes = [str(name) for name in _load(meta, "class_names")]
    return Catalog("cars", root, paths, np.concatenate(labels), classes, {}, boxes=np.concatenate(boxes))


def _load(file: Path, variable: str) -> NDArray[Any]:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; the dataset is incomplete")
    try:
        return np.atleast_1d(loadmat(file, squeeze_me=True, variable_names=[variable])[variable])
    except Exception as error:  # loadmat raises anything
        raise UserError(f"{file}: cannot read {variable!r} ({type(error).__name__}: {error})") from None
