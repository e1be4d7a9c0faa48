"""Figures: every one the papers draw, one file each, and `draw` for any of them by name.

Each file has the numbers as a pure function, and a function `plot_…` that draws them and returns a matplotlib
`Figure`. `save` writes it as .png, .svg or .pdf; `look=style(dark=True)` makes it fit a dark page. None
of them touches pyplot or matplotlib's settings, so they may be drawn in threads and servers.

>>> from firstpage import figures
>>> figure = figures.plot_sphere_density(dimensions=[4, 128], look=figures.style(dark=True))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

# Not lazy: their files have the same name, and importing a file binds that name to the module.
from firstpage.figures.retrieved_lists import retrieved_lists
from firstpage.figures.style import Style, save, style

if TYPE_CHECKING:
    from firstpage.figures.class_similarity import plot_class_similarity, same_class_similarity
    from firstpage.figures.drawing import draw, names
    from firstpage.figures.embedded import Embedded, read_embedded
    from firstpage.figures.embedding_map import map_positions, plot_embedding_map, spread_thumbnails
    from firstpage.figures.gradient_variance import direction_variance, plot_gradient_variance
    from firstpage.figures.group_size import by_group_size, plot_group_size
    from firstpage.figures.loss_shapes import loss_shape, paper_losses, plot_loss_shapes
    from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes
    from firstpage.figures.precision_recall import plot_precision_recall
    from firstpage.figures.roc import plot_roc
    from firstpage.figures.sampled_negatives import (
        plot_sampled_negatives,
        sampled_distances,
        simulated_classes,
    )
    from firstpage.figures.sphere_density import distance_density, plot_sphere_density
    from firstpage.figures.train_similarity import nearest_train, plot_train_similarity
    from firstpage.figures.training_curves import plot_training_curves, triplets_a_step

__all__ = [
    "Embedded",
    "Style",
    "by_group_size",
    "direction_variance",
    "distance_density",
    "draw",
    "loss_shape",
    "map_positions",
    "names",
    "nearest_by_class",
    "nearest_train",
    "paper_losses",
    "plot_class_similarity",
    "plot_embedding_map",
    "plot_gradient_variance",
    "plot_group_size",
    "plot_loss_shapes",
    "plot_nearest_classes",
    "plot_precision_recall",
    "plot_roc",
    "plot_sampled_negatives",
    "plot_sphere_density",
    "plot_train_similarity",
    "plot_training_curves",
    "read_embedded",
    "retrieved_lists",
    "same_class_similarity",
    "sampled_distances",
    "save",
    "simulated_classes",
    "spread_thumbnails",
    "style",
    "triplets_a_step",
]

__getattr__ = lazy(
    "firstpage.figures",
    {
        "Embedded": "firstpage.figures.embedded",
        "by_group_size": "firstpage.figures.group_size",
        "direction_variance": "firstpage.figures.gradient_variance",
        "distance_density": "firstpage.figures.sphere_density",
        "draw": "firstpage.figures.drawing",
        "loss_shape": "firstpage.figures.loss_shapes",
        "map_positions": "firstpage.figures.embedding_map",
        "names": "firstpage.figures.drawing",
        "nearest_by_class": "firstpage.figures.nearest_classes",
        "nearest_train": "firstpage.figures.train_similarity",
        "paper_losses": "firstpage.figures.loss_shapes",
        "plot_class_similarity": "firstpage.figures.class_similarity",
        "plot_embedding_map": "firstpage.figures.embedding_map",
        "plot_gradient_variance": "firstpage.figures.gradient_variance",
        "plot_group_size": "firstpage.figures.group_size",
        "plot_loss_shapes": "firstpage.figures.loss_shapes",
        "plot_nearest_classes": "firstpage.figures.nearest_classes",
        "plot_precision_recall": "firstpage.figures.precision_recall",
        "plot_roc": "firstpage.figures.roc",
        "plot_sampled_negatives": "firstpage.figures.sampled_negatives",
        "plot_sphere_density": "firstpage.figures.sphere_density",
        "plot_train_similarity": "firstpage.figures.train_similarity",
        "plot_training_curves": "firstpage.figures.training_curves",
        "read_embedded": "firstpage.figures.embedded",
        "same_class_similarity": "firstpage.figures.class_similarity",
        "sampled_distances": "firstpage.figures.sampled_negatives",
        "simulated_classes": "firstpage.figures.sampled_negatives",
        "spread_thumbnails": "firstpage.figures.embedding_map",
        "triplets_a_step": "firstpage.figures.training_curves",
    },
)
