"""The ranks of a query's positives in its row of similarities.

A few positives are compared with the row: a rank is one more than the number of candidates above it. For
many, the row is sorted, as integers whose last bit tells right from wrong: ranks are the places of that bit.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

Ties = Literal["index", "pessimistic"]

NEVER = -1.5  # similarity of what is no candidate: below every cosine, and above −2 (see `_keys`)


@dataclass(frozen=True)
class Sizes:
    """How much is done at a time: what the caches of a CPU hold, or what fills a GPU.

    Attributes:
        step: similarities that are compared together; many on a GPU, as launching a kernel takes longer
            than running it on few.
        sorted: similarities that are sorted together, which takes several times their memory.
        piece: similarities that go through several operations in a row.
        chunk: values of the gallery scaled together.
        sort_above: comparisons from which on sorting the row is faster.
    """

    step: int
    sorted: int
    piece: int
    chunk: int
    sort_above: int


_CPU = Sizes(step=2**21, sorted=2**21, piece=2**19, chunk=2**20, sort_above=24)
_GPU = Sizes(step=2**27, sorted=2**25, piece=2**25, chunk=2**25, sort_above=24)


def sizes_for(tensor: Tensor) -> Sizes:
    """Return the sizes for the device of a tensor."""
    return _CPU if _on_cpu(tensor) else _GPU


def _on_cpu(tensor: Tensor) -> bool:
    """Whether NumPy does the work; in one place, so that tests can do it as a GPU would."""
    return tensor.device.type == "cpu"


def positive_ranks(
    similarity: Tensor,
    classes: Tensor,
    gallery_classes: Tensor,
    columns: Tensor,
    inside: Tensor,
    relevant: Tensor,
    room: int,
    ties: Ties,
) -> Tensor:
    """Return the rank, from 1, of each positive, best first.

    Args:
        similarity: [B, W] cosines, `NEVER` for what is no candidate; W is a multiple of 8.
        classes: [B] classes of the queries.
        gallery_classes: [G] classes of the gallery.
        columns: [B, S] the gallery rows of each query's class, by index.
        inside: [B, S] which of them there are.
        relevant: [B] how many of them are candidates.
        room: the largest of these.
        ties: which of two equal similarities comes first (see `evaluate`).

    Returns:
        [B, room] ranks; what is beyond `relevant` is meaningless.

    >>> similarity = torch.tensor([[0.1, 0.9, 0.5, 0.5, 0.2, NEVER, NEVER, NEVER]])
    >>> classes = torch.tensor([0]), torch.tensor([1, 0, 0, 1, 1])
    >>> arguments = *classes, torch.tensor([[1, 2]]), torch.ones(1, 2).bool(), torch.tensor([2]), 2
    >>> positive_ranks(similarity, *arguments, "index"), positive_ranks(similarity, *arguments, "pessimistic")
    (tensor([[1, 2]]), tensor([[1, 3]]))
    """
    comparisons = 2 * room if ties == "index" else room
    sizes = sizes_for(similarity)
    if comparisons <= sizes.sort_above:
        return _by_comparing(similarity, columns, inside, relevant, room, ties)
    rows = max(1, sizes.sorted // similarity.shape[1])
    found = []
    for top in range(0, len(similarity), rows):
        part = slice(top, top + rows)
        place = columns[part], inside[part], relevant[part]
        found.append(_by_sorting(similarity[part], classes[part], gallery_classes, *place, room, ties))
    return torch.cat(found)


def _by_sorting(
    similarity: Tensor,
    classes: Tensor,
    gallery_classes: Tensor,
    columns: Tensor,
    inside: Tensor,
    relevant: Tensor,
    room: int,
    ties: Ties,
) -> Tensor:
    keys = _keys(similarity)
    # Right ones are odd: just before the wrong ones that are equal, or just after them.
    odd = inside.to(keys.dtype)
    keys = _sorted(keys.scatter_add_(1, columns, odd if ties == "pessimistic" else -odd))
    ranks = _places(keys.to(torch.uint8).bitwise_and_(1), inside, room)
    if ties == "index":
        number = torch.arange(1, room + 1, device=keys.device)
        key, after = (keys.gather(1, place.clamp(0, keys.shape[1] - 1)) for place in (ranks - 1, ranks))
        last_right = after == key + 1  # before wrong ones that are equal
        tied = last_right & (number <= relevant[:, None])
        if bool(tied.any()):
            line, last = tied.nonzero().T
            value = _cosines(key[line, last] + 1, similarity.dtype)
            _order_by_index(ranks, similarity, line, last, value, classes, gallery_classes)
    return ranks


def _by_comparing(
    similarity: Tensor, columns: Tensor, inside: Tensor, relevant: Tensor, room: int, ties: Ties
) -> Tensor:
    score = similarity.gather(1, columns).masked_fill(~inside, NEVER)
    # Stable: equal positives stay by index. The query itself and what is excluded come after them.
    score, order = score.sort(dim=1, descending=True, stable=True)
    score, columns = score[:, :room].contiguous(), columns.gather(1, order)[:, :room]
    number = torch.arange(1, room + 1, device=score.device)
    below = torch.nextafter(score, torch.full_like(score, NEVER))  # v > below is v ≥ score
    if ties == "pessimistic":
        # Wrong ones that are equal come before: all that are not below, less the positives among them.
        right = room - torch.searchsorted(score.flip(1).contiguous(), score)
        return _exceeding(similarity, below) - right + number
    not_below, above = torch.split(_exceeding(similarity, torch.cat([below, score], dim=1)), room, dim=1)
    ranks = above + 1
    tied = (not_below - above > 1) & (number <= relevant[:, None])
    if bool(tied.any()):
        line, which = tied.nonzero().T
        column = torch.arange(similarity.shape[1], device=score.device)
        size = max(1, sizes_for(score).piece // similarity.shape[1])
        for rows, positive in zip(torch.split(line, size), torch.split(which, size), strict=True):
            equal = similarity[rows] == score[rows, positive, None]
            ranks[rows, positive] += (equal & (column < columns[rows, positive, None])).sum(dim=1)
    return ranks


def _exceeding(similarity: Tensor, thresholds: Tensor) -> Tensor:
    """[B, T]: how many values of its row exceed each threshold."""
    if not _on_cpu(similarity):
        mask = torch.empty(similarity.shape, dtype=torch.bool, device=similarity.device)
        columns = torch.split(thresholds, 1, dim=1)
        return torch.stack([torch.gt(similarity, column, out=mask).sum(dim=1) for column in columns], dim=1)
    counts = torch.empty(thresholds.shape, dtype=torch.long)
    _in_threads(_count_exceeding, similarity.numpy(), thresholds.numpy(), counts.numpy())
    return counts


def _count_exceeding(values: Array, thresholds: Array, counts: Array) -> None:
    # NumPy compares at six times the speed of torch.
    mask = np.empty(values.shape, bool)
    for number in range(thresholds.shape[1]):
        counts[:, number] = _true(np.greater(values, thresholds[:, number, None], out=mask))


def _true(mask: Array) -> Array:
    """[B]: how many of each row are true. The width is a multiple of 8.

    Adding widens every bool to a number, at an eighth of the speed of comparing. Here eight of them are read
    as one integer, whose bytes hold 255 additions without a carry.
    """
    lanes = mask.view(np.int64)
    whole = lanes.shape[1] // 255 * 255
    counts = lanes[:, whole:].sum(axis=1, keepdims=True)
    if whole:
        blocks = lanes[:, :whole].reshape(len(lanes), -1, 255)
        counts = np.concatenate([blocks.sum(axis=2), counts], axis=1)
    total: Array = np.ascontiguousarray(counts).view(np.uint8).sum(axis=1, dtype=np.int64)
    return total


def _in_threads(work: Callable[..., None], *arrays: Array) -> None:
    """Do the work on parts of the rows of the arrays, as many as torch has threads."""
    number = min(torch.get_num_threads(), len(arrays[0]))
    if number == 1:
        work(*arrays)
        return
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(work, *(np.array_split(array, number) for array in arrays)))


def _order_by_index(
    ranks: Tensor,
    similarity: Tensor,
    line: Tensor,
    last: Tensor,
    value: Tensor,
    classes: Tensor,
    gallery_classes: Tensor,
) -> None:
    """Rank equal candidates by index, where so far the right ones come first.

    Args:
        ranks: [B, room] ranks, corrected in place.
        similarity: [B, W] similarities.
        line: [T] the row of each tie.
        last: [T] which of the row's positives is the last one in the tie.
        value: [T] the similarity that is tied.
        classes: [B] classes of the queries.
        gallery_classes: [G] classes of the gallery.
    """
    width, size = similarity.shape[1], max(1, sizes_for(similarity).piece // similarity.shape[1])
    parts = enumerate(zip(torch.split(line, size), torch.split(value, size), strict=True))
    found = torch.cat(
        [
            _equal_places(similarity.index_select(0, rows), equal[:, None]) + part * size * width
            for part, (rows, equal) in parts
        ]
    )
    tie, column = found // width, found % width
    right = _equal_places(gallery_classes[column], classes[line][tie])
    tie = tie[right]
    before = right - torch.searchsorted(found, tie * width)  # of the same tie, right or wrong
    count = torch.bincount(tie, minlength=len(line))
    turn = torch.arange(len(tie), device=tie.device) - (count.cumsum(0) - count)[tie]
    best = ranks[line, last] - count + 1
    ranks[line[tie], (last - count + 1)[tie] + turn] = best[tie] + before


def _keys(similarity: Tensor) -> Tensor:
    """[B, W]: even integers in the order of the similarities, the largest first.

    The bits of positive floats, read as integers, have the order of their values. Those of cosines, which are
    less than 2, leave a bit free beside the sign, so that doubling loses nothing.
    """
    size = similarity.element_size()
    keys = torch.empty(
        similarity.shape, dtype=torch.int32 if size == 4 else torch.int64, device=similarity.device
    )
    rows = max(1, sizes_for(similarity).piece // similarity.shape[1])
    bits = similarity.view(keys.dtype)
    for given, part in zip(torch.split(bits, rows), torch.split(keys, rows), strict=True):
        sign = given >> (8 * size - 1)  # −1 for what is negative
        torch.bitwise_left_shift(given, 1, out=part)
        torch.sub(sign, part.bitwise_xor_(sign), out=part)
    return keys


def _cosines(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """What has these even keys."""
    return torch.copysign((keys.abs() >> 1).view(dtype), -keys.to(dtype))


def _sorted(keys: Tensor) -> Tensor:
    """Each row in ascending order; `keys` may be overwritten."""
    if not _on_cpu(keys):
        return keys.sort(dim=1).values
    # Ten times as fast as torch, which sorts indices along and without vector instructions.
    _in_threads(lambda part: part.sort(axis=1), keys.numpy())
    return keys


def _places(right: Tensor, inside: Tensor, room: int) -> Tensor:
    """[B, room]: the places, from 1, of the first ones in rows of zeros and ones, as many as `inside`."""
    place = torch.arange(room, device=right.device)
    if not _on_cpu(right):  # without waiting for their number
        wanted = (place + 1).int().expand(len(right), room).contiguous()
        return torch.searchsorted(right.cumsum(dim=1, dtype=torch.int32), wanted) + 1
    found = torch.from_numpy(np.flatnonzero(right.numpy().view(bool)))
    counts = inside.sum(dim=1)
    begins = counts.cumsum(0) - counts
    index = (begins[:, None] + place).clamp(max=len(found) - 1)
    return found.take(index) - right.shape[1] * torch.arange(len(right))[:, None] + 1


def _equal_places(values: Tensor, others: Tensor) -> Tensor:
    """The places, in the flat result, of what is equal."""
    if not _on_cpu(values):
        return (values == others).flatten().nonzero().squeeze(1)
    return torch.from_numpy(np.flatnonzero(values.numpy() == others.numpy()))
