"""Figures: those of the papers, one module each, and `draw` for any of them by name.

Each module has a pure function that computes the values, and a function `plot_…` that plots them and returns
a matplotlib `Figure`. `save` writes it as .png, .svg or .pdf; `make_style(dark=True)` is for dark pages.
They do not use pyplot or matplotlib's settings, so they can run in threads and servers.

>>> from firstpage import figures
>>> figure = figures.plot_sphere_density(dimensions=[4, 128], style=figures.make_style(dark=True))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.figures.class_similarity import plot_class_similarity, same_class_similarity
    from firstpage.figures.drawing import draw, names
    from firstpage.figures.embedding_map import map_positions, plot_embedding_map, spread_thumbnails
    from firstpage.figures.embeddings import EmbeddedImages, read_embeddings
    from firstpage.figures.gradient_variance import direction_variance, plot_gradient_variance
    from firstpage.figures.group_size import by_group_size, plot_group_size
    from firstpage.figures.loss_shapes import loss_shape, paper_losses, plot_loss_shapes
    from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes
    from firstpage.figures.precision_recall import plot_precision_recall
    from firstpage.figures.retrieved_lists import draw_retrieved_lists
    from firstpage.figures.roc import plot_roc
    from firstpage.figures.sampled_negatives import (
        plot_sampled_negatives,
        sampled_distances,
        simulate_classes,
    )
    from firstpage.figures.sphere_density import distance_density, plot_sphere_density
    from firstpage.figures.style import Style, make_style, save
    from firstpage.figures.train_similarity import nearest_train, plot_train_similarity
    from firstpage.figures.training_curves import plot_training_curves, triplets_per_step

__all__ = [
    "EmbeddedImages",
    "Style",
    "by_group_size",
    "direction_variance",
    "distance_density",
    "draw",
    "draw_retrieved_lists",
    "loss_shape",
    "make_style",
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
    "read_embeddings",
    "same_class_similarity",
    "sampled_distances",
    "save",
    "simulate_classes",
    "spread_thumbnails",
    "triplets_per_step",
]

__getattr__ = lazy(
    "firstpage.figures",
    {
        "EmbeddedImages": "firstpage.figures.embeddings",
        "Style": "firstpage.figures.style",
        "by_group_size": "firstpage.figures.group_size",
        "direction_variance": "firstpage.figures.gradient_variance",
        "distance_density": "firstpage.figures.sphere_density",
        "draw": "firstpage.figures.drawing",
        "draw_retrieved_lists": "firstpage.figures.retrieved_lists",
        "loss_shape": "firstpage.figures.loss_shapes",
        "make_style": "firstpage.figures.style",
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
        "read_embeddings": "firstpage.figures.embeddings",
        "same_class_similarity": "firstpage.figures.class_similarity",
        "sampled_distances": "firstpage.figures.sampled_negatives",
        "save": "firstpage.figures.style",
        "simulate_classes": "firstpage.figures.sampled_negatives",
        "spread_thumbnails": "firstpage.figures.embedding_map",
        "triplets_per_step": "firstpage.figures.training_curves",
    },
)
