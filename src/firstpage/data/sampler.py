"""GroupSampler: batches of a few images from each of many classes (METHODS §6)."""

import math
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from firstpage.data.training_plan import check_batch_size, group_sizes
from firstpage.errors import UserError
from firstpage.recipes.settings import BatchSettings

_Ints = NDArray[np.int64]


class GroupSampler(Sampler[list[int]]):
    """Batches of a few images from each of many classes, which are visited in random order.

    A class gives `min(images_per_class, n_c)` images; the last class of a batch gives fewer if necessary, so
    that the batch has exactly `batch_size` images. This covers all batch layouts of the papers: 64 images
    with up to 11 of a class, 128 with 5 or 16, 180 with 3.

    **Passes.** The class order is a series of random permutations: every class is visited exactly once in
    each pass. A batch may contain the end of one pass and the beginning of the next; classes that are already
    in it then wait until it is full, so that no class (and no image) appears twice in a batch.

    **Epochs.** An epoch has as many images as the dataset: `N // batch_size` batches, at least one. With
    `drop_last=False` a shorter batch of the remaining `N % batch_size` images follows (unless there are
    fewer of them than ranks). An epoch starts a new pass, so that its last pass is usually incomplete.

    **Images.** Each class goes through a random permutation of its images, group after group, and starts a
    new permutation when all have been used (after `ceil(n_c / group)` visits), across epochs. No state is
    needed for this: a batch is a pure function of `(seed, epoch, position)`.

    **Ranks.** `batch_size` is the size of the global batch. Every rank plans the same global batches and
    yields its slice of `batch_size / world` images: slices are disjoint, all ranks have equally many batches,
    and together they use exactly the images that one process would.

    **Resuming.** Iteration continues where it stopped, after `position` batches of epoch `epoch`. The
    `state_dict` contains neither the rank nor the number of ranks, so that a run can resume with another
    number of processes. A `DataLoader` with workers requests batches ahead of the training step; then save
    the state that belongs to the step.

    Args:
        labels: Class of each row, any integers, `[N]`.
        batch_size: Images in a global batch.
        images_per_class: Maximum number of images of one class in a batch.
        oversample: Repeat images of classes that have fewer than `images_per_class`.
        seed: Seed of the class order and the image order.
        rank: Rank of this process.
        world: Number of processes.
        drop_last: Drop the last, shorter batch.

    Raises:
        UserError: A batch could not be filled, or would contain only one class and thus no negatives (the
            last, shorter batch excepted).

    >>> labels = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3]
    >>> sampler = GroupSampler(labels, batch_size=4, images_per_class=2)
    >>> [[labels[row] for row in batch] for batch in sampler]
    [[0, 0, 1, 1], [2, 2, 3, 1]]
    >>> sampler.epoch, sampler.position, len(sampler)
    (1, 0, 2)
    """

    def __init__(
        self,
        labels: ArrayLike,
        batch_size: int,
        images_per_class: int,
        *,
        oversample: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = True,
    ) -> None:
        codes, self._counts, self._rows = _by_class(labels)
        self.batch_size, self.images_per_class, self.oversample = batch_size, images_per_class, oversample
        self.seed, self.rank, self.world, self.drop_last = seed, rank, world, drop_last
        self.epoch, self.position = 0, 0
        self._digest = zlib.crc32(codes.tobytes())
        self._starts = np.cumsum(self._counts) - self._counts
        self._batch = BatchSettings(batch_size, images_per_class, oversample)
        self._group = group_sizes(self._counts, self._batch)
        self._check()
        self._turns = -(-self._counts // self._group)  # visits it takes to show a whole class
        images = len(self._rows)
        tail = images % batch_size
        self._drawn = max(batch_size, images - tail if drop_last or tail < world else images)
        # At least so many passes are complete in every epoch: the walk advances by them and skips nothing.
        self._passes = max(1, self._drawn // int(self._group.sum()))

    def __len__(self) -> int:
        return math.ceil(self._drawn / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.plan(self.epoch)
        while self.position < len(self):
            batch = rows[self.position * self.batch_size :][: self.batch_size]
            self.position += 1
            begin, end = (len(batch) * edge // self.world for edge in (self.rank, self.rank + 1))
            yield batch[begin:end].tolist()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch.

        >>> sampler = GroupSampler([0, 0, 1, 1], batch_size=4, images_per_class=2)
        >>> sampler.set_epoch(7)
        >>> sampler.state_dict()["epoch"]
        7
        """
        self.epoch, self.position = epoch, 0

    def plan(self, epoch: int) -> _Ints:
        """Return the rows of an epoch's global batches, one batch after another.

        >>> sampler = GroupSampler([5, 5, 5, 5, 8, 8, 8, 8], batch_size=4, images_per_class=2)
        >>> sampler.plan(0).tolist(), sampler.plan(1).tolist()  # two passes show every image
        ([0, 1, 6, 5, 4, 7, 3, 2], [5, 7, 3, 0, 4, 6, 1, 2])
        """
        classes, passes, taken = self._visits(epoch)
        cycle, turn = np.divmod(epoch * self._passes + passes, self._turns[classes])
        # Permute the images of each (class, cycle) that occurs, all of them in one sort.
        span = int(cycle.max()) + 1
        keys, which = np.unique(classes * span + cycle, return_inverse=True)
        lengths = self._counts[keys // span]
        owner, inside = _ragged(lengths)
        images = self._rows[self._starts[keys // span][owner] + inside]
        order = np.lexsort((hash_numbers(self.seed, (keys % span)[owner], images), owner))
        firsts = np.cumsum(lengths) - lengths
        # The last turn of a cycle reaches back, so that it is a full group that ends with the last image.
        counts, group = self._counts[classes], self._group[classes]
        begin = np.minimum(turn * group, np.maximum(counts - group, 0))
        visit, step = _ragged(taken)
        place = (begin[visit] + step) % counts[visit]
        rows: _Ints = images[order[firsts[which][visit] + place]]
        return rows[: self._drawn]

    def state_dict(self) -> dict[str, int | bool]:
        """Return the position of the sampler, with its settings and a checksum of its labels.

        >>> sampler = GroupSampler([0, 0, 1, 1, 2, 2], batch_size=2, images_per_class=1)
        >>> batches = iter(sampler)
        >>> _ = next(batches)
        >>> resumed = GroupSampler([0, 0, 1, 1, 2, 2], batch_size=2, images_per_class=1)
        >>> resumed.load_state_dict(sampler.state_dict())
        >>> list(resumed) == list(batches)
        True
        """
        return self._settings() | {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Continue from a saved state, which must be of a sampler with the same settings and labels.

        >>> sampler = GroupSampler([0, 0, 1, 1], batch_size=2, images_per_class=1, seed=1)
        >>> state = GroupSampler([0, 0, 1, 1], batch_size=2, images_per_class=1, seed=2).state_dict()
        >>> sampler.load_state_dict(state)
        Traceback (most recent call last):
        firstpage.errors.UserError: GroupSampler: the state has seed=2, this sampler 1; use the ...
        """
        for name, value in self._settings().items():
            if state[name] != value:
                raise UserError(
                    f"GroupSampler: the state has {name}={state[name]}, this sampler {value}; "
                    "use the settings and labels of the saved run"
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def _settings(self) -> dict[str, int | bool]:
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "images_per_class": self.images_per_class,
            "oversample": self.oversample,
            "drop_last": self.drop_last,
            "labels_crc32": self._digest,
        }

    def _visits(self, epoch: int) -> tuple[_Ints, _Ints, _Ints]:
        """The class visits of an epoch in order: class, number of the pass, images taken."""
        every = np.arange(len(self._counts))
        visits: list[tuple[_Ints, _Ints, _Ints]] = []
        open_classes = open_passes = np.empty(0, np.int64)  # of a batch that the last pass left unfinished
        batches, number = 0, 0
        while batches < len(self):
            order = self._deferred(np.argsort(hash_numbers(self.seed, epoch, number, every)), open_classes)
            classes = np.concatenate([open_classes, order])
            passes = np.concatenate([open_passes, np.full(len(order), number)])
            taken = self._group[classes]
            ends = np.cumsum(taken)
            begins = ends - taken
            # Where the next batch starts, for a batch that starts at any class: only the hops are a loop.
            after = (np.searchsorted(ends, begins + self.batch_size) + 1).tolist()
            hops = [0]
            while hops[-1] < len(classes) and after[hops[-1]] <= len(classes):
                hops.append(after[hops[-1]])
            starts, last = np.array(hops[:-1], np.int64), np.array(hops[1:], np.int64) - 1
            taken[last] -= ends[last] - begins[starts] - self.batch_size
            done = hops[-1]
            visits.append((classes[:done], passes[:done], taken[:done]))
            open_classes, open_passes = classes[done:], passes[done:]
            batches, number = batches + len(starts), number + 1
        classes, passes, taken = (np.concatenate(parts) for parts in zip(*visits, strict=True))
        return classes, passes, taken

    def _deferred(self, order: _Ints, present: _Ints) -> _Ints:
        """`order`, with classes of the open batch put off until others have filled it."""
        if not len(present):
            return order
        group = self._group[order]
        fresh = ~np.isin(order, present)
        before = np.cumsum(group * fresh) - group * fresh
        fills = fresh & (before < self.batch_size - self._group[present].sum())
        return order[np.argsort(~fills, kind="stable")]

    def _check(self) -> None:
        size, per_class, world = self.batch_size, self.images_per_class, self.world
        if not 0 <= self.rank < world:
            raise UserError(f"GroupSampler(rank={self.rank}, world={world}): rank must be in 0..world-1")
        if self.seed < 0:
            raise UserError(f"GroupSampler(seed={self.seed}): seed must not be negative")
        if per_class < 1:
            raise UserError(f"images per class {per_class}: must be at least 1")
        if size < 1 or size % world:
            raise UserError(f"batch size {size}: must be a positive multiple of world={world}")
        check_batch_size(self._group, self._batch, world=world)


def _by_class(labels: ArrayLike) -> tuple[_Ints, _Ints, _Ints]:
    """Class code of each row, rows of each class counted, and the rows sorted by class."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise UserError(f"GroupSampler(labels of shape {values.shape}): labels must be [N], N at least 1")
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return codes.astype(np.int64), counts.astype(np.int64), np.argsort(codes, kind="stable")


def _ragged(lengths: _Ints) -> tuple[_Ints, _Ints]:
    """For lists of these lengths laid end to end: the list of each element, and its place in it."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def hash_numbers(*parts: int | _Ints) -> NDArray[np.uint64]:
    """Return a pseudo-random number for each tuple: the mixing function of SplitMix64, part by part.

    >>> hash_numbers(0, np.arange(2)).tolist()
    [12035550249420947055, 627405149472732430]
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = (state ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state
