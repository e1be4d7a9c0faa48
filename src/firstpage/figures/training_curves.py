"""A metric during training, by iterations or by sampled triplets (Sampling Wisely, Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from firstpage.errors import UserError
from firstpage.figures.style import Style, distinct_names, escape_label, make_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from firstpage.recipes.recipe import Recipe
    from firstpage.runs.record import Record

__all__ = ["plot_training_curves", "triplets_per_step"]


def triplets_per_step(recipe: Recipe) -> int:
    """Return the number of triplets that a training step samples, by the loss and batch of a recipe.

    It is the number of (query, positive, negative) that the mining of the loss selects in a full batch with
    `images_per_class` images per class (fewer of the last class):

    - one negative per selected positive (hard, semi-hard, uniform, distance weighted): as many as positives,
      even if there is no semi-hard negative;
    - all negatives: positives times negatives, summed over the queries;
    - the top-k precision loss: Σ min(k, n⁺), the most it can misplace. The paper counts |P| = |N|, those that
      are misplaced, which run folders do not record: its curve is too far right here, never too far left.

    Raises:
        UserError: The loss is over lists, proxies, clusters or distributions and samples no triplets.

    >>> from firstpage.recipes import Recipe
    >>> recipe = Recipe.of({"batch": {"size": 64, "images_per_class": 4}})
    >>> [triplets_per_step(recipe.changed([f"loss.name={name}"])) for name in ("margin", "epshn", "ep")]
    [192, 64, 3840]
    """
    from firstpage import losses, mining
    from firstpage.pairs import Pairs

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(recipe.batch.size) // recipe.batch.images_per_class
    pairs = Pairs.of(torch.randn(len(labels), 4, generator=generator), labels)
    # Learned tables of classes and images do not affect mining, and only training knows their size.
    settings = {key: value for key, value in recipe.loss.items() if key not in ("name", "classes", "images")}
    name = str(recipe.loss.get("name"))
    if name == "proxy-nca":
        settings |= {"classes": 1, "dim": 1}
    loss = losses.create(name, **settings)
    if isinstance(loss, losses.TopKPrecision):
        return int(pairs.positive.sum(dim=1).clamp_max(loss.k).sum())
    if not isinstance(loss, losses.MinedLoss):
        raise UserError(f"loss {name!r} samples no triplets: plot this run by iterations")
    mined: mining.Mined = loss.mining(pairs, generator)
    positives = mined.positive_mask.sum(dim=1)
    return int((positives if mined.paired else positives * mined.negative_mask.sum(dim=1)).sum())


def plot_training_curves(
    runs: Sequence[Record],
    metric: str = "P@1",
    by: Literal["iterations", "triplets"] = "iterations",
    *,
    style: Style | None = None,
) -> Figure:
    """Plot a metric of the evaluations during training for each run.

    Args:
        runs: Runs, as `Record.read` returns them.
        metric: Name of a logged metric.
        by: What the x axis counts: `iterations`, or `triplets` as in `triplets_per_step`.
        style: Colors. Defaults to those for light pages.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> from firstpage.runs import Record
    >>> log = [{"step": 0, "P@1": 12.5}, {"step": 10, "P@1": 40.0}]
    >>> figure = plot_training_curves([Record(Path("topk"), Recipe(), {}, log)], by="triplets")
    >>> figure.axes[0].lines[0].get_xdata().tolist()  # 128 queries, k = 1
    [0, 1280]
    """
    style = style or make_style()
    if by not in ("iterations", "triplets"):
        raise UserError(f"by={by!r}: choose iterations or triplets")
    figure, (axes,) = style.panels()
    names = distinct_names([run.folder for run in runs])
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        steps, values = run.metric_curve(metric)
        scale = triplets_per_step(run.recipe) if by == "triplets" else 1
        marker = "o" if len(steps) < 30 else ""
        axes.plot(
            [scale * step for step in steps],
            values,
            marker=marker,
            markersize=2.5,
            label=escape_label(name),
            **style.curve(number),
        )
    if by == "triplets":
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4), useMathText=True)
        axes.xaxis.get_offset_text().set(color=style.foreground, fontsize=7)
    axes.set_xlim(0, None)
    # Under the `fair` protocol a run evaluates held-out classes, and the test only once, at the end.
    fair = any(run.recipe.train.protocol == "fair" for run in runs)
    x_label = "iterations" if by == "iterations" else "sampled triplets"
    style.label(axes, x_label, f"{'held-out' if fair else 'test'} {metric} (%)")
    style.legend(axes)
    return figure
