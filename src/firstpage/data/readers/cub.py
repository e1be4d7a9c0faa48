"""CUB-200-2011, birds (Wah et al., 2011)."""

from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import read_columns, require_root, split_first_classes
from firstpage.errors import UserError


def read_cub(path: Path) -> Catalog:
    """Read CUB-200-2011. The first 100 classes are for training, the others for testing.

        CUB_200_2011/images.txt  image_class_labels.txt  classes.txt  bounding_boxes.txt
        CUB_200_2011/images/001.Black_footed_Albatross/....jpg

    Args:
        path: CUB_200_2011 or its parent.

    Raises:
        FileNotFoundError: The dataset or one of its tables is missing.
        UserError: The tables contradict each other.

    >>> import tempfile
    >>> tables = {
    ...     "images.txt": "1 001.Auk/a.jpg", "image_class_labels.txt": "1 1", "classes.txt": "1 001.Auk",
    ...     "bounding_boxes.txt": "1 60.0 27.0 325.0 304.0",
    ... }
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name, text in tables.items():
    ...         _ = Path(root, name).write_text(text)
    ...     catalog = read_cub(Path(root))
    >>> catalog.paths, catalog.boxes.tolist()
    (['images/001.Auk/a.jpg'], [[60.0, 27.0, 385.0, 331.0]])
    """
    root = require_root(path, "cub")
    images, names = read_columns(root / "images.txt", 2)
    class_of = dict(zip(*read_columns(root / "image_class_labels.txt", 2), strict=True))
    class_ids, classes = read_columns(root / "classes.txt", 2)
    box_of = {image: box for image, *box in zip(*read_columns(root / "bounding_boxes.txt", 5), strict=True)}
    label_of = {class_id: label for label, class_id in enumerate(class_ids)}
    try:
        labels = np.array([label_of[class_of[image]] for image in images])
        boxes = np.array([box_of[image] for image in images], np.float32)  # x, y, width, height
    except KeyError as missing:
        raise UserError(f"{root}: image or class {missing} is in one table but not in another") from None
    except ValueError as error:
        raise UserError(f"{root / 'bounding_boxes.txt'}: {error}") from None
    boxes[:, 2:] += boxes[:, :2]
    return Catalog(
        "cub",
        root,
        [f"images/{name}" for name in names],
        labels,
        list(classes),
        split_first_classes(labels, 100),
        boxes=boxes,
    )
