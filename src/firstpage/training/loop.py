"""`fit`: the training loop, from top to bottom."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from firstpage import losses
from firstpage.data.augment import Augment
from firstpage.data.cache import cache_folder
from firstpage.data.catalog import Catalog
from firstpage.data.sampler import GroupSampler
from firstpage.data.store import PixelStore, sent, staging
from firstpage.models.embedder import Embedder, Pixels
from firstpage.training.display import Display
from firstpage.training.optimiser import make_optimiser, rate
from firstpage.training.recipe import Recipe
from firstpage.training.run import Run
from firstpage.training.splits import assign

__all__ = ["Result", "fit"]

LOG_EVERY = 20  # steps between looks at the loss: each look waits for the device


@dataclass
class Result:
    """What a run came to.

    Attributes:
        model: the embedder, with its best weights.
        best: the figures of the selection test at its best evaluation.
        test: the figures of the test that is reported (under `paper` the same).
        epoch: the epoch of the best evaluation, counted from 1; 0 is the untrained model.
        history: the figures of every evaluation, the untrained model's first.
        seconds: time spent in training steps.
        images_per_second: over all training steps but the first few.
        folder: the run folder.
    """

    model: Embedder
    best: dict[str, float]
    test: dict[str, float] | None
    epoch: int
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    images_per_second: float = 0.0
    folder: Path | None = None

    def text(self) -> str:
        """Before and after, as a small table."""
        before, after = self.history[0], self.test or self.best
        names = [name for name in ("P@1", "P@5", "P@10", "R@4", "R@8", "MAP@R") if name in after]
        lines = [f"{'':10}" + "".join(f"{name:>7}" for name in names)]
        for title, figures in (("untrained", before), ("trained", after)):
            lines.append(f"{title:10}" + "".join(f"{figures[name]:7.1f}" for name in names))
        lines.append(
            f"best at epoch {self.epoch}; {self.seconds:.0f} s, {self.images_per_second:,.0f} images/s"
        )
        if self.folder is not None:
            lines.append(f"model in {self.folder / 'best'}")
        return "\n".join(lines)


def fit(
    recipe: Recipe,
    catalog: Catalog,
    folder: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    pixels: Pixels | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Result:
    """Train an embedder by a recipe on a catalog.

    Args:
        recipe: all that decides the run.
        catalog: the images, with splits `train` and `test` (or `query` and `gallery`), or none at all.
        folder: the run folder, for what ran, logs and models; None keeps nothing.
        device: `cuda`, `cpu`; a GPU where there is one if left out.
        pixels: stored pixels that are there already, row by row those of the catalog.
        cache: where stores of pixels are kept; the user's cache if left out.
        progress: show progress.

    Raises:
        ValueError: the recipe does not fit the data or the machine. Nothing has been written then.

    >>> from firstpage.data import read
    >>> recipe = Recipe.of({
    ...     "model": {"backbone": "small", "dim": 32, "stored": 48},
    ...     "batch": {"size": 32}, "schedule": {"epochs": 1}, "augment": {"flip": 0.0},
    ... })
    >>> fit(recipe, read("glyphs")).test["P@1"] > 5  # doctest: +SKIP
    True
    """
    place = _device(device)
    torch.manual_seed(recipe.train.seed)
    model = Embedder(recipe.model).to(place)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if pixels is None:
        stores = Path(cache) if cache is not None else cache_folder() / "pixels"
        pixels = PixelStore.build(
            catalog, stores, size=recipe.model.stored, resize=recipe.model.resize, progress=progress
        ).to(place)
    roles = assign(catalog, pixels.ok, recipe.train)
    # Classes are numbered anew among the training images: proxies and β have no gaps then.
    names, codes = np.unique(catalog.labels[roles.train], return_inverse=True)
    labels = torch.from_numpy(codes)
    sampler = GroupSampler(
        codes,
        recipe.batch.size,
        recipe.batch.images_per_class,
        oversample=recipe.batch.oversample,
        seed=recipe.train.seed,
    )
    criteria = _criteria(recipe, model, len(names), len(catalog)).to(place)
    measure = [torch.compile(part) if recipe.train.compile else part for part in criteria]
    labels, image_ids = labels.to(place), torch.from_numpy(roles.train).to(place)
    augment = _augment(recipe, model)
    optimiser, rates = make_optimiser(recipe.optimiser, model, criteria)
    backbone = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    average = copy.deepcopy(model) if recipe.train.ema else None
    embed = torch.compile(model.raw) if recipe.train.compile else model.raw
    half = recipe.train.precision == "bf16" or (recipe.train.precision == "auto" and place.type == "cuda")

    run = Run(folder)
    run.begin(recipe, catalog, str(place))
    steps = recipe.schedule.epochs * len(sampler)
    result = Result(model, {}, None, 0, folder=run.folder)
    best_weights: dict[str, Tensor] = {}
    clock = _Clock(place)
    step = 0

    def judge(epoch: int) -> bool:
        """Measure the model; whether it is the best so far."""
        figures = roles.select.measure(average or model, pixels, catalog.labels)
        run.log(step=step, epoch=epoch, **figures)
        display.evaluated(epoch, figures)
        result.history.append({"epoch": epoch} | figures)
        if result.best and figures["P@1"] <= result.best["P@1"]:
            return False
        result.best, result.epoch = figures, epoch
        best_weights.update({k: v.detach().clone() for k, v in (average or model).state_dict().items()})
        if run.folder is not None:
            (average or model).save(run.folder / "best")
        return True

    with Display(steps, progress) as display:
        judge(0)
        stale = 0
        for epoch in range(1, recipe.schedule.epochs + 1):
            model.train()
            for parameter in backbone:
                parameter.requires_grad_(epoch > recipe.schedule.head_epochs)
            for rows in sampler:
                batch = sent(staged(rows, place), place)
                images = augment(pixels.batch(roles.train[rows], place), seed=recipe.train.seed, step=step)
                for group, base in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = base * rate(recipe.schedule, step, steps)
                with torch.autocast(place.type, torch.bfloat16, enabled=half):
                    levels = embed(images)
                target, ids = labels[batch], image_ids[batch]
                loss = sum(
                    part(level, target, image_ids=ids) for part, level in zip(measure, levels, strict=True)
                )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                if recipe.optimiser.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), recipe.optimiser.clip)
                optimiser.step()
                if average is not None:
                    _follow(average, model, recipe.train.ema)
                step += 1
                clock.count(len(rows))
                if step % LOG_EVERY == 0 or step == steps:
                    value = loss.item()
                    run.log(step=step, epoch=epoch, loss=value, lr=optimiser.param_groups[0]["lr"])
                    display.advance(step, value, clock.pace())
            if epoch % recipe.train.evaluate_every == 0 or epoch == recipe.schedule.epochs:
                clock.pause()
                stale = 0 if judge(epoch) else stale + 1
                clock.resume()
                if recipe.train.patience and stale >= recipe.train.patience:
                    break
        clock.pause()

    final = average or model
    if run.folder is not None:
        final.save(run.folder / "last")
    final.load_state_dict(best_weights)
    result.model = final.eval()
    result.seconds, result.images_per_second = clock.seconds, clock.pace()
    same = roles.test is roles.select
    if roles.test is not None:
        result.test = result.best if same else roles.test.measure(final, pixels, catalog.labels)
    run.end(
        protocol=recipe.train.protocol,
        best=result.best,
        test=result.test,
        epoch=result.epoch,
        seconds=round(result.seconds, 2),
        images_per_second=round(result.images_per_second, 1),
    )
    return result


def staged(rows: list[int], device: torch.device) -> Tensor:
    """Rows in memory from which they can be sent to `device` without waiting for it.

    >>> staged([3, 1], torch.device("cpu"))
    tensor([3, 1])
    """
    return staging((len(rows),), torch.int64, device).copy_(torch.tensor(rows))


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device={name!r}: torch sees no GPU here: leave it out, or install a CUDA build of torch"
        )
    return torch.device(name)


def _criteria(recipe: Recipe, model: Embedder, classes: int, images: int) -> nn.ModuleList:
    """The loss of each level, told the number of classes, images and dimensions where it asks for them."""
    settings = dict(recipe.loss)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("loss.name: say which, such as loss.name='topk'; losses.names() lists all")
    if name == "proxy-nca":
        settings = {"classes": classes, "dim": model.dim // len(model.heads)} | settings
    for key, count in (("classes", classes), ("images", images)):
        if settings.get(key) is True:
            settings[key] = count
        elif key in settings and settings[key] < count:
            raise ValueError(
                f"loss.{key}={settings[key]}: the data has {count}: write loss.{key}=true to fit it"
            )
    return nn.ModuleList(losses.create(name, **settings) for _ in model.heads)


def _augment(recipe: Recipe, model: Embedder) -> Augment:
    settings = recipe.augment
    return Augment(
        model.preprocess.size,
        settings.crop,  # type: ignore[arg-type]
        settings.scale,
        settings.ratio,
        settings.flip,
        settings.jitter,
        model.backbone.mean,
        model.backbone.std,
        fused=recipe.train.compile,
    )


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1 - decay)
        else:
            mean.copy_(value)


class _Clock:
    """Seconds spent in steps, and the pace without the first few, which warm up."""

    WARM_UP = 10

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = self._warm_seconds = 0.0
        self._steps = self._images = 0
        self._since = time.perf_counter()

    def count(self, images: int) -> None:
        self._steps += 1
        if self._steps == self.WARM_UP:
            self._warm_seconds = self._elapsed()
        if self._steps > self.WARM_UP:
            self._images += images

    def pace(self) -> float:
        spent = self._elapsed() - self._warm_seconds
        return self._images / spent if self._images and spent > 0 else 0.0

    def pause(self) -> None:
        self.seconds = self._elapsed()
        self._since = float("nan")

    def resume(self) -> None:
        self._since = time.perf_counter()

    def _elapsed(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        running = time.perf_counter() - self._since
        return self.seconds + (running if running == running else 0.0)
