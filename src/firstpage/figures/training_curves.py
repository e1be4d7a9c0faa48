"""A measure of the test along training, by iterations or by sampled triplets (Sampling Wisely, Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from firstpage.errors import UserError
from firstpage.figures.style import Style, apart, literal, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from firstpage.recipes.recipe import Recipe
    from firstpage.runs.record import Record

__all__ = ["plot_training_curves", "triplets_a_step"]


def triplets_a_step(recipe: Recipe) -> int:
    """How many triplets one step samples by a recipe's loss and batch.

    It is the number of (query, positive, negative) that the loss's own mining hands to it in a full batch of
    `images_per_class` images a class (the last class cut):

    - one negative a chosen positive (hard, semi-hard, uniform, distance weighted): as many as positives, also
      where a semi-hard negative was looked for and there was none;
    - all negatives: positives times negatives, summed over the queries;
    - the top-k precision loss: Σ min(k, n⁺), the most it can misplace. The paper counts |P| = |N|, those that
      are misplaced, which run folders do not tell; its curve is drawn too far right here, never too far left.

    Raises:
        UserError: the loss looks at lists, proxies, clusters or distributions: it samples no triplets.

    >>> from firstpage.recipes import Recipe
    >>> recipe = Recipe.of({"batch": {"size": 64, "images_per_class": 4}})
    >>> [triplets_a_step(recipe.changed([f"loss.name={name}"])) for name in ("margin", "epshn", "ep")]
    [192, 64, 3840]
    """
    from firstpage import losses, mining
    from firstpage.pairs import Pairs

    lots = torch.Generator().manual_seed(0)
    labels = torch.arange(recipe.batch.size) // recipe.batch.images_per_class
    pairs = Pairs.of(torch.randn(len(labels), 4, generator=lots), labels)
    # Learned tables of classes and images have no say in who is mined, and only training knows their size.
    settings = {key: value for key, value in recipe.loss.items() if key not in ("name", "classes", "images")}
    name = str(recipe.loss.get("name"))
    if name == "proxy-nca":
        settings |= {"classes": 1, "dim": 1}
    loss = losses.create(name, **settings)
    if isinstance(loss, losses.TopKPrecision):
        return int(pairs.positive.sum(dim=1).clamp_max(loss.k).sum())
    if not isinstance(loss, losses.MinedLoss):
        raise UserError(f"loss {name!r} samples no triplets: draw this run by iterations")
    mined: mining.Mined = loss.mining(pairs, lots)
    positives = mined.positive_mask.sum(dim=1)
    return int((positives if mined.paired else positives * mined.negative_mask.sum(dim=1)).sum())


def plot_training_curves(
    runs: Sequence[Record],
    measure: str = "P@1",
    by: Literal["iterations", "triplets"] = "iterations",
    *,
    look: Style | None = None,
) -> Figure:
    """A measure of the test along training, a curve for each run.

    Args:
        runs: of `Record.read`.
        measure: any that the runs logged.
        by: what is counted from left to right; triplets as `triplets_a_step` counts them.
        look: light or dark.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> from firstpage.runs import Record
    >>> log = [{"step": 0, "P@1": 12.5}, {"step": 10, "P@1": 40.0}]
    >>> figure = plot_training_curves([Record(Path("topk"), Recipe(), {}, log)], by="triplets")
    >>> figure.axes[0].lines[0].get_xdata().tolist()  # 128 queries, k = 1
    [0, 1280]
    """
    look = look or style()
    if by not in ("iterations", "triplets"):
        raise UserError(f"by={by!r}: choose iterations or triplets")
    figure, (axes,) = look.panels()
    names = apart([run.folder for run in runs])
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        steps, values = run.curve(measure)
        each = triplets_a_step(run.recipe) if by == "triplets" else 1
        marker = "o" if len(steps) < 30 else ""
        axes.plot(
            [each * step for step in steps],
            values,
            marker=marker,
            markersize=2.5,
            label=literal(name),
            **look.curve(number),
        )
    if by == "triplets":
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4), useMathText=True)
        axes.xaxis.get_offset_text().set(color=look.ink, fontsize=7)
    axes.set_xlim(0, None)
    # Under the protocol `fair` a run looks at held-out classes, and at the test only once, at the end.
    fair = any(run.recipe.train.protocol == "fair" for run in runs)
    across = "iterations" if by == "iterations" else "sampled triplets"
    look.label(axes, across, f"{'held-out' if fair else 'test'} {measure} (%)")
    look.legend(axes)
    return figure
