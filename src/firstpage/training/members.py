"""An ensemble of networks, trained one after another, and kept as one model (DREML)."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from statistics import harmonic_mean

from firstpage.data.catalog import Catalog
from firstpage.data.splits import DataSplit, QueryGallery, unreadable_note
from firstpage.data.training_plan import BatchTooLarge, plan_training
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Embedder, Pixels, framing_of
from firstpage.models.ensemble import combine
from firstpage.recipes.recipe import Recipe
from firstpage.runs.folder import RunFolder
from firstpage.training.defaults import complete_recipe
from firstpage.training.feedback import open_training_pixels
from firstpage.training.launching import join_ranks
from firstpage.training.loop import fit
from firstpage.training.ranks import Ranks
from firstpage.training.result import Result
from firstpage.training.setup import prepare


def fit_members(
    recipe: Recipe,
    catalog: Catalog,
    folder: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    pixels: Pixels | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Result:
    """Train the `train.members` networks of a recipe, one after another, and combine them into one model.

    Each is a run of its own, in `member-0`, `member-1`, … of the run folder, with other batches and, with
    `train.meta_classes`, on other groups of classes. Called again with the same folder, a network that is
    finished is not trained again, and one that was stopped is resumed. The combined model is tested as that
    of any run; `best` of the run folder holds it.

    Args:
        recipe: All settings; `model.dim` is that of each network.
        catalog: The images.
        folder: The run folder. None keeps nothing.
        device: See `fit`.
        pixels: See `fit`.
        cache: See `fit`.
        progress: See `fit`.

    Raises:
        UserError: As `fit` does.
        Stopped: As `fit` does.

    >>> from firstpage.data import read
    >>> recipe = Recipe().changed(["train.members=4", "train.meta_classes=12", "loss.name=proxy-nca"])
    >>> fit_members(recipe, read("glyphs")).model.dim  # doctest: +SKIP
    2048
    """
    target, recipe = resolve_device(device), complete_recipe(recipe, catalog)
    with (
        join_ranks(target) as ranks,
        RunFolder(folder if ranks.is_first else None) as run,
        ExitStack() as stack,
    ):
        if ranks.broadcast(run.is_finished(recipe, catalog)):
            return ranks.broadcast(Result.read(run.path) if run.path else None)  # type: ignore[return-value]
        # A recipe that does not fit is refused before anything is decoded or written.
        with suppress(BatchTooLarge):
            prepare(recipe, catalog, None, Embedder(recipe.model), world_size=ranks.world_size)
        if pixels is None:
            framing, show = framing_of(recipe.model), progress and ranks.is_first
            opened = open_training_pixels(catalog, cache, framing, recipe.train.store, progress=show)
            pixels = stack.enter_context(closing(opened)).to(target)
        split, _ = plan_training(recipe, catalog, pixels.ok)
        run.lock(recipe, catalog)
        run.begin(recipe, catalog, str(target), [] if catalog.splits else split.train_classes(catalog))
        members = []
        for member in range(recipe.train.members):
            own = replace(recipe, train=replace(recipe.train, member=member))
            place = None if folder is None else Path(folder, f"member-{member}")
            members.append(
                fit(own, catalog, place, device=device, pixels=pixels, cache=cache, progress=progress)
            )
            members[-1].model.to(target)  # one that was read is elsewhere
        result = _combine(members, recipe, catalog, split, pixels, ranks)
        result.folder = run.path
        if run.path is not None:
            run.log(step=recipe.train.members, **result.history[0])
            result.model.save(run.path / "best")
        result.write(run, recipe.train.protocol)
        return result


def _combine(
    members: Sequence[Result],
    recipe: Recipe,
    catalog: Catalog,
    split: DataSplit,
    pixels: Pixels,
    ranks: Ranks,
) -> Result:
    """Combine the best models of all runs, and test the whole."""
    model = combine([member.model for member in members])

    def test(rows: QueryGallery) -> dict[str, float]:
        return ranks.evaluate(model, pixels, catalog.labels, rows, recipe.train.half)

    best = test(split.validation)
    same = split.test is split.validation
    return Result(
        model,
        best=best,
        test=best if same else None if split.test is None else test(split.test),
        epoch=max(member.epoch for member in members),
        history=[{"epoch": recipe.schedule.epochs} | best],
        seconds=sum(member.seconds for member in members),
        images_per_second=harmonic_mean([member.images_per_second for member in members]),
        warnings=unreadable_note(catalog, pixels.ok),
    )
