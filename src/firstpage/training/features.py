"""The features of a backbone that is never trained: computed once, so that its head is trained in seconds."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import firstpage
from firstpage import durable
from firstpage.data.augment import Augment
from firstpage.data.cache import cache_folder
from firstpage.data.framing import Size
from firstpage.models.embedder import Embedder, Pixels
from firstpage.models.embedding_cache import backbone_fingerprint
from firstpage.recipes.recipe import Recipe

VERSION = 1  # of the files, and of what is computed
CROPS = 3  # random crops of each training image, beside its central one
BLOCK = 256  # crops in a file
_SEED = 0  # of the crops: runs on the same images share them
_DIGEST = 16  # bytes, at the beginning of each file

Rows = NDArray[np.int64]


def uses_features(recipe: Recipe) -> bool:
    """Return whether a run trains nothing but a head, on one vector of features per image.

    >>> uses_features(Recipe.of({"schedule": {"epochs": 8, "head_epochs": 8}}))
    True
    >>> uses_features(Recipe.of({"schedule": {"epochs": 8, "head_epochs": 3}}))
    False
    """
    model, schedule = recipe.model, recipe.schedule
    several = model.head in ("multilevel", "attention")  # these look into the backbone
    learns = model.pooling == "gem"  # an exponent
    return 0 < schedule.epochs <= schedule.head_epochs and not several and not learns


class FeatureStore:
    """The pooled features of the images of a run, in place of their pixels.

    Of each training image there are the features of its central crop and of `CROPS` random ones, of other
    images those of the central crop. They are kept on the disk as they are computed, so that a run that was
    killed computes none twice, and further runs with the same images and backbone compute none at all.

    Args:
        model: The model whose backbone gives the features.
        pixels: The images.
        trained: Rows of the images that are trained on.
        tested: Rows of other images whose features are asked for.
        augment: Draws the random crops.
        seed: Of the choice among the crops. The crops themselves depend on the images only.
        half: Run the backbone in bfloat16.
        cache: Folder of cached pixels; features are kept in its folder `features`. Defaults to the user's
            cache.

    Attributes:
        ok: [N] Which images could be decoded.
        batch_size: How many images are embedded at a time; many, as features are small.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> class Black:
    ...     ok = np.ones(3, bool)
    ...     def __len__(self): return 3
    ...     def batch(self, rows, device=None): return torch.zeros(len(rows), 48, 48, 3, dtype=torch.uint8)
    >>> features = FeatureStore(model, Black(), np.array([0, 2]), np.array([1]), Augment(48, flip=0.5))
    >>> features.missing  # of one size
    {48: 9}
    >>> features.fill()
    >>> features.batch([1]).shape, features.draw(np.array([2, 0]), step=7).shape
    (torch.Size([1, 192]), torch.Size([2, 192]))
    """

    batch_size = 1024

    def __init__(
        self,
        model: Embedder,
        pixels: Pixels,
        trained: Rows,
        tested: Rows,
        augment: Augment,
        *,
        seed: int = 0,
        half: bool = False,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self.ok = pixels.ok
        self._model, self._pixels, self._augment, self._seed, self._half = model, pixels, augment, seed, half
        self._trained = np.unique(trained)
        self._shown = np.union1d(trained, tested)
        last = int(self._shown[-1]) + 1 if len(self._shown) else 0  # marked images follow the catalog's
        self._place, self._order = np.full(last, -1), np.full(last, -1)
        self._place[self._shown] = np.arange(len(self._shown))
        self._order[self._trained] = np.arange(len(self._trained))
        self._values = torch.empty(0, model.feature_width)
        self._folder = self._find_folder(cache)

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def width(self) -> int:
        """Features of an image."""
        return self._values.shape[1]

    @property
    def missing(self) -> dict[Size, int]:
        """How many crops of each size `fill` has yet to compute."""
        counts: dict[Size, int] = {}
        for number, (rows, augment) in enumerate(self._blocks()):
            file = self._file(number)
            if not len(self._values) and (file is None or not file.exists()):
                counts[augment.size] = counts.get(augment.size, 0) + len(rows)
        return counts

    def batch(self, rows: Any, device: Any = None) -> Tensor:  # noqa: ANN401
        """Return the features [B, F] of the central crops of some images."""
        return self._take(self._place[np.asarray(rows)], device)

    def draw(self, rows: Rows, *, step: int, first: int = 0, device: Any = None) -> Tensor:  # noqa: ANN401
        """Return the features [B, F] of a crop of each training image, drawn at random.

        Args:
            rows: The images.
            step: Step of the run.
            first: Position of the first one in the global batch; see `Augment`.
            device: Where they go.
        """
        crops = np.random.default_rng([self._seed, step]).integers(CROPS + 1, size=first + len(rows))[first:]
        others = len(self._shown) + (crops - 1) * len(self._trained) + self._order[rows]
        return self._take(np.where(crops == 0, self._place[rows], others), device)

    def _take(self, places: Rows, device: Any) -> Tensor:  # noqa: ANN401
        chosen = torch.from_numpy(places).to(self._values.device)
        return self._values[chosen].to(self._model.device if device is None else device).float()

    def fill(self, advance: Callable[[int], None] | None = None) -> None:
        """Compute all features, or read those that were computed before.

        Args:
            advance: Called with the numbers of crops that are computed.
        """
        crops = len(self._shown) + CROPS * len(self._trained)
        values, done = torch.empty(crops, self.width, dtype=torch.float16), 0
        for number, (rows, augment) in enumerate(self._blocks()):
            file = self._file(number)
            block = None if file is None else _read(file, len(rows))
            if block is None:
                block = self._compute(rows, augment, number)
                if file is not None:
                    _write(file, block)
                if advance is not None:
                    advance(len(rows))
            values[done : done + len(rows)] = block
            done += len(rows)
        self._values = values.to(self._model.device)

    def _file(self, number: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{number:06}.bin"

    def _blocks(self) -> Iterator[tuple[Rows, Augment]]:
        """Yield the images of each file, and what draws their crops."""
        for rows, augment in [
            (self._shown, self._model.preprocess),
            *[(self._trained, self._augment)] * CROPS,
        ]:
            for start in range(0, len(rows), BLOCK):
                yield rows[start : start + BLOCK], augment

    def _compute(self, rows: Rows, augment: Augment, number: int) -> Tensor:
        """Return the features of a block, float16 on the CPU."""
        model, was_training = self._model, self._model.training
        crop = partial(augment, seed=_SEED, step=number)
        model.eval()
        try:
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=self._half):
                inputs = model.inputs(self._pixels, rows, augment=crop)
                parts = [model.pooled(model.features(images)).half() for images in inputs]
        finally:
            model.train(was_training)
        return torch.cat(parts).cpu()

    def _find_folder(self, cache: str | os.PathLike[str] | None) -> Path | None:
        """Return the folder of these features, named after all that they depend on; None keeps nothing."""
        stores = getattr(self._pixels, "stores", [self._pixels])
        backbone = self._model.settings.backbone
        own = ":" in backbone and not backbone.startswith("timm:")  # its code may change
        if own or not all(hasattr(store, "path") for store in stores):
            return None
        about = {
            "version": [VERSION, firstpage.__version__, torch.__version__],
            "stores": [store.path.name for store in stores],
            "rows": hashlib.blake2b(self._shown.tobytes() + b"|" + self._trained.tobytes()).hexdigest(),
            "backbone": backbone_fingerprint(self._model),
            "augment": [asdict(self._augment), _SEED, CROPS, BLOCK],
            "computed": [self._half, self._model.device.type],
        }
        name = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()
        return (cache_folder() if cache is None else Path(cache)) / "features" / name


def _read(file: Path, count: int) -> Tensor | None:
    """Return the features [count, F] of a file; None if there is none, or if it is damaged."""
    try:
        with durable.open_regular(file, 2**31) as opened:
            digest, content = opened.read(_DIGEST), opened.read()
    except (OSError, ValueError):
        return None
    if hashlib.blake2b(content, digest_size=_DIGEST).digest() != digest or not content:
        return None
    return torch.frombuffer(bytearray(content), dtype=torch.float16).view(count, -1)


def _write(file: Path, block: Tensor) -> None:
    """Keep the features of a block, unless they cannot be written."""
    content = block.numpy().tobytes()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write(file, hashlib.blake2b(content, digest_size=_DIGEST).digest() + content)
