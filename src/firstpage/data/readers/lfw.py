"""Labeled Faces in the Wild (Huang et al., 2007)."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog, VerificationPairs
from firstpage.data.readers.folder import read_class_folders
from firstpage.data.readers.layout import list_folders, read_lines, require_root
from firstpage.errors import UserError


def read_lfw(path: Path) -> Catalog:
    r"""Read LFW, all of it for testing, with the verification pairs of pairs.txt in 10 folds.

        pairs.txt  (folds and pairs; then name n1 n2 for a same pair, name1 n1 name2 n2 for a different one)
        [lfw/]Abel_Pacheco/Abel_Pacheco_0001.jpg

    Args:
        path: The folder that contains pairs.txt, or its parent.

    Raises:
        FileNotFoundError: pairs.txt, or the folders of the people that it names, are missing.
        UserError: A pair cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Path(root, "Ann").mkdir()
    ...     for image in (1, 2):
    ...         Path(root, "Ann", f"Ann_000{image}.jpg").touch()
    ...     _ = Path(root, "pairs.txt").write_text("1\t1\nAnn\t1\t2\nAnn\t1\tAnn\t2\n")
    ...     catalog = read_lfw(Path(root))
    >>> catalog.pairs.left.tolist(), catalog.pairs.right.tolist(), catalog.pairs.same.tolist()
    ([0, 0], [1, 1], [True, False])
    """
    folder = require_root(path, "lfw")
    file = folder / "pairs.txt"
    named = _read_pairs(file)
    person = named[0][1].split("/")[0]
    candidates = [folder, *(folder / name for name in list_folders(folder))]
    root = next((candidate for candidate in candidates if (candidate / person).is_dir()), None)
    if root is None:
        raise FileNotFoundError(
            f"{file}: names {person!r}, but neither {folder} nor a folder in it contains such a folder"
        )
    catalog = read_class_folders("lfw", root)
    row_of = {path.rpartition(".")[0]: row for row, path in enumerate(catalog.paths)}
    pairs = [(fold, row_of[a], row_of[b], same) for fold, a, b, same in named if a in row_of and b in row_of]
    folds, left, right, sames = np.array(pairs, np.int64).reshape(-1, 4).T
    notes = []
    if len(pairs) < len(named):
        notes.append(
            f"lfw: {len(named) - len(pairs):,} of {len(named):,} pairs name an image that does not exist"
        )
    return replace(
        catalog,
        splits={"test": np.arange(len(catalog))},
        pairs=VerificationPairs(folds, left, right, sames.astype(np.bool_)),
        warnings=catalog.warnings + notes,
    )


def _read_pairs(file: Path) -> list[tuple[int, str, str, bool]]:
    """Return the fold, the two images without suffix, and whether they show the same person, of each pair."""
    lines = [line.split() for line in read_lines(file) if line.strip()]
    try:
        folds, each = (int(count) for count in lines[0])
    except (ValueError, IndexError):
        raise UserError(f"{file}:1: expected the number of folds and of pairs, such as '10 300'") from None
    if len(lines) - 1 != folds * each * 2 or len(lines) == 1:
        raise UserError(
            f"{file}: announces {folds} folds of {each} + {each} pairs, but has {len(lines) - 1} pairs"
        )
    pairs = []
    for row, line in enumerate(lines[1:]):
        try:
            (left, first), (right, second) = (line[:2], [line[0], line[2]] if len(line) == 3 else line[2:])
            images = [f"{name}/{name}_{int(image):04d}" for name, image in ((left, first), (right, second))]
        except (ValueError, IndexError):
            raise UserError(
                f"{file}:{row + 2}: expected 'name n1 n2' or 'name1 n1 name2 n2', got {line}"
            ) from None
        pairs.append((row // (2 * each), images[0], images[1], len(line) == 3))
    return pairs
