"""Near-duplicates in an index, and images whose neighbors carry another label."""

import io
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstpage.data.decode import Unreadable
from firstpage.data.near_duplicates import link_near_duplicates, look_closer, sketch
from firstpage.data.progress import progress_bar
from firstpage.errors import UserError
from firstpage.search.index import Index

VOTES = 5  # nearest images, near-duplicates aside, that are asked for their label
AGREE = 4  # of them that must carry the same other label, with none of the image's own
FOUND = 2 * VOTES  # nearest images that are looked at: some may be near-duplicates
BATCH = 256  # images searched at a time


@dataclass(frozen=True)
class Suspect:
    """An image whose neighbors carry another label: its label is likely wrong.

    Attributes:
        id: Of the image.
        suggested: The label of most neighbors.
        votes: Number of those neighbors, of `VOTES`.
        score: Their mean cosine with the image.
        neighbors: Ids of the neighbors, the nearest first.

    >>> Suspect(7, "mug", 5, 0.93, (1, 2, 3, 4, 5)).suggested
    'mug'
    """

    id: int
    suggested: str
    votes: int
    score: float
    neighbors: tuple[int, ...]


@dataclass(frozen=True)
class Duplicates:
    """What is wrong with the images of an index.

    Attributes:
        images: Number of images.
        groups: Ids of near-duplicates, each group in ascending order.
        suspects: Images whose neighbors carry another label, the most certain first.

    >>> Duplicates(9, [[1, 4], [2, 5, 7]], []).summary()
    '9 images: 5 near-duplicates in 2 groups, 0 with neighbors of another label'
    """

    images: int
    groups: list[list[int]]
    suspects: list[Suspect]

    def summary(self) -> str:
        """Return the numbers in one line."""
        alike = sum(map(len, self.groups))
        return (
            f"{self.images:,} images: {alike:,} near-duplicates in {len(self.groups):,} groups, "
            f"{len(self.suspects):,} with neighbors of another label"
        )


def find_duplicates(index: Index, *, min_score: float | None = None, progress: bool = True) -> Duplicates:
    """Find near-duplicates in an index, and images whose neighbors carry another label.

    Near-duplicates are images that look alike: the same picture, scaled, compressed or toned, whatever the
    model. They are found as by `firstpage data check`, and compared once more in greater detail, so that two
    shoes before a white wall are not taken for one. `min_score` adds pairs by the model.

    A label is doubted if none of the `VOTES` nearest images carries it, near-duplicates aside, and at least
    `AGREE` of them carry the same other label; the label of a class with a single picture is not.

    Images are compared in blocks: besides the index, about 500 bytes are needed for each image.

    Args:
        index: The index.
        min_score: Also take pairs of at least this cosine for near-duplicates, such as mirrored ones. What is
            enough depends on the model: 0.99 for most.
        progress: Show progress bars.

    Raises:
        UserError: `min_score` is not a cosine.

    >>> find_duplicates(Index.open("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    if min_score is not None and not -1 <= min_score <= 1:
        raise UserError(f"min_score={min_score:g}: must be a cosine, such as 0.99")
    neighbors, scores = _find_neighbors(index, progress)
    links = _look_alike(index, progress)
    if min_score is not None:
        rows, columns = np.nonzero(scores >= min_score)
        links = np.concatenate([links, np.stack([rows, neighbors[rows, columns]], 1)])
    group = _connect(links, len(index))
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    groups = sorted(index.ids[part].tolist() for part in parts if len(part) > 1)
    suspects = find_suspects(index.columns["label"], neighbors, scores, group)
    renamed = [
        Suspect(int(index.ids[one.id]), one.suggested, one.votes, one.score, _ids(index, one.neighbors))
        for one in suspects
    ]
    return Duplicates(len(index), groups, renamed)


def find_suspects(
    labels: NDArray[np.str_],
    neighbors: NDArray[np.int64],
    scores: NDArray[np.float32],
    group: NDArray[np.int64],
) -> list[Suspect]:
    """Find images whose neighbors carry another label.

    Args:
        labels: [N] of the images.
        neighbors: [N, K] rows of the most similar images, the best first; -1 for none.
        scores: [N, K] their cosines.
        group: [N] number of the group of near-duplicates. Those of an image have no vote, and of others that
            are near-duplicates of one another only the first has.

    Returns:
        Suspects, with rows for ids: those with most votes and the highest score first.

    >>> labels = np.array(["mug", "mug", "mug", "mug", "mug", "cup", "cup"])
    >>> neighbors = np.array([[(row + step) % 7 for step in range(1, 7)] for row in range(7)])
    >>> [found.id for found in find_suspects(labels, neighbors, 1 / (1.0 + neighbors), np.arange(7))]
    [6]
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    others = np.where(neighbors < 0, -1, group[neighbors])
    voting = (neighbors >= 0) & (others != group[:, None])
    for column in range(1, neighbors.shape[1]):
        voting[:, column] &= (others[:, :column] != others[:, [column]]).all(axis=1)
    voting &= voting.cumsum(axis=1) <= VOTES
    votes = np.where(voting, codes[neighbors], -1)
    own = (votes == codes[:, None]).any(axis=1)
    # Only few are left to look at one by one.
    doubted = np.flatnonzero((voting.sum(axis=1) == VOTES) & ~own & (counts[codes] > 1))
    suspects = []
    for row in doubted.tolist():
        chosen = np.flatnonzero(voting[row])
        kinds, number = np.unique(votes[row, chosen], return_counts=True)
        most = int(number.argmax())
        if number[most] >= AGREE:
            agreeing = chosen[votes[row, chosen] == kinds[most]]
            suggested = str(labels[neighbors[row, agreeing[0]]])
            score = float(scores[row, agreeing].mean())
            near = tuple(neighbors[row, chosen].tolist())
            suspects.append(Suspect(row, suggested, int(number[most]), score, near))
    return sorted(suspects, key=lambda one: (-one.votes, -one.score, one.id))


def _find_neighbors(index: Index, progress: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the places and cosines of the images that are most similar to each image of an index."""
    neighbors = np.full((len(index), FOUND), -1, np.int64)
    scores = np.full((len(index), FOUND), -2, np.float32)
    with progress_bar("comparing", len(index), progress) as advance:
        for start in range(0, len(index), BATCH):
            ids = index.ids[start : start + BATCH]
            for row, matches in enumerate(index.search(ids=ids.tolist(), k=FOUND), start=start):
                neighbors[row, : len(matches)] = np.searchsorted(index.ids, [match.id for match in matches])
                scores[row, : len(matches)] = [match.score for match in matches]
            advance(len(ids))
    return neighbors, scores


def _look_alike(index: Index, progress: bool) -> NDArray[np.int64]:
    """Return links [P, 2] between the places of images that look alike, by their thumbnails."""
    rows, hashes, thumbnails = [], [], []
    with progress_bar("looking", len(index), progress) as advance:
        for row in range(len(index)):
            seen = None
            with suppress(Unreadable):  # a file that is gone, of an image that was added as a vector
                seen = sketch(_picture(index, row))
            if seen is not None:
                rows.append(row)
                hashes.append(seen[0])
                thumbnails.append(seen[1])
            advance(1)
    colors = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(-1, 192)
    links = link_near_duplicates(np.array(hashes, np.uint64), colors)
    return look_closer(np.array(rows, np.int64)[links], partial(_picture, index))


def _picture(index: Index, row: int) -> Image.Image:
    thumbnail = index.thumbnail(int(index.ids[row]))
    return Image.open(io.BytesIO(thumbnail), formats=["JPEG"]).convert("RGB")


def _connect(links: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the number of the group of each image, of which links make one."""
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    graph = coo_array((np.ones(len(links), np.bool_), links.T), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)  # type: ignore[no-any-return]


def _ids(index: Index, places: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(index.ids[list(places)].tolist())
