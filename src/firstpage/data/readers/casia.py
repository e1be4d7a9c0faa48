"""CASIA-WebFace (Yi et al., 2014)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.folder import from_folders
from firstpage.data.readers.layout import SPLITS, folders_in, locate, split_name
from firstpage.errors import UserError


def casia(path: Path) -> Catalog:
    """Reads CASIA-WebFace: a folder an identity, all of it for training.

        CASIA-WebFace/0000045/001.jpg

    Args:
        path: CASIA-WebFace, its parent, or any folder of identities.

    Raises:
        FileNotFoundError: There are no images in folders.
        UserError: Its folders are splits, not identities.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Path(root, "0000045").mkdir()
        ...     Path(root, "0000045", "001.jpg").touch()
        ...     print(casia(Path(root)).summary())
        casia: 1 images, 1 classes
          train: 1 images, 1 classes
    """
    root = locate(path, "casia") or path
    names = folders_in(root)
    if names and all(split_name(name) in SPLITS for name in names):
        fault = f"holds {', '.join(names)}, not identities; give one of these, or kind='folder'"
        raise UserError(f"read({str(root)!r}, kind='casia'): {fault}")
    catalog = from_folders("casia", root)
    return replace(catalog, splits={"train": np.arange(len(catalog))})
