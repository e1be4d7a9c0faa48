"""In-Shop Clothes Retrieval of DeepFashion (Liu et al., 2016)."""

from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import MARKERS, encode_names, read_columns, require_root
from firstpage.errors import UserError

SPLITS = ("train", "query", "gallery")


def read_inshop(path: Path) -> Catalog:
    r"""Read In-Shop, with its train, query and gallery splits. A class is an item of clothing.

        Eval/list_eval_partition.txt  (a count, a header, then image_name item_id evaluation_status)
        Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg, also without Img/, or with Img/ for img/

    Args:
        path: The folder that contains Eval/, or its parent.

    Raises:
        FileNotFoundError: The dataset is missing.
        UserError: A row has too few fields or an unknown status.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "list_eval_partition.txt").write_text(
    ...         "2\nimage_name item_id evaluation_status\n"
    ...         "img/a/1.jpg id_1 query\nimg/a/2.jpg id_1 gallery\n"
    ...     )
    ...     catalog = read_inshop(Path(root))
    >>> catalog.classes, {name: rows.tolist() for name, rows in catalog.splits.items()}
    (['id_1'], {'train': [], 'query': [0], 'gallery': [1]})
    """
    root = require_root(path, "inshop")
    file = next(root / marker for marker in MARKERS["inshop"] if (root / marker).exists())
    names, items, statuses = read_columns(file, 3, header=2, spaces="first")
    for name, status in zip(names, statuses, strict=True):
        if status not in SPLITS:
            raise UserError(
                f"{file}: {name!r} has evaluation_status {status!r}; expected train, query or gallery"
            )
    labels, classes = encode_names(items)
    status_of = np.array(statuses)
    # The folder of the images depends on where img.zip was extracted.
    prefix = next((name for name in ("Img/img/", "img/", "Img/") if (root / name).is_dir()), "img/")
    return Catalog(
        "inshop",
        root,
        [f"{prefix}{name.removeprefix('img/')}" for name in names],
        labels,
        classes,
        {split: np.flatnonzero(status_of == split) for split in SPLITS},
    )
