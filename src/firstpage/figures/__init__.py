"""Figures of the papers, and `draw` for any of them by name.

For each figure, a pure function computes the values, and a function `plot_…` plots them and returns a
matplotlib `Figure`. `save` writes it as .png, .svg or .pdf; `make_style(dark=True)` is for dark pages.
They do not use pyplot or matplotlib's settings, so they can run in threads and servers.

>>> from firstpage import figures
>>> figure = figures.plot_sphere_density(dimensions=[4, 128], style=figures.make_style(dark=True))
"""

from firstpage.figures.drawing import describe, draw, names
from firstpage.figures.embedding_map import map_positions, plot_embedding_map, spread_thumbnails
from firstpage.figures.embeddings import EmbeddedImages, read_embeddings
from firstpage.figures.gradient_variance import direction_variance, plot_gradient_variance
from firstpage.figures.loss_shapes import loss_shape, paper_losses, plot_loss_shapes
from firstpage.figures.nearest_classes import nearest_by_class, plot_nearest_classes
from firstpage.figures.retrieval_curves import plot_precision_recall, plot_roc
from firstpage.figures.retrieved_lists import draw_retrieved_lists
from firstpage.figures.run_metrics import (
    by_group_size,
    plot_group_size,
    plot_training_curves,
    triplets_per_step,
)
from firstpage.figures.sampled_negatives import (
    plot_sampled_negatives,
    sampled_distances,
    simulate_classes,
)
from firstpage.figures.similarity_histograms import (
    nearest_train,
    plot_class_similarity,
    plot_train_similarity,
    same_class_similarity,
)
from firstpage.figures.sphere_density import distance_density, plot_sphere_density
from firstpage.figures.style import Style, make_style, save

__all__ = [
    "EmbeddedImages",
    "Style",
    "by_group_size",
    "describe",
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
