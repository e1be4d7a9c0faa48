"""Cars-196 (Krause et al., 2013)."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.folder import read_class_folders
from firstpage.data.readers.layout import list_folders, open_table, require_root, split_first_classes
from firstpage.errors import UserError

TRAIN_CLASSES = 98
MAX_BYTES = 2**28  # of an annotation file; the published ones have less than a megabyte
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
    *tables, names = _load([*((file, "annotations") for file in files.values()), (meta, "class_names")])
    paths: list[str] = []
    labels, boxes = [], []
    for (folder, file), rows in zip(files.items(), tables, strict=True):
        fields = list(rows) if isinstance(rows, dict) else []
        name = "relative_im_path" if "relative_im_path" in fields else "fname"
        for needed in (name, "class", *CORNERS):
            if needed not in fields:
                raise UserError(f"{file}: annotations have no field {needed!r}, only {', '.join(fields)}")
        paths += [f"{folder}{image}" for image in rows[name]]
        try:
            labels.append(np.array(rows["class"], np.int64).reshape(-1) - 1)
            boxes.append(np.array([rows[corner] for corner in CORNERS], np.float32).T.reshape(-1, 4))
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"{file}: a class or a box is not a number ({error})") from None
        boxes[-1][:, :2] -= 1  # MATLAB counts from 1, and the box includes its last pixel
    classes = list(map(str, names))
    return Catalog("cars", root, paths, np.concatenate(labels), classes, {}, boxes=np.concatenate(boxes))


# Damaged files make loadmat raise anything, take all memory, or crash: it has a process of its own.
_LOAD = """
import json, sys
import numpy as np
from scipy.io import loadmat
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
except ImportError:
    pass
values = []
for path, name in json.loads(sys.argv[1]):
    print(json.dumps([path, name]), file=sys.stderr)
    try:
        value = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[name])[name])
        fields = value.dtype.names
        values.append({field: value[field].tolist() for field in fields} if fields else list(map(str, value)))
        json.dumps(values[-1])
    except Exception as error:
        sys.exit(json.dumps(f"{type(error).__name__}: {error}"))
json.dump(values, sys.stdout)
"""


def _load(variables: list[tuple[Path, str]]) -> list[Any]:
    """Return variables of MATLAB files: the columns of a table by name, or a list of texts."""
    for file, _ in variables:
        open_table(file, MAX_BYTES).close()
    wanted = json.dumps([(str(file.resolve()), variable) for file, variable in variables])
    try:
        command = [sys.executable, "-P", "-c", _LOAD, wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise UserError(f"{variables[0][0]}: takes more than ten minutes to read: it is damaged") from None
    if done.returncode == 0:
        return list(json.loads(done.stdout))
    progress = done.stderr.splitlines()  # a line for each variable, then the reason, unless it crashed
    reason = progress.pop() if done.returncode == 1 and progress else '"its reader crashed"'
    file, variable = variables[max(len([line for line in progress if line.startswith("[")]), 1) - 1]
    raise UserError(f"{file}: cannot read {variable!r} ({reason[1:-1]})")
