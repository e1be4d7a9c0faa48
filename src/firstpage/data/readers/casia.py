"""CASIA-WebFace (Yi et al., 2014)."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.folder import read_class_folders
from firstpage.data.readers.layout import SPLITS, find_root, list_folders, normalize_split
from firstpage.errors import UserError


def read_casia(path: Path) -> Catalog:
    """Read CASIA-WebFace, with one folder per identity, all of it for training.

        CASIA-WebFace/0000045/001.jpg

    Args:
        path: CASIA-WebFace, its parent, or any folder of identities.

    Raises:
        FileNotFoundError: There are no images in class folders.
        UserError: The folders are splits, not identities.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Path(root, "0000045").mkdir()
    ...     Path(root, "0000045", "001.jpg").touch()
    ...     print(read_casia(Path(root)).summary())
    casia: 1 images, 1 classes
      train: 1 images, 1 classes
    """
    root = find_root(path, "casia") or path
    names = list_folders(root)
    if names and all(normalize_split(name) in SPLITS for name in names):
        raise UserError(
            f"read({str(root)!r}, kind='casia'): contains {', '.join(names)}, not identities; "
            "give one of these, or kind='folder'"
        )
    catalog = read_class_folders("casia", root)
    return replace(catalog, splits={"train": np.arange(len(catalog))})
