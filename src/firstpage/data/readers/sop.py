"""Stanford Online Products (Song et al., 2016)."""

from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import encode_names, read_columns, require_root


def read_sop(path: Path) -> Catalog:
    r"""Read Stanford Online Products, with its split, and its 12 super-classes as groups.

        Stanford_Online_Products/Ebay_train.txt  Ebay_test.txt  (image_id class_id super_class_id path)
        Stanford_Online_Products/bicycle_final/111085122871_0.JPG

    Args:
        path: Stanford_Online_Products or its parent.

    Raises:
        FileNotFoundError: The dataset or one of its tables is missing.
        UserError: A row has too few fields.

    >>> import tempfile
    >>> header = "image_id class_id super_class_id path"
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "Ebay_train.txt").write_text(f"{header}\n1 1 1 bicycle_final/1.JPG")
    ...     _ = Path(root, "Ebay_test.txt").write_text(f"{header}\n2 9 2 sofa_final/1.JPG")
    ...     catalog = read_sop(Path(root))
    >>> catalog.paths, catalog.classes, catalog.group_names
    (['bicycle_final/1.JPG', 'sofa_final/1.JPG'], ['1', '9'], ['bicycle', 'sofa'])
    """
    root = require_root(path, "sop")
    train = read_columns(root / "Ebay_train.txt", 4, header=1)
    test = read_columns(root / "Ebay_test.txt", 4, header=1)
    _, class_ids, super_ids, paths = (first + second for first, second in zip(train, test, strict=True))
    labels, classes = encode_names(class_ids)
    groups, group_ids = encode_names(super_ids)
    folder_of = {super_id: path.split("/")[0] for super_id, path in zip(super_ids, paths, strict=True)}
    rows = np.arange(len(paths))
    return Catalog(
        "sop",
        root,
        list(paths),
        labels,
        classes,
        {"train": rows[: len(train[0])], "test": rows[len(train[0]) :]},
        groups=groups,
        group_names=[folder_of[super_id].removesuffix("_final") for super_id in group_ids],
    )
