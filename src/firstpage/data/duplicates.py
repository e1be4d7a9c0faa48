"""Duplicates: the same picture again, as it is, recompressed or resized, without comparing all pairs."""

from collections.abc import Iterator

import numpy as np

TABLES, WINDOW = 16, 8  # orders in which hashes are sorted, and neighbours looked at in each
MOST_BITS = 12  # of 63 that may differ; recompression to quality 20 or a third of the size changes at most 7
BLOCK = 2**14  # thumbnails at a time, to bound the memory
FLAT = 2.0  # standard deviation, in grey levels, below which a thumbnail shows nothing to compare

BITS_IN_WORD = np.array([word.bit_count() for word in range(2**16)], np.uint8)


def near_pairs(thumbnails: np.ndarray, near: float = 0.98) -> np.ndarray:
    """Pairs of rows that show the same picture.

    A perceptual hash (which low frequencies of the cosine transform are positive) proposes pairs: hashes are
    sorted several times, each time with their bits in another order, and neighbours compared; O(N log N). A
    pair counts if the correlation of its thumbnails reaches `near`. On CUB-200-2011, copies recompressed to
    quality 20 or reduced to a third keep 0.98, and different photographs stay below 0.96. An image of one
    flat colour has no near duplicates.

    Args:
        thumbnails: uint8 [N, H, W], grey, both sides at least 8 (16 is what the figures above are for).
        near: correlation from which a pair counts.

    Returns:
        int64 [P, 2], the smaller row first, sorted.

    >>> pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16), dtype=np.uint8)
    >>> pictures[2] = pictures[0] // 2 + 20
    >>> near_pairs(pictures).tolist()
    [[0, 2]]
    """
    (rows,) = np.nonzero(np.concatenate([block.std(axis=(1, 2)) >= FLAT for block in _blocks(thumbnails)]))
    bits = np.concatenate([_hashes(block) for block in _blocks(thumbnails[rows])])
    words = _packed(bits)
    random = np.random.default_rng(0)
    found = [np.zeros((0, 2), np.int64)]
    for _ in range(TABLES):
        order = np.argsort(_packed(bits[:, random.permutation(bits.shape[1])]), kind="stable")
        for step in range(1, WINDOW + 1):
            pairs = np.stack([order[:-step], order[step:]], axis=1)
            differing = BITS_IN_WORD[(words[pairs[:, 0]] ^ words[pairs[:, 1]]).view(np.uint16).reshape(-1, 4)]
            found.append(np.sort(pairs[differing.sum(axis=1) <= MOST_BITS], axis=1))
    pairs = rows[np.unique(np.concatenate(found), axis=0)]
    alike = [_correlation(thumbnails, block) >= near for block in _blocks(pairs)]
    return pairs[np.concatenate(alike)]


def groups(pairs: np.ndarray, count: int) -> list[list[int]]:
    """Rows that pairs connect, each group in order, single rows left out.

    >>> groups(np.array([[0, 3], [3, 4]]), count=6)
    [[0, 3, 4]]
    """
    first = list(range(count))  # a row leads, step by step, to the first row of its group

    def find(row: int) -> int:
        while first[row] != row:
            first[row] = row = first[first[row]]
        return row

    for left, right in pairs.tolist():
        low, high = sorted((find(left), find(right)))
        first[high] = low
    members: dict[int, list[int]] = {}
    for row in np.unique(pairs).tolist():
        members.setdefault(find(row), []).append(row)
    return list(members.values())


def equal_pairs(keys: np.ndarray) -> np.ndarray:
    """Pairs of rows whose keys are equal, as few as connect them; empty keys equal nothing.

    >>> equal_pairs(np.array(["a", "b", "a", "", ""])).tolist()
    [[0, 2]]
    """
    order = np.argsort(keys, kind="stable")
    same = (keys[order][1:] == keys[order][:-1]) & (keys[order][1:] != "")
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, max(1, len(array)), BLOCK):  # at least one, if empty, so that shapes are kept
        yield array[first : first + BLOCK]


def _hashes(thumbnails: np.ndarray) -> np.ndarray:
    """Which of the 63 lowest frequencies are clearly positive: those near zero would flip with the noise."""
    pictures = thumbnails.astype(np.float32)
    down, across = (_cosines(side) for side in pictures.shape[1:])
    frequencies = (down @ pictures @ across.T).reshape(-1, 64)[:, 1:]
    bits: np.ndarray = frequencies > 0.3 * pictures.std(axis=(1, 2))[:, None]
    return bits


def _cosines(side: int) -> np.ndarray:
    """The eight lowest vectors of the orthonormal cosine transform, [8, side]."""
    waves: np.ndarray = np.cos(np.pi * np.outer(np.arange(8), np.arange(side) + 0.5) / side) * np.sqrt(
        2 / side
    )
    waves[0] /= np.sqrt(2)
    return waves.astype(np.float32)


def _packed(bits: np.ndarray) -> np.ndarray:
    padded = np.zeros((len(bits), 64), bool)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1).view(">u8")[:, 0].astype(np.uint64)


def _correlation(thumbnails: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    left, right = (thumbnails[rows].astype(np.float32) for rows in pairs.T)
    left -= left.mean(axis=(1, 2), keepdims=True)
    right -= right.mean(axis=(1, 2), keepdims=True)
    together, alone = (
        (left * right).sum(axis=(1, 2)),
        (left**2).sum(axis=(1, 2)) * (right**2).sum(axis=(1, 2)),
    )
    correlation: np.ndarray = together / np.sqrt(alone)
    return correlation
