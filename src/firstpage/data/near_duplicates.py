"""Likeness: which images show the same thing, although no byte of their files agrees.

Two images are alike if their 64-bit hashes (which low frequencies of the brightness are strong) differ in few
bits, and their thumbnails of 8 × 8 colors by little of their contrast. The hash finds candidates without
comparing all with all; the thumbnail tells a red shirt from the blue one of the same cut, and a gull in an
even sky from a kingfisher in another, whose hashes may agree.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_DISTANCE = (
    7  # bits in which hashes may differ: strong compression changes up to 6, another photograph some 32
)
MAX_DIFFERENCE = (
    0.3  # of their own contrast by which thumbnails may differ, whatever their overall brightness
)
MIN_CONTRAST = 2.0  # levels: brightness that varies less, as a standard deviation, has nothing to recognize

_SIDE = 32  # of the image that is transformed
_NOISE = 16  # what rounding to whole levels does to a frequency; more than that counts as strong
_CHUNK = 2**20  # candidate pairs looked at together

_frequency = np.arange(_SIDE)
_COSINES = np.cos(np.pi / _SIDE * _frequency[:, None] * (_frequency + 0.5))
# The 64 lowest frequencies but the mean, which is the brightness of the whole.
_LOWEST = np.argsort((_frequency[:, None] + _frequency).ravel(), kind="stable")[1:65]
_ONES = np.array([value.bit_count() for value in range(2**16)], np.uint8)


def sketch(image: Image.Image) -> tuple[int, bytes] | None:
    """The hash and the thumbnail of an RGB image; None if it is flat.

    A flat image has no structure: its hash would be rounding errors, and every blank page the near duplicate
    of every other. Such images are compared byte by byte only.

    Args:
        image: What `decode` gives; 64 pixels a side are enough.

    Example:
        >>> image = Image.linear_gradient("L").convert("RGB")
        >>> code, thumbnail = sketch(image)
        >>> (code ^ sketch(image.resize((90, 70)))[0]).bit_count() <= MAX_DISTANCE, len(thumbnail)
        (True, 192)
        >>> sketch(Image.new("RGB", (64, 64), "red"))
    """
    small = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    gray = np.asarray(small.convert("L"), np.float64)
    if gray.std() < MIN_CONTRAST:
        return None
    lowest = (_COSINES @ gray @ _COSINES.T).ravel()[_LOWEST]
    code = np.packbits(lowest > np.median(lowest) + _NOISE).tobytes()
    side = _SIDE // 8
    thumbnail = np.asarray(small).reshape(8, side, 8, side, 3).mean((1, 3))
    return int.from_bytes(code, "big"), thumbnail.round().astype(np.uint8).tobytes()


def near_pairs(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """All pairs of hashes that differ in at most `MAX_DISTANCE` = 7 bits.

    Of seven bits at most one falls into some of the four 16-bit quarters: so each quarter is looked up as it
    is and with each of its bits turned, among all others. For N hashes this takes about 34 · N² / 2¹⁶ steps
    and the memory of the pairs found.

    Args:
        hashes: [N] uint64.

    Returns:
        [P, 2] int64, positions, the smaller first; sorted.

    Example:
        >>> near_pairs(np.array([0, 2**40 - 1, 0b1111111, 0b11111111], np.uint64)).tolist()
        [[0, 2], [2, 3]]
    """
    quarters = hashes[:, None].view(np.uint16)
    found = [np.empty(0, np.int64)]
    for quarter in quarters.T:
        order = np.argsort(quarter, kind="stable")
        starts = np.concatenate([[0], np.bincount(quarter, minlength=2**16).cumsum()])
        for turned in (0, *(1 << bit for bit in range(16))):
            wanted = quarter ^ np.uint16(turned)
            first, counts = starts[wanted], np.diff(starts)[wanted]
            ends = counts.cumsum()
            cuts = np.searchsorted(ends, np.arange(_CHUNK, ends[-1] if ends.size else 0, _CHUNK))
            for rows in np.split(np.arange(len(hashes)), cuts):
                left = np.repeat(rows, counts[rows])
                step = np.arange(left.size) - np.repeat(counts[rows].cumsum() - counts[rows], counts[rows])
                right = order[first[left] + step]
                left, right = left[left < right], right[left < right]
                near = _ONES[quarters[left] ^ quarters[right]].sum(1) <= MAX_DISTANCE
                found.append(left[near] * len(hashes) + right[near])
    pairs = np.unique(np.concatenate(found))
    return np.stack([pairs // max(len(hashes), 1), pairs % max(len(hashes), 1)], 1)


def link_near_duplicates(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pairs of images that are alike: enough of them that each image is linked to all it is alike to.

    Images of the same hash are compared with the first of them, which then stands for those alike to it: ten
    thousand copies of a "no picture" picture are as many links, not fifty million.

    Args:
        hashes: [N] uint64.
        thumbnails: [N, 192] uint8.

    Returns:
        [P, 2] int64, positions.

    Example:
        >>> red, blue = np.zeros((2, 192), np.uint8)
        >>> red[0::3], blue[2::3] = 200, 200
        >>> link_near_duplicates(np.array([5, 5, 4], np.uint64), np.stack([red, blue, red])).tolist()
        [[0, 2]]
    """
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    rows = np.arange(len(hashes))
    copies = np.stack([first[inverse], rows], 1)[first[inverse] < rows]
    copies = copies[_same_colors(thumbnails, copies)]
    others = np.setdiff1d(rows, copies[:, 1])
    pairs = others[near_pairs(hashes[others])]
    return np.concatenate([copies, pairs[_same_colors(thumbnails, pairs)]])


def _same_colors(thumbnails: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    same = [np.empty(0, np.bool_)]
    for part in np.split(pairs, range(2**16, len(pairs), 2**16)):
        # Without the mean: the overall brightness may differ. At least 1, the contrast of rounding errors.
        left, right = (thumbnails[rows] - thumbnails[rows].mean(1, keepdims=True) for rows in part.T)
        contrast = np.minimum(np.abs(left).mean(1), np.abs(right).mean(1)).clip(1)
        same.append(np.abs(left - right).mean(1) <= MAX_DIFFERENCE * contrast)
    return np.concatenate(same)
