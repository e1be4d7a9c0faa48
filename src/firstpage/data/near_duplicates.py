"""Near duplicates: images that look alike although their files differ.

Two images are near duplicates if their 64-bit hashes (which low frequencies of the brightness are strong)
differ in few bits, their thumbnails of 8 × 8 colors by little of their contrast, and so their pictures of
32 × 32. The hash finds candidates without comparing all pairs. The thumbnail distinguishes images with the
same hash, such as a red and a blue shirt of the same cut, the picture two words on a page.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_DISTANCE = 7  # different bits of the hashes: strong compression changes up to 6, another photo about 32
MAX_DIFFERENCE = 0.3  # of the thumbnails, as a share of their contrast and regardless of their brightness
ALIKE = 0.25  # distance of details: strong compression and toning reach 0.17, other products begin at 0.3
MIN_CONTRAST = 2.0  # standard deviation of the brightness; with less there is nothing to recognize

_SIDE = 32  # of the transformed image
_NOISE = 16  # effect of rounding on a frequency; only larger values count as strong
_CHUNK = 2**20  # candidate pairs compared at a time
_FEW, _MOST = 8, 512  # others that an image is compared with in one lookup: first, and in the end

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


def link_near_duplicates(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return links between near duplicates: from each image to the first one of its group.

    A group is what near duplicates connect: a row of images that each look like the next one is one group.
    Images with the same hash and colors are represented by the first of them.

    Hashes that differ in at most `MAX_DISTANCE` = 7 bits differ in at most one bit in at least one of their
    four 16-bit quarters: so each quarter is looked up among all others, as it is and with each of its bits
    flipped. For N hashes this takes about 34 · N² / 2¹⁶ steps. Where thousands of images are nearly the same,
    images of one group are not compared any more, and each image is compared with at most `_MOST` others in
    each of the 68 lookups: time and memory are at most proportional to N, whatever the images show.

    Args:
        hashes: [N] uint64.
        thumbnails: [N, 192] uint8.

    Returns:
        [P, 2] int64, positions in `hashes`: the first image of a group and another one, P < N.

    >>> red, blue = np.zeros((2, 192), np.uint8)
    >>> red[0::3], blue[2::3] = 200, 200
    >>> link_near_duplicates(np.array([5, 5, 4], np.uint64), np.stack([red, blue, red])).tolist()
    [[0, 2]]
    """
    images = _Images(hashes, thumbnails)
    rows = np.arange(len(hashes))
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    copies = np.stack([first[inverse], rows], 1)[first[inverse] < rows]
    copies = copies[images.look_alike(copies)]
    images.merge(copies)
    others = np.setdiff1d(rows, copies[:, 1])
    for quarter in range(4):
        images.look_up(others, quarter)
        for flipped in (0, *(1 << bit for bit in range(16))):
            # A few comparisons make most of what is alike one group, and most other comparisons needless.
            cut = images.compare(images.sorted, flipped, _FEW)
            images.compare(cut, flipped, _MOST)
    _, first, inverse = np.unique(images.groups, return_index=True, return_inverse=True)
    links = np.stack([first[inverse], rows], 1)
    return links[links[:, 0] < rows]


def look_closer(
    links: NDArray[np.int64],
    picture: Callable[[int], Image.Image],
    advance: Callable[[int], None] | None = None,
) -> NDArray[np.int64]:
    """Return links from each image to the first of its group that it looks like in greater detail, too.

    Pages of text and drawings have the thumbnail of one another sooner than photographs have.

    Args:
        links: [P, 2] As `link_near_duplicates` returns them.
        picture: Returns an image; called once for each.
        advance: Called with the number of images that were looked at.

    >>> pictures = [Image.linear_gradient("L").convert("RGB"), Image.radial_gradient("L").convert("RGB")]
    >>> look_closer(np.array([[0, 1], [0, 2]]), lambda row: pictures[row % 2]).tolist()
    [[0, 2]]
    """
    kept = []
    links = links.reshape(-1, 2)
    order = np.argsort(links[:, 0], kind="stable")
    for group in np.split(links[order], np.flatnonzero(np.diff(links[order, 0])) + 1) if len(links) else ():
        firsts, seen = [int(group[0, 0])], [_details(picture(int(group[0, 0])))]
        for row in group[:, 1].tolist():
            details = _details(picture(row))
            distances = np.linalg.norm(np.stack(seen) - details, axis=1)
            if distances.min() <= ALIKE:
                kept.append((firsts[int(distances.argmin())], row))
            else:
                firsts.append(row)
                seen.append(details)
        if advance is not None:
            advance(len(group) + 1)
    return np.array(kept, np.int64).reshape(-1, 2)


def _details(picture: Image.Image) -> NDArray[np.float32]:
    """Return a small picture as a vector of length one, regardless of its brightness and contrast."""
    pixels = np.asarray(picture.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), np.float32).ravel()
    centered = pixels - pixels.mean()
    return centered / max(float(np.linalg.norm(centered)), 1e-6)  # type: ignore[no-any-return]


class _Images:
    """Images in groups of near duplicates: at first each is a group, and `compare` merges groups."""

    def __init__(self, hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> None:
        self.hashes, self.thumbnails, self.groups = hashes, thumbnails, np.arange(len(hashes))
        self._contrast = np.empty(len(hashes))
        self._blocks = np.empty((len(hashes), 48), np.float32)
        for rows in np.split(self.groups, range(2**12, len(hashes), 2**12)):
            colors = self._colors(rows)
            self._contrast[rows] = np.abs(colors).mean(1).clip(1)  # at least that of rounding errors
            self._blocks[rows] = colors.reshape(-1, 4, 2, 4, 2, 3).sum((2, 4)).reshape(-1, 48)

    def look_up(self, rows: NDArray[np.int64], quarter: int) -> None:
        """Prepare to `compare` these images by a quarter of their hashes."""
        self._quarter = self.hashes[:, None].view(np.uint16)[:, quarter].astype(np.int64)
        self._starts = np.concatenate([[0], np.bincount(self._quarter[rows], minlength=2**16).cumsum()])
        self._sort(rows)

    def _sort(self, rows: NDArray[np.int64]) -> None:
        keys = self._quarter[rows] * len(self.groups) + self.groups[rows]
        order = np.argsort(keys)
        self.sorted, self._keys = rows[order], keys[order]

    def compare(self, left: NDArray[np.int64], flipped: int, most: int) -> NDArray[np.int64]:
        """Compare images with those whose quarter is the same but for the bits `flipped`.

        Args:
            left: The images to compare.
            flipped: The bits of the quarter that differ.
            most: Number of images to compare one with at most.

        Returns:
            The images that have more candidates.
        """
        wanted = self._quarter[left] ^ flipped
        # Of the images with the wanted value, those of later groups: so no pair is met twice.
        first = np.searchsorted(self._keys, wanted * len(self.groups) + self.groups[left], side="right")
        counts = self._starts[wanted + 1] - first
        left, first, counts = (array[counts > 0] for array in (left, first, counts))
        if not left.size:  # mostly, unless there are many images
            return left
        cut: NDArray[np.int64] = left[counts > most]
        counts = counts.clip(max=most)
        ends = counts.cumsum()
        cuts = np.searchsorted(ends, np.arange(_CHUNK, ends[-1], _CHUNK))
        merged = False
        for part in np.split(np.arange(left.size), cuts):
            each = np.repeat(part, counts[part])
            step = np.arange(each.size) - np.repeat(counts[part].cumsum() - counts[part], counts[part])
            pairs = np.stack([left[each], self.sorted[first[each] + step]], 1)
            bits = (self.hashes[pairs[:, :1]] ^ self.hashes[pairs[:, 1:]]).view(np.uint16)
            distance = sum(_ONES[quarter] for quarter in bits.T)  # many times faster than a sum over an axis
            pairs = pairs[distance <= MAX_DISTANCE]
            pairs = pairs[self.groups[pairs[:, 0]] != self.groups[pairs[:, 1]]]
            pairs = pairs[self.look_alike(pairs)]
            self.merge(pairs)
            merged |= bool(len(pairs))
        if merged:
            self._sort(self.sorted)
        return cut

    def merge(self, pairs: NDArray[np.int64]) -> None:
        """Make one group of those that the pairs connect."""
        if not pairs.size:
            return
        # Here, as neither workers nor images without a duplicate need scipy.
        from scipy.sparse import coo_array  # type: ignore[import-untyped]
        from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

        edges, count = self.groups[pairs], len(self.groups)
        graph = coo_array((np.ones(len(edges), np.bool_), edges.T), shape=(count, count))
        self.groups = connected_components(graph, directed=False)[1][self.groups].astype(np.int64)

    def look_alike(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each pair of images whether their colors differ by little of their contrast."""
        alike = np.zeros(len(pairs), np.bool_)
        for part in np.split(np.arange(len(pairs)), range(2**14, len(pairs), 2**14)):
            left, right = pairs[part].T
            limit = MAX_DIFFERENCE * np.minimum(self._contrast[left], self._contrast[right])
            # Sums of colors differ by no more than the colors: few pairs need the exact comparison.
            near = np.abs(self._blocks[left] - self._blocks[right]).sum(1) <= 192.01 * limit
            left, right, limit, part = left[near], right[near], limit[near], part[near]
            alike[part] = np.abs(self._colors(left) - self._colors(right)).mean(1) <= limit
        return alike

    def _colors(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return thumbnails without their mean, as the overall brightness may differ."""
        colors: NDArray[np.float64] = self.thumbnails[rows] - self.thumbnails[rows].mean(1, keepdims=True)
        return colors
