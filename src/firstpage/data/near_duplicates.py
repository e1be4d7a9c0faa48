"""Near duplicates: images that look alike although their files differ.

Two images are near duplicates if their 64-bit hashes (which low frequencies of the brightness are strong)
differ in few bits, and their thumbnails of 8 × 8 colors by little of their contrast. The hash finds
candidates without comparing all pairs. The thumbnail distinguishes images with the same hash, such as a red
and a blue shirt of the same cut.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_DISTANCE = 7  # different bits of the hashes: strong compression changes up to 6, another photo about 32
MAX_DIFFERENCE = 0.3  # of the thumbnails, as a share of their contrast and regardless of their brightness
MIN_CONTRAST = 2.0  # standard deviation of the brightness; with less there is nothing to recognize

_SIDE = 32  # of the transformed image
_NOISE = 16  # effect of rounding on a frequency; only larger values count as strong
_CHUNK = 2**20  # candidate pairs compared at a time

_frequency = np.arange(_SIDE)
_COSINES = np.cos(np.pi / _SIDE * _frequency[:, None] * (_frequency + 0.5))
# The 64 lowest frequencies without the mean, which is the overall brightness.
_LOWEST = np.argsort((_frequency[:, None] + _frequency).ravel(), kind="stable")[1:65]
_ONES = np.array([value.bit_count() for value in range(2**16)], np.uint8)


def sketch(image: Image.Image) -> tuple[int, bytes] | None:
    """Return the hash and the thumbnail of an RGB image; None if it has no contrast.

    The hash of an image without contrast would consist of rounding errors, and all blank pages would be near
    duplicates of each other. Such images are only compared byte by byte.

    Args:
        image: An image from `decode_image`, with sides of at least 64 pixels.

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
    """Return all pairs of hashes that differ in at most `MAX_DISTANCE` = 7 bits.

    Such hashes differ in at most one bit in at least one of their four 16-bit quarters: so each quarter is
    looked up among all others, as it is and with each of its bits flipped. For N hashes this takes about
    34 · N² / 2¹⁶ steps and the memory of the result.

    Args:
        hashes: [N] uint64.

    Returns:
        [P, 2] int64, positions in `hashes`, the smaller first, in ascending order.

    >>> near_pairs(np.array([0, 2**40 - 1, 0b1111111, 0b11111111], np.uint64)).tolist()
    [[0, 2], [2, 3]]
    """
    quarters = hashes[:, None].view(np.uint16)
    codes = [np.empty(0, np.int64)]
    for quarter in quarters.T:
        order = np.argsort(quarter, kind="stable")
        starts = np.concatenate([[0], np.bincount(quarter, minlength=2**16).cumsum()])
        for flipped in (0, *(1 << bit for bit in range(16))):
            wanted = quarter ^ np.uint16(flipped)
            first, counts = starts[wanted], np.diff(starts)[wanted]
            ends = counts.cumsum()
            cuts = np.searchsorted(ends, np.arange(_CHUNK, ends[-1] if ends.size else 0, _CHUNK))
            for rows in np.split(np.arange(len(hashes)), cuts):
                left = np.repeat(rows, counts[rows])
                step = np.arange(left.size) - np.repeat(counts[rows].cumsum() - counts[rows], counts[rows])
                right = order[first[left] + step]
                left, right = left[left < right], right[left < right]
                near = _ONES[quarters[left] ^ quarters[right]].sum(1) <= MAX_DISTANCE
                codes.append(left[near] * len(hashes) + right[near])
    pairs = np.unique(np.concatenate(codes))
    return np.stack([pairs // max(len(hashes), 1), pairs % max(len(hashes), 1)], 1)


def link_near_duplicates(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return pairs of near duplicates, enough of them to link each image with all its near duplicates.

    Images with the same hash are only compared with the first of them, which represents its near duplicates:
    ten thousand copies of a placeholder image give ten thousand links, not fifty million.

    Args:
        hashes: [N] uint64.
        thumbnails: [N, 192] uint8.

    Returns:
        [P, 2] int64, positions in `hashes`.

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
        # Without the mean, as the overall brightness may differ. At least 1, the contrast of rounding errors.
        left, right = (thumbnails[rows] - thumbnails[rows].mean(1, keepdims=True) for rows in part.T)
        contrast = np.minimum(np.abs(left).mean(1), np.abs(right).mean(1)).clip(1)
        same.append(np.abs(left - right).mean(1) <= MAX_DIFFERENCE * contrast)
    return np.concatenate(same)
