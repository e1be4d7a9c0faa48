"""`fit`: the training loop, from top to bottom."""

import os
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from firstpage.data.catalog import Catalog
from firstpage.data.splits import unreadable_note
from firstpage.data.training_plan import BatchTooLarge
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Pixels
from firstpage.recipes.recipe import Recipe
from firstpage.runs.checkpoint import Checkpoints
from firstpage.runs.folder import RunFolder
from firstpage.training.criteria import describe_loss
from firstpage.training.defaults import complete_recipe
from firstpage.training.display import Display
from firstpage.training.duration import estimate_duration
from firstpage.training.features import uses_features
from firstpage.training.feedback import open_training_pixels
from firstpage.training.job import TrainJob
from firstpage.training.launching import join_ranks
from firstpage.training.monitor import Monitor
from firstpage.training.result import Result
from firstpage.training.setup import make_model, prepare
from firstpage.training.stopping import StopSignals, saving_if_stopped


def fit(
    recipe: Recipe,
    catalog: Catalog,
    folder: str | os.PathLike[str] | None = None,
    *,
    loss: nn.Module | None = None,
    device: str | None = None,
    pixels: Pixels | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Result:
    """Train an embedder on a catalog by a recipe. Under `torchrun`, train with all ranks of the job.

    A run that was killed resumes from its last checkpoint when called again with the same folder; on a CPU
    the result is bit-identical to that of an uninterrupted run. A finished run is not run again: its result
    is read from the folder.

    Args:
        recipe: All settings of the run.
        catalog: The images, with splits `train` and `test` (or `query` and `gallery`), or without splits.
        folder: The run folder, for the recipe, logs and models. None keeps nothing.
        loss: A loss object to use instead of the recipe's: a `Loss` of your own, or any module that is called
            as `loss(embeddings, labels)`. Each head of the model gets a copy.
        device: A torch device such as `cuda`, `cuda:1` or `cpu`. Defaults to a GPU if available.
        pixels: Stored pixels that exist already, one row for each row of the catalog.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Show progress.

    Raises:
        UserError: The recipe does not fit the data or the machine, or the folder holds another run; nothing
            has been written then. Or a step gave NaN (`NonFiniteError`); the message says what reproduces it.
        OSError: The disk is full; the last checkpoint is kept.
        Stopped: Ctrl-C or SIGTERM, after a checkpoint has been written; only in a single process.

    >>> from firstpage.data import read
    >>> recipe = Recipe.of({
    ...     "model": {"backbone": "small", "dim": 32, "stored": 48},
    ...     "batch": {"size": 32}, "schedule": {"epochs": 1}, "augment": {"flip": 0.0},
    ... })
    >>> fit(recipe, read("glyphs")).test["P@1"] > 5  # doctest: +SKIP
    True
    """
    target = resolve_device(device)
    recipe = complete_recipe(recipe, catalog)
    if loss is not None:
        recipe = replace(recipe, loss=describe_loss(loss))
    one_gpu = target.type == "cuda" and target.index is not None
    with (
        torch.cuda.device(target) if one_gpu else nullcontext(),
        join_ranks(target) as ranks,
        RunFolder(folder if ranks.is_first else None) as run,  # only the first rank writes and prints
        ExitStack() as stack,
    ):
        checkpoints = Checkpoints(run.path, recipe.train.checkpoint_every)
        if ranks.broadcast(run.is_finished(recipe, catalog)):
            checkpoints.remove_all()  # it may have been killed just before it removed them itself
            return ranks.broadcast(Result.read(run.path) if run.path else None)  # type: ignore[return-value]
        model = make_model(recipe, target)
        if pixels is None:
            # A recipe that does not fit is refused before the slow decoding, unless its remedy depends on it:
            # the largest batch is made of images that can be read.
            with suppress(BatchTooLarge):
                prepare(recipe, catalog, None, model, world_size=ranks.world_size, loss=loss)
            show = progress and ranks.is_first
            opened = open_training_pixels(catalog, cache, model.framing, recipe.train.store, progress=show)
            pixels = stack.enter_context(closing(opened)).to(target)
        ranks.barrier()  # the others may take longer to decode theirs
        setup = prepare(recipe, catalog, pixels.ok, model, world_size=ranks.world_size, loss=loss)
        ranks.broadcast_tensors([*model.state_dict().values(), *setup.criteria.state_dict().values()])
        job = TrainJob(recipe, catalog, setup, model, pixels, run, ranks, cache)
        resumable = run.path is not None and ranks.world_size == 1  # ranks do not receive signals together
        display = Display(job.steps, progress and ranks.is_first)
        with checkpoints.explain_full_disk(), StopSignals(resumable, display.print) as stop:
            with saving_if_stopped(lambda: checkpoints.save(job.state.step, job.state.state_dict())):
                _train(job, run, checkpoints, stop, display)
            result = _finish(job, run, checkpoints, stop, display)
            checkpoints.remove_all()
        stop.raise_if_received(f"stopped: {run.path} is finished")
        return result


def _train(
    job: TrainJob, run: RunFolder, checkpoints: Checkpoints, stop: StopSignals, display: Display
) -> None:
    """Train to the end, with evaluations, checkpoints and early stopping on the way."""
    recipe, catalog, state, guard = job.recipe, job.catalog, job.state, job.guard
    split, sampler, timer = job.setup.split, job.setup.sampler, job.timer
    monitor = Monitor(run, display, guard, job.detector, job.steps, job.mend)

    # Begin, or continue from the last checkpoint.
    run.lock(recipe, catalog)
    saved = job.ranks.broadcast(checkpoints.load_newest())
    if saved is None:
        # Without splits of its own, the data may grow: what was trained on must not be tested later.
        classes = [] if catalog.splits else split.train_classes(catalog)
        run.begin(recipe, catalog, str(job.model.device), classes)
    else:
        with checkpoints.explain_mismatch():
            state.load_state_dict(saved)

    with display:
        for note in [split.summary(catalog), *catalog.notes, *unreadable_note(catalog, job.pixels.ok)]:
            display.print(note)
        if state.step:
            display.print(f"resuming after step {state.step} of {job.steps}")
        elif display.show:
            display.print(estimate_duration(job))
        for phase, images, prepare_by in job.preparations():
            with display.evaluating(images, phase) as advance, stop.at_once(_stopped(job)):
                timer.resume()
                prepare_by(advance)
                timer.pause()
        if job.is_evaluation_due():  # of the untrained model, or one that was stopped
            _evaluate(job, run, stop, display)
        if state.step == job.steps or job.is_out_of_patience():
            return
        timer.resume()
        for epoch in range(sampler.epoch + 1, recipe.schedule.epochs + 1):
            job.begin_epoch(epoch)
            # Of the training images; the global batch, the same on every rank.
            for rows in job.batches.ahead(sampler, job.step.split):
                # Forward, backward, update.
                step, logged = state.step, Monitor.is_due(state.step + 1, job.steps)
                guard.begin(step, rows)
                labels, ids = job.batches.targets(rows)
                job.begin_step()
                load_images = partial(job.batches.images, rows, step)
                loss = job.step(load_images, labels, ids, step, check=guard.expect_finite)
                metrics = job.update(loss, logged=logged)
                timer.count(len(rows))
                display.step(state.step, len(rows))

                # Log what an earlier step left on the device, so that the host does not wait for this one.
                monitor.flush()
                if logged:
                    metrics |= job.step.health(labels, ids, step)
                    monitor.add(state.step, epoch, job.lr, metrics)
                job.step.push_memories(labels, ids, unless=guard.bad)

                # Stop, evaluate, save.
                evaluate, save = job.is_evaluation_due(), checkpoints.is_due()
                if evaluate or save or stop.received:
                    timer.pause()
                    monitor.flush()
                    guard.check()  # waits for the device
                    stop.raise_if_received(_stopped(job))
                    if evaluate:
                        _evaluate(job, run, stop, display)
                        if job.is_out_of_patience():
                            return
                    if save:
                        checkpoints.save(state.step, state.state_dict())
                    timer.resume()
        timer.pause()


def _stopped(job: TrainJob) -> str:
    return f"stopped after step {job.state.step}: run it again to resume"


def _evaluate(job: TrainJob, run: RunFolder, stop: StopSignals, display: Display) -> None:
    """Evaluate the model, and keep it if it is the best so far."""
    state, split = job.state, job.setup.split
    epoch = job.setup.sampler.epoch + 1 if state.step else 0
    with display.evaluating(split.validation.size) as advance, stop.at_once(_stopped(job)):
        metrics = job.evaluate(split.validation, advance)
    if epoch == 0:
        state.untrained = _test(job, stop, display, metrics)
    run.log(step=state.step, epoch=epoch, **metrics)
    display.show_evaluation(epoch, metrics)
    if state.add_evaluation(epoch, metrics, job.eval_model) and run.path is not None:
        job.eval_model.save(run.path / "best")


def _test(
    job: TrainJob, stop: StopSignals, display: Display, metrics: dict[str, float]
) -> dict[str, float] | None:
    """Return the metrics of the reported test; `metrics` are those of the validation."""
    split = job.setup.split
    if split.test is None or split.test is split.validation:
        return None if split.test is None else metrics
    with display.evaluating(split.test.size, "testing") as advance, stop.at_once(_stopped(job)):
        return job.evaluate(split.test, advance)


def _finish(
    job: TrainJob, run: RunFolder, checkpoints: Checkpoints, stop: StopSignals, display: Display
) -> Result:
    """Save the last and the best model, test the best one, and write the result."""
    state, model = job.state, job.eval_model
    separate = job.setup.split.test is not job.setup.split.validation
    if separate:
        checkpoints.save(state.step, state.state_dict())  # if the test is stopped, the model is the best one
    if run.path is not None:
        model.save(run.path / "last")
    model.load_state_dict(state.best_weights)
    if run.path is not None:
        model.save(run.path / "best")  # a run that was killed may have left a later one there
    with display:
        test = state.untrained if separate and not state.best_epoch else _test(job, stop, display, state.best)
    result = Result(
        model.eval(),
        best=state.best,
        test=test,
        untrained=state.untrained,
        epoch=state.best_epoch,
        history=state.history,
        seconds=job.timer.seconds,
        # Of a head alone it is the pace of features, which are computed once.
        images_per_second=0.0 if uses_features(job.recipe) else job.timer.images_per_second(),
        folder=run.path,
        warnings=unreadable_note(job.catalog, job.pixels.ok) + job.detector.warnings,
    )
    result.write(run, job.recipe.train.protocol)
    return result
