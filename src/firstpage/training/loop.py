"""`fit`: the training loop, from top to bottom."""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from firstpage.data.catalog import Catalog
from firstpage.data.splits import unreadable_note
from firstpage.data.store import PixelStore, to_device
from firstpage.losses.base import Loss
from firstpage.models.device import choose
from firstpage.models.embedder import Embedder, Pixels
from firstpage.pairs import Pairs
from firstpage.recipes.recipe import Recipe
from firstpage.runs.checkpoint import Checkpoints
from firstpage.runs.folder import Run
from firstpage.training import health
from firstpage.training.clock import Clock
from firstpage.training.compiling import compiled
from firstpage.training.criteria import total
from firstpage.training.display import Display
from firstpage.training.gradient_caching import Levels, backward
from firstpage.training.guard import Guard, Scene, gradients
from firstpage.training.optimizer import follow, make_optimizer, rate
from firstpage.training.plan import make_plan
from firstpage.training.ranks import Ranks, started, sync_batch_norm
from firstpage.training.result import Result
from firstpage.training.seeding import draws

__all__ = ["fit"]

LOG_EVERY = 20  # steps between looks at the loss


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
    """Train an embedder by a recipe on a catalog. Under `torchrun`, with all ranks of the job.

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
        UserError: the recipe does not fit the data or the machine, or the folder holds another run; nothing
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
    place = choose(device)
    current = torch.cuda.device(place) if place.type == "cuda" and place.index is not None else nullcontext()
    with current, started(place) as ranks, Run(folder if ranks.first else None) as run:
        return _fit(recipe, catalog, run, place, pixels, cache, progress and ranks.first, ranks)


def _fit(
    recipe: Recipe,
    catalog: Catalog,
    run: Run,
    place: torch.device,
    pixels: Pixels | None,
    cache: str | os.PathLike[str] | None,
    progress: bool,
    ranks: Ranks,
) -> Result:
    """What `fit` does on each rank. Only the first one writes and prints."""
    seed = recipe.train.seed
    checkpoints = Checkpoints(run.folder, recipe.train.checkpoint_every)
    if ranks.told(run.finished(recipe, catalog)):
        checkpoints.clear()  # it may have been killed between its last word and this
        return ranks.told(Result.read(run.folder) if run.folder else None)  # type: ignore[return-value]
    torch.manual_seed(seed)
    model = Embedder(recipe.model).to(place)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.train.sync_batch_norm:
        sync_batch_norm(model)
    if pixels is None:
        # What is wrong is said before an hour of decoding.
        make_plan(recipe, catalog, None, model, ranks.world)
        pixels = PixelStore.build(
            catalog, cache, size=recipe.model.stored, resize=recipe.model.resize, progress=progress
        ).to(place)
    ranks.wait()  # however long the others take to decode theirs
    plan = make_plan(recipe, catalog, pixels.ok, model, ranks.world)
    roles, labels, sampler, augment, criteria, memories = plan
    ranks.agree([*model.state_dict().values(), *criteria.state_dict().values()])
    measure = [torch.compile(part) if recipe.train.compile else part for part in criteria]
    whole = recipe.batch.chunk == 0
    embed = compiled(model.raw, place, replay=whole) if recipe.train.compile else model.raw
    half = place.type == "cuda" if recipe.train.half is None else recipe.train.half
    image_ids = torch.from_numpy(roles.train).to(place)
    optimizer, rates = make_optimizer(recipe.optimizer, model, criteria)
    learned = list(model.parameters())  # listed once: a network of many parts is slow to walk through
    backbone = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    average = copy.deepcopy(model) if recipe.train.ema else None
    means = list(average.state_dict().values()) if average is not None else []
    values = list(model.state_dict().values())

    steps = recipe.schedule.epochs * len(sampler)
    interval = recipe.train.evaluate_steps or recipe.train.evaluate_every * len(sampler)
    result = Result(model, {}, None, 0, folder=run.folder)
    best_weights: dict[str, Tensor] = {}
    clock, watch = Clock(place), health.Watch()
    step, stale, stopped = 0, 0, False
    notes = unreadable_note(catalog, pixels.ok)

    parts: dict[str, Any] = {
        "model": model,
        "loss": criteria,
        "optimizer": optimizer,
        "sampler": sampler,
        "memories": nn.ModuleList(memories),
        "watch": watch,
    } | ({"average": average} if average is not None else {})
    run.claim(recipe, catalog)
    saved = ranks.told(checkpoints.newest())
    if saved is None:
        run.begin(recipe, catalog, str(place), [] if catalog.splits else roles.train_classes(catalog))
    else:
        with checkpoints.fitting():
            for own, group in zip(
                optimizer.param_groups, saved["parts"]["optimizer"]["param_groups"], strict=True
            ):
                group["fused"] = own["fused"]  # which goes by the device, and this may be another one
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

    def inputs(rows: list[int], step: int, first: int = 0) -> Tensor:
        """Images of a step as the network sees them, from the place `first` of the global batch on."""
        return augment(pixels.batch(roles.train[rows], place), seed=seed, step=step, first=first)

    def embedded(rows: list[int], share: slice, at: slice) -> Levels:
        """The levels of some of this rank's images."""
        images = inputs(rows[share][at], step, share.start + at.start)
        with torch.autocast(place.type, torch.bfloat16, enabled=half):
            levels: Levels = embed(images)
        return levels

    everyone: list[Tensor] = []  # the levels of the last global batch

    def measured(target: Tensor, ids: Tensor, levels: Levels) -> Tensor:
        """The loss of the global batch, of which `levels` are this rank's."""
        nonlocal everyone
        everyone = [ranks.gather(level, len(ids)) for level in levels]
        guard.expect(*everyone)
        with draws(place, "loss", seed, step):  # the same lots on all ranks
            return total(measure, everyone, target, ids, memories)

    scene = Scene(recipe, catalog, model, criteria, memories, roles.train, labels, inputs, half, ranks)
    guard = Guard(scene, place, run.folder)
    guard.protect(optimizer)

    def judge(epoch: int) -> bool:
        """Measure the model; whether it is the best so far."""
        ranks.agree((average or model).buffers())  # running statistics of batch norms are each rank's own
        figures = ranks.evaluate(average or model, pixels, catalog.labels, roles.validation, half)
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

    unread: list[tuple[int, int, float, health.Reading]] = []

    def look(epoch: int, target: Tensor, ids: Tensor, loss: Tensor, norm: Tensor) -> None:
        """Have the device measure how the step went; the host reads it once it has given out more work."""
        level, part = everyone[-1].detach(), cast(Loss, criteria[-1])
        more = memories[-1].candidates(level, target, ids) if memories else {"image_ids": ids}
        with draws(place, "loss", seed, step - 1):  # to look must not change what comes
            found = health.measure(part, Pairs.of(level, target, **more))
        reading = health.Reading({"loss": loss, "gradient_norm": norm, "verdict": guard.verdict} | found)
        unread.append((step, epoch, optimizer.param_groups[0]["lr"], reading))
        if guard.eager:
            read()

    def read() -> None:
        """Log what was seen."""
        while unread:
            at, epoch, lr, reading = unread.pop()
            figures = reading.values()
            guard.judge(figures.pop("verdict"))
            run.log(step=at, epoch=epoch, lr=lr, **figures)
            display.advance(at, figures["loss"], clock.pace())
            if warning := watch.see(at, figures, last=at == steps):
                run.log(step=at, warning=warning)
                display.say(warning)

    stoppable = checkpoints.stoppable() if ranks.world == 1 else nullcontext()
    with stoppable, checkpoints.explaining():
        with Display(steps, progress) as display:
            display.say(roles.summary(catalog))
            for warning in notes:
                display.say(warning)
            if saved is None:
                judge(0)
            else:
                display.say(f"goes on after step {step} of {steps}")
            clock.resume()
            for epoch in range(sampler.epoch + 1, recipe.schedule.epochs + 1):
                model.train()
                for parameter in backbone:
                    parameter.requires_grad_(epoch > recipe.schedule.head_epochs)
                if recipe.train.compile and 1 < epoch == recipe.schedule.head_epochs + 1:
                    optimizer.zero_grad(set_to_none=True)
                    torch.compiler.reset()  # torch 2.11 does not notice that parameters begin to learn
                for rows in sampler:  # of the global batch, planned alike by every rank
                    guard.begin(step, rows)
                    batch = to_device(torch.tensor(rows), place)
                    target, ids, share = labels[batch], image_ids[batch], ranks.share(len(rows))
                    for group, base in zip(optimizer.param_groups, rates, strict=True):
                        group["lr"] = base * rate(recipe.schedule, step, steps)
                    optimizer.zero_grad(set_to_none=True)
                    loss = backward(
                        model,
                        partial(embedded, rows, share),
                        partial(measured, target, ids),
                        len(rows[share]),
                        recipe.batch.chunk,
                        key=("dropout", seed, step, share.start),
                    )
                    ranks.add_gradients(learned, criteria.parameters())
                    looking = (step + 1) % LOG_EVERY == 0 or step + 1 == steps
                    if looking or recipe.optimizer.clip:
                        norm = nn.utils.get_total_norm(gradients(learned))
                    if recipe.optimizer.clip:
                        nn.utils.clip_grads_with_norm_(learned, recipe.optimizer.clip, norm)
                    guard.end(loss, gradients([*learned, *criteria.parameters()]))
                    optimizer.step()
                    if average is not None:
                        follow(means, values, recipe.train.ema)
                    step += 1
                    clock.count(len(rows))
                    read()
                    if looking:
                        look(epoch, target, ids, loss, norm)
                    for memory, level in zip(memories, everyone, strict=False):
                        memory.push(level, target, ids, unless=guard.bad)
                    if step % interval == 0 or step == steps:
                        clock.pause()
                        read()
                        guard.look()
                        stale = 0 if judge(epoch) else stale + 1
                        model.train()
                        clock.resume()
                        stopped = bool(recipe.train.patience) and stale >= recipe.train.patience
                        if stopped:
                            break
                    if checkpoints.due():
                        clock.pause()
                        read()
                        guard.look()
                        checkpoints.save(step, state())
                        clock.resume()
                if stopped:
                    break
            clock.pause()

        final = average or model
        if run.folder is not None:
            final.save(run.folder / "last")
        final.load_state_dict(best_weights)
        result.model = final.eval()
        if run.folder is not None:
            final.save(run.folder / "best")  # a run that was killed may have left a later one there
        result.seconds, result.images_per_second = clock.seconds, clock.pace()
        result.warnings = notes + watch.warnings
        same = roles.test is roles.validation
        if roles.test is not None:
            result.test = (
                result.best if same else ranks.evaluate(final, pixels, catalog.labels, roles.test, half)
            )
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
