"""Hotels-50K (Stylianou et al., 2019)."""

from itertools import islice
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import (
    MARKERS,
    encode_names,
    is_image,
    list_image_files,
    read_csv_rows,
    require_root,
)
from firstpage.errors import UserError


def read_hotels50k(path: Path) -> Catalog:
    r"""Read Hotels-50K. A class is a hotel, a group a hotel chain. The gallery is the train images.

        [input/][dataset/]train_set.csv  test_set.csv  (image_id, hotel_id, image_url, image_source, ...)
        [input/][dataset/]hotel_info.csv  (hotel_id, hotel_name, chain_id, ...)
        [input/][dataset/]chain_info.csv  (chain_id, chain_name)
        images/train/<chain>/<hotel>/<source>/<image>.jpg
        images/test/unoccluded/<chain>/<hotel>/<source>/<image>.jpg

    Images are found by their id, because versions of the publisher's script write them into one flat folder
    or into this tree, with the suffixes of their URLs. Without hotel_info.csv there are no groups.

    Args:
        path: The folder that contains images/ and the tables, or its parent.

    Raises:
        FileNotFoundError: The dataset or one of its two tables of images is missing.
        UserError: A row has too few fields.

    >>> import tempfile
    >>> header = "image_id,hotel_id,image_url,image_source,upload_timestamp"
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "train_set.csv").write_text(f"{header}\n7,12,http://x/7.jpg,expedia,")
    ...     _ = Path(root, "test_set.csv").write_text(f"{header}\n8,12,http://x/8.jpg,traffickcam,")
    ...     _ = Path(root, "hotel_info.csv").write_text("hotel_id,hotel_name,chain_id\n12,Sea View,3")
    ...     catalog = read_hotels50k(Path(root))
    >>> catalog.paths[1], {name: rows.tolist() for name, rows in catalog.splits.items()}
    ('images/test/unoccluded/3/12/traffickcam/8.jpg', {'train': [0], 'gallery': [0], 'query': [1]})
    """
    root = require_root(path, "hotels50k")
    tables = next(root / marker for marker in MARKERS["hotels50k"] if (root / marker).exists()).parent
    chain_of = _mapping(tables / "hotel_info.csv", 2)
    chain_names = _mapping(tables / "chain_info.csv", 1)
    paths: list[str] = []
    hotels: list[str] = []
    counts = []
    for name, folder in (("train_set.csv", "images/train"), ("test_set.csv", "images/test/unoccluded")):
        file = tables / name
        images = filter(is_image, list_image_files(root, folder) if (root / folder).is_dir() else [])
        file_of = {image.rpartition("/")[2].partition(".")[0]: image for image in images}
        for line, row in islice(read_csv_rows(file), 1, None):
            if len(row) < 4:
                raise UserError(
                    f"{file}:{line}: expected image_id, hotel_id, image_url, image_source, got {row}"
                )
            image, hotel, _, source = row[:4]
            expected = f"{folder}/{chain_of.get(hotel, '0')}/{hotel}/{source}/{image}.jpg"
            paths.append(file_of.get(image, expected))
            hotels.append(hotel)
        counts.append(len(paths))
    labels, classes = encode_names(hotels)
    groups, chains = encode_names(chain_of.get(hotel, "0") for hotel in hotels)
    train, query = np.split(np.arange(len(paths)), counts[:1])
    return Catalog(
        "hotels50k",
        root,
        paths,
        labels,
        classes,
        {"train": train, "gallery": train, "query": query},
        groups=groups if chain_of else None,
        group_names=[chain_names.get(chain, chain) for chain in chains] if chain_of else [],
    )


def _mapping(file: Path, column: int) -> dict[str, str]:
    """Return a mapping from the first column of a table to another one; empty if there is no table."""
    if not file.exists():
        return {}
    return {row[0]: row[column] for _, row in islice(read_csv_rows(file), 1, None) if len(row) > column}
