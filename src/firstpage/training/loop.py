"""`fit`: the training loop, from top to bottom."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firstpage.data.augment import Augment
from firstpage.data.cache import cache_folder
from firstpage.data.catalog import Catalog
from firstpage.data.sampler import GroupSampler
from firstpage.data.store import PixelStore, sent, staging
from firstpage.models.embedder import Embedder, Pixels
from firstpage.pairs import Pairs
from firstpage.training import health
from firstpage.training.checkpoint import Checkpoints, Draws
from firstpage.training.clock import Clock
from firstpage.training.criteria import make_criteria
from firstpage.training.display import Display
from firstpage.training.guard import Guard, Scene, gradient_norm
from firstpage.training.optimiser import make_optimiser, rate
from firstpage.training.recipe import Recipe
from firstpage.training.result import Result
from firstpage.training.run import Run
from firstpage.training.splits import assign

__all__ = ["fit"]

LOG_EVERY = 20  # steps between looks at the loss: each look waits for the device


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

    A run that was killed goes on where it stood when it is called again with the same folder; on a CPU it
    ends in the same bytes as if nothing had happened. A run that is finished is not run again: its result is
    read from the folder.

    Args:
        recipe: all that decides the run.
        catalog: the images, with splits `train` and `test` (or `query` and `gallery`), or none at all.
        folder: the run folder, for what ran, logs and models; None keeps nothing.
        device: `cuda`, `cpu`; a GPU where there is one if left out.
        pixels: stored pixels that are there already, row by row those of the catalog.
        cache: where stores of pixels are kept; the user's cache if left out.
        progress: show progress.

    Raises:
        ValueError: the recipe does not fit the data or the machine, or the folder holds another run; nothing
            has been written then. Or a step came to NaN (`NotFiniteError`), and tells what reproduces it.
        OSError: the disk is full; the last checkpoint is kept.

    >>> from firstpage.data import read
    >>> recipe = Recipe.of({
    ...     "model": {"backbone": "small", "dim": 32, "stored": 48},
    ...     "batch": {"size": 32}, "schedule": {"epochs": 1}, "augment": {"flip": 0.0},
    ... })
    >>> fit(recipe, read("glyphs")).test["P@1"] > 5  # doctest: +SKIP
    True
    """
    place = _device(device)
    run = Run(folder)
    checkpoints = Checkpoints(run.folder, recipe.train.checkpoint_every)
    if run.finished(recipe, catalog):
        checkpoints.clear()  # it may have been killed between its last word and this
        return Result.of(run)
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
    criteria = make_criteria(recipe, model, len(names), len(catalog)).to(place)
    measure = [torch.compile(part) if recipe.train.compile else part for part in criteria]
    labels, image_ids = labels.to(place), torch.from_numpy(roles.train).to(place)
    augment = _augment(recipe, model)
    optimiser, rates = make_optimiser(recipe.optimiser, model, criteria)
    backbone = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    average = copy.deepcopy(model) if recipe.train.ema else None
    embed = torch.compile(model.raw) if recipe.train.compile else model.raw
    half = recipe.train.precision == "bf16" or (recipe.train.precision == "auto" and place.type == "cuda")

    steps = recipe.schedule.epochs * len(sampler)
    result = Result(model, {}, None, 0, folder=run.folder)
    best_weights: dict[str, Tensor] = {}
    clock = Clock(place)
    watch, draws = health.Watch(), Draws(criteria, place)
    step = stale = 0

    parts: dict[str, Any] = {
        "model": model,
        "loss": criteria,
        "optimiser": optimiser,
        "sampler": sampler,
        "watch": watch,
        "draws": draws,
    } | ({"average": average} if average is not None else {})
    saved = checkpoints.newest()
    if saved is None:
        run.begin(recipe, catalog, str(place))
    else:
        for name, part in parts.items():
            part.load_state_dict(saved["parts"][name])
        step, stale, best_weights = saved["step"], saved["stale"], saved["best_weights"]
        result.best, result.epoch, result.history = saved["best"], saved["epoch"], saved["history"]
        clock.seconds = saved["seconds"]
        run.go_on(saved["log"])

    def state() -> dict[str, Any]:
        """All that a killed run needs to go on from here."""
        return {
            "parts": {name: part.state_dict() for name, part in parts.items()},
            "step": step,
            "stale": stale,
            "best": result.best,
            "epoch": result.epoch,
            "history": result.history,
            "best_weights": best_weights,
            "seconds": clock.spent(),
            "log": run.logged(),
        }

    def inputs(rows: list[int], step: int) -> Tensor:
        """The images of a step, as the network sees them."""
        return augment(pixels.batch(roles.train[rows], place), seed=recipe.train.seed, step=step)

    scene = Scene(recipe, catalog, model, criteria, roles.train, labels, inputs, half)
    guard = Guard(draws, scene, run.folder)
    guard.protect(optimiser)

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

    with Display(steps, progress) as display, checkpoints.explaining():
        if saved is None:
            judge(0)
        else:
            display.say(f"goes on after step {step} of {steps}")
        for epoch in range(sampler.epoch + 1, recipe.schedule.epochs + 1):
            model.train()
            for parameter in backbone:
                parameter.requires_grad_(epoch > recipe.schedule.head_epochs)
            for rows in sampler:
                batch = sent(staged(rows, place), place)
                guard.begin(step, rows)
                images = inputs(rows, step)
                for group, base in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = base * rate(recipe.schedule, step, steps)
                with torch.autocast(place.type, torch.bfloat16, enabled=half):
                    levels = embed(images)
                guard.expect(*levels)
                target, ids = labels[batch], image_ids[batch]
                loss = sum(
                    part(level, target, image_ids=ids) for part, level in zip(measure, levels, strict=True)
                )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                norm = gradient_norm(model, place)
                if recipe.optimiser.clip:
                    nn.utils.clip_grads_with_norm_(model.parameters(), recipe.optimiser.clip, norm)
                guard.expect(loss, norm, gradient_norm(criteria, place), last=True)
                optimiser.step()
                if average is not None:
                    _follow(average, model, recipe.train.ema)
                step += 1
                clock.count(len(rows))
                if step % LOG_EVERY == 0 or step == steps:
                    with draws.kept():  # to look must not change what comes
                        deepest = Pairs.of(levels[-1].detach(), target, image_ids=ids)
                        found = health.measure(criteria[-1], deepest)  # type: ignore[arg-type]
                    figures = health.values(
                        {"loss": loss, "gradient_norm": norm, "verdict": guard.verdict} | found
                    )
                    guard.judge(figures.pop("verdict"))
                    run.log(step=step, epoch=epoch, lr=optimiser.param_groups[0]["lr"], **figures)
                    display.advance(step, figures["loss"], clock.pace())
                    if warning := watch.see(step, figures):
                        run.log(step=step, warning=warning)
                        display.say(warning)
                if checkpoints.due():
                    guard.look()
                    checkpoints.save(step, state())
            if epoch % recipe.train.evaluate_every == 0 or epoch == recipe.schedule.epochs:
                clock.pause()
                guard.look()
                stale = 0 if judge(epoch) else stale + 1
                clock.resume()
                if recipe.train.patience and stale >= recipe.train.patience:
                    break
        clock.pause()

    final = average or model
    with checkpoints.explaining():
        if run.folder is not None:
            final.save(run.folder / "last")
        final.load_state_dict(best_weights)
        result.model = final.eval()
        result.seconds, result.images_per_second = clock.seconds, clock.pace()
        result.warnings = watch.warnings
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
            warnings=result.warnings,
        )
    checkpoints.clear()
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
