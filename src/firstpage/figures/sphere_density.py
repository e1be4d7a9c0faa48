"""How far apart points of a sphere are: nearly all √2, in many dimensions (Sampling Matters, Fig. 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, style
from firstpage.mining import log_density

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["distance_density", "plot_sphere_density"]


def distance_density(distance: Tensor, dimensions: int) -> Tensor:
    """The density q(d) of the distance of two random points of the unit sphere, at each of `distance`.

    `mining.log_density` is log q up to a constant. With u = d²/4, u follows Beta((D−1)/2, (D−1)/2), whose
    constant gives that of q: 2^(D−2) · B((D−1)/2, (D−1)/2).

    Args:
        distance: any number of distances, 0 < d < 2.
        dimensions: D, of the space the sphere lies in; at least 3.

    >>> distance_density(torch.tensor([0.7, 2**0.5]), 128)
    tensor([3.8659e-23, 6.3456e+00])
    """
    if dimensions < 3:
        raise UserError(f"dimensions={dimensions}: the density has a bound from 3 dimensions on")
    half = (dimensions - 1) / 2
    constant = (dimensions - 2) * math.log(2) + 2 * math.lgamma(half) - math.lgamma(2 * half)
    return (log_density(distance.double(), dimensions) - constant).exp().to(distance.dtype)


def plot_sphere_density(
    dimensions: Sequence[int] = (4, 8, 32, 128, 512), *, look: Style | None = None
) -> Figure:
    """Density of distances on spheres of several dimensions.

    >>> figure = plot_sphere_density((4, 128))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['D = 4', 'D = 128', '√2']
    """
    look = look or style()
    figure, (axes,) = look.panels()
    distance = torch.linspace(0, 2, 1003, dtype=torch.float64)[1:-1]
    for number, count in enumerate(dimensions):
        axes.plot(distance, distance_density(distance, count), label=f"D = {count}", **look.curve(number))
    axes.axvline(2**0.5, color=look.ink, linewidth=0.6, linestyle=":", label="√2")
    axes.set(xlim=(0, 2), ylim=(0, None))
    look.label(axes, "distance of two random points", "density")
    look.legend(axes, loc="upper left")
    return figure
