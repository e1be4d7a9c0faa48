"""Where the positives of every query rank in the whole gallery, and what comes first, in bounded memory.

Similarities exist for one block of queries at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firstpage.evaluation.inputs import inverse_norms
from firstpage.evaluation.ranks import NEVER, Ties, positive_ranks, sizes_for
from firstpage.pairs import full_precision

_BLOCK = 2**29  # bytes of similarities that exist at a time
_GROUP = 64  # candidates whose maximum stands for them in the search for the first results
# A matrix product rounds differently at the ragged edges of its tiles, and copies of an image would differ in
# the last bit: rows of queries are filled up to a multiple of this, and those of the gallery to whole groups.
_TILE = 16


@dataclass(frozen=True, eq=False)
class Ranked:
    """Some queries and where their positives rank.

    Attributes:
        queries: [B] rows of the queries.
        ranks: [B, R] rank, from 1, of each positive, best first; what is beyond `relevant` is meaningless.
        relevant: [B] positives of each query.
        first: [B, results] gallery rows of the first results.

    >>> ranks = torch.tensor([[1, 3]])
    >>> Ranked(torch.tensor([0]), ranks, torch.tensor([2]), torch.tensor([[4, 5, 6]])).ranks.tolist()
    [[1, 3]]
    """

    queries: Tensor
    ranks: Tensor
    relevant: Tensor
    first: Tensor


def ranked(
    embeddings: Tensor,
    classes: Tensor,
    gallery: Tensor | None,
    gallery_classes: Tensor,
    relevant: Tensor,
    rows: Tensor,
    *,
    results: int,
    ties: Ties,
    block: int | None = None,
    exclude: tuple[Tensor, Tensor] | None = None,
) -> Iterator[Ranked]:
    """Rank the whole gallery for the queries `rows`, a few at a time.

    Args:
        embeddings: [Q, D] queries.
        classes: [Q] their classes, from 0.
        gallery: [G, D] what is searched; None for the queries themselves, each without itself.
        gallery_classes: [G] their classes.
        relevant: [Q] positives of each query.
        rows: queries to rank; each has a positive. Similar numbers of positives should lie together.
        results: first results to keep, at most the candidates of a query.
        ties: which of two equal similarities comes first (see `evaluate`).
        block: queries at a time; as many as half a gibibyte of similarities allows if left out.
        exclude: [Q] and [G] codes: what has the code of a query is no candidate of it.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> classes = torch.tensor([0, 0, 1, 1])
    >>> one = torch.ones(4, dtype=torch.long)
    >>> part = next(ranked(points, classes, None, classes, one, torch.arange(4), results=2, ties="index"))
    >>> part.ranks.flatten().tolist(), part.first.tolist()
    ([1, 1, 1, 3], [[1, 3], [0, 3], [3, 1], [1, 0]])
    """
    alone = gallery is None
    dtype = torch.promote_types(embeddings.dtype, torch.float32)
    scale = inverse_norms("embeddings", embeddings)
    if gallery is None:
        gallery, gallery_scale = embeddings, scale
    else:
        dtype = torch.promote_types(dtype, gallery.dtype)
        gallery_scale = inverse_norms("gallery", gallery)
    device, count = embeddings.device, len(gallery)
    members = gallery_classes.argsort(stable=True)  # gallery rows, class by class, by index within a class
    counts = torch.bincount(gallery_classes, minlength=int(classes.max()) + 1)
    starts = counts.cumsum(0) - counts
    width = _up(count, _GROUP)
    block = max(1, min(block or _BLOCK // (dtype.itemsize * width), len(rows)))
    step = max(1, sizes_for(embeddings).step // width)
    similarity = torch.empty(_up(block, _TILE), width, dtype=dtype, device=device)
    room, span = relevant[rows].cpu(), counts[classes[rows]].cpu()  # widths of the steps, read once
    for begin in range(0, len(rows), block):
        asked = rows[begin : begin + block]
        with full_precision(embeddings):
            queries = _scaled(embeddings[asked], scale[asked], dtype, _TILE)
            _multiply(queries, gallery, gallery_scale, similarity)
        similarity[:, count:] = NEVER
        for top in range(0, len(asked), step):
            taken = asked[top : top + step]
            lines = similarity[top : top + len(taken)]
            if alone:
                lines[torch.arange(len(taken), device=device), taken] = NEVER
            if exclude is not None:
                lines[:, :count].masked_fill_(exclude[0][taken, None] == exclude[1], NEVER)
            part = slice(begin + top, begin + top + len(taken))
            own, count_of, most_of = classes[taken], relevant[taken], int(room[part].max())
            place = torch.arange(int(span[part].max()), device=device)
            columns = members[(starts[own, None] + place).clamp(max=count - 1)]
            inside = place < counts[own, None]
            ranks = positive_ranks(lines, own, gallery_classes, columns, inside, count_of, most_of, ties)
            yield Ranked(taken, ranks, count_of, _first(lines, own, gallery_classes, results, ties))


def _multiply(queries: Tensor, gallery: Tensor, scale: Tensor, out: Tensor) -> None:
    """Similarities of unit vectors and the gallery, which is scaled in chunks."""
    chunk = _up(max(1, sizes_for(gallery).chunk // gallery.shape[1]), _GROUP)
    for left in range(0, len(gallery), chunk):
        part = slice(left, left + chunk)
        candidates = _scaled(gallery[part], scale[part], queries.dtype, _GROUP)
        torch.mm(queries, candidates.T, out=out[: len(queries), left : left + len(candidates)])


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _scaled(rows: Tensor, scale: Tensor, dtype: torch.dtype, multiple: int) -> Tensor:
    """Rows of length one, and rows of zeros up to a multiple."""
    missing = _up(len(rows), multiple) - len(rows)
    return torch.nn.functional.pad((rows * scale).to(dtype), (0, 0, 0, missing))


def _first(similarity: Tensor, classes: Tensor, gallery_classes: Tensor, results: int, ties: Ties) -> Tensor:
    """[B, results]: the columns of the largest similarities in the order of the ranks."""
    if not results:
        return classes.new_empty(len(classes), 0)
    # The largest k + 1 values lie in the k + 1 groups of largest maximum: a twentieth of the row is searched.
    groups = similarity.view(len(similarity), -1, _GROUP)
    leaders = groups.amax(dim=2)
    chosen = leaders.topk(min(results + 1, leaders.shape[1]), dim=1).indices
    inside = groups.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    value, place = inside.topk(min(results + 1, inside.shape[1]), dim=1)
    column = chosen.gather(1, place // _GROUP) * _GROUP + place % _GROUP
    if value.shape[1] > results:
        cut = value[:, results - 1] == value[:, results]
        value, column = value[:, :results], column[:, :results]
        if bool(cut.any()):  # equal values on both sides of the cut: take those that come first
            size = max(1, sizes_for(similarity).piece // similarity.shape[1])
            for lines in torch.split(cut.nonzero().squeeze(1), size):
                column[lines] = _tied_first(
                    similarity[lines], classes[lines], gallery_classes, value[lines], column[lines], ties
                )
    turn = column
    if ties == "pessimistic":
        turn = turn + len(gallery_classes) * (gallery_classes[column] == classes[:, None])
    by_turn = turn.argsort(dim=1)
    value, column = value.gather(1, by_turn), column.gather(1, by_turn)
    return column.gather(1, value.argsort(dim=1, descending=True, stable=True))


def _tied_first(
    similarity: Tensor, classes: Tensor, gallery_classes: Tensor, value: Tensor, column: Tensor, ties: Ties
) -> Tensor:
    """[B, results]: `column` with the last of equal values chosen by the order of ties."""
    results, count = value.shape[1], len(gallery_classes)
    last = value[:, -1:]
    # The sooner its turn, the larger the number.
    turn = torch.arange(similarity.shape[1], 0, -1, dtype=torch.int32, device=value.device)
    if ties == "pessimistic":
        wrong = gallery_classes != classes[:, None]
        turn = turn + similarity.shape[1] * torch.nn.functional.pad(wrong, (0, len(turn) - count))
    equal = torch.where(similarity == last, turn, 0).topk(results, dim=1).indices
    above = (value > last).sum(dim=1, keepdim=True)
    place = torch.arange(results, device=value.device)
    return torch.where(place < above, column, equal.gather(1, (place - above).clamp(min=0)))
