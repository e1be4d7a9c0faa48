"""Metrics of runs: during training (Sampling Wisely, Fig. 4) and by group size (Easy Positive, Fig. 4)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from matplotlib.figure import Figure

from firstpage import losses, mining
from firstpage.errors import UserError
from firstpage.figures.style import Style, distinct_names, escape_label, make_style
from firstpage.pairs import Pairs
from firstpage.recipes.recipe import Recipe
from firstpage.runs.record import Record


def triplets_per_step(recipe: Recipe) -> int:
    """Return the number of triplets that a training step samples, by the loss and batch of a recipe.

    It is the number of (query, positive, negative) that the mining of the loss selects in a full batch with
    `images_per_class` images per class (fewer of the last class):

    - one negative per selected positive (hard, semi-hard, uniform, distance weighted): as many as positives,
      even if there is no semi-hard negative;
    - all negatives: positives times negatives, summed over the queries;
    - the top-k precision loss: Σ min(k, n⁺) over its pages, the most it can misplace. The paper counts
      |P| = |N|, those that are misplaced, which run folders do not record: its curve is too far right here,
      never too far left.

    Raises:
        UserError: The loss is over lists, proxies, clusters or distributions and samples no triplets.

    >>> recipe = Recipe.of({"batch": {"size": 64, "images_per_class": 4}})
    >>> [triplets_per_step(recipe.changed([f"loss.name={name}"])) for name in ("margin", "epshn", "ep")]
    [192, 64, 3840]
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(recipe.batch.images) // recipe.batch.images_per_class
    pairs = Pairs.of(torch.randn(len(labels), 4, generator=generator), labels)
    # Learned tables of classes and images do not affect mining, and only training knows their size.
    learned = ("name", "classes", "images", "dim")
    settings = {key: value for key, value in recipe.loss.items() if key not in learned}
    name = str(recipe.loss.get("name"))
    loss = losses.create(name, **dict.fromkeys(losses.required_arguments(name), 1) | settings)
    if isinstance(loss, losses.TopKPrecision):
        pages = loss.k if isinstance(loss.k, tuple) else (loss.k,)
        return int(sum(pairs.positive.sum(dim=1).clamp_max(page).sum() for page in pages))
    if not isinstance(loss, losses.MinedLoss) or isinstance(loss, losses.MultiSimilarity):
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
    >>> log = [{"step": 0, "P@1": 12.5}, {"step": 10, "P@1": 40.0}]
    >>> recipe = Recipe.of({"loss": {"name": "topk", "k": 1}})
    >>> figure = plot_training_curves([Record(Path("topk"), recipe, {}, log)], by="triplets")
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
        curve = style.curve(number) | {"marker": "o" if len(steps) < 30 else "", "markersize": 2.5}
        axes.plot([scale * step for step in steps], values, label=escape_label(name), **curve)
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


def by_group_size(runs: Sequence[Record], metric: str = "R@1") -> dict[str, dict[int, list[float]]]:
    """Return loss → images per class → the metric of each such run, sorted.

    Raises:
        UserError: A run did not log the metric.

    >>> from pathlib import Path
    >>> recipe = Recipe().changed(["loss.name=epshn", "batch.images_per_class=8"])
    >>> tests = {"R@1": 60.0}, {"R@1": 61.0}
    >>> by_group_size([Record(Path("a"), recipe, {"result": {"test": test}}, []) for test in tests])
    {'epshn': {8: [60.0, 61.0]}}
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run in sorted(
        runs, key=lambda run: (str(run.recipe.loss["name"]), run.recipe.batch.images_per_class)
    ):
        sizes = values.setdefault(str(run.recipe.loss["name"]), {})
        sizes.setdefault(run.recipe.batch.images_per_class, []).append(run.final_metric(metric))
    return values


def plot_group_size(
    values: Mapping[str, Mapping[int, Sequence[float]]], metric: str = "R@1", *, style: Style | None = None
) -> Figure:
    """Plot a metric against the group size for each loss: the mean of its runs, and their range.

    Args:
        values: Loss → images per class → metrics, as `by_group_size` returns them.
        metric: Name of the metric, for the axis.
        style: Colors. Defaults to those for light pages.

    >>> figure = plot_group_size({"epshn": {2: [50.0], 4: [54.0, 56.0]}})
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [50.0, 55.0]
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, sizes) in enumerate(values.items()):
        counts = sorted(sizes)
        mean = [sum(sizes[size]) / len(sizes[size]) for size in counts]
        curve = style.curve(number)
        axes.plot(counts, mean, marker="os^Dv<"[number % 6], markersize=3, label=escape_label(name), **curve)
        low, high = ([extreme(sizes[size]) for size in counts] for extreme in (min, max))
        axes.vlines(counts, low, high, color=curve["color"], linewidth=0.8)
    ticks = sorted({size for sizes in values.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.set_xticks([], minor=True)
    style.label(axes, "images per class in the batch", f"{metric} (%)")
    style.legend(axes)
    return figure
