"""Distances of random points on a sphere: nearly all √2 in high dimensions (Sampling Matters, Fig. 2)."""

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, make_style
from firstpage.mining import log_density


def distance_density(distance: Tensor, dimensions: int) -> Tensor:
    """Return the density q(d) of the distance of two random points on the unit sphere.

    `mining.log_density` is log q up to a constant. u = d²/4 follows Beta((D−1)/2, (D−1)/2), whose constant
    gives that of q: 2^(D−2) · B((D−1)/2, (D−1)/2).

    Args:
        distance: Distances 0 < d < 2, of any shape.
        dimensions: Dimension D of the space of the sphere, at least 3.

    >>> distance_density(torch.tensor([0.7, 2**0.5]), 128)
    tensor([3.8659e-23, 6.3456e+00])
    """
    if dimensions < 3:
        raise UserError(f"dimensions={dimensions}: must be at least 3: below, the density is unbounded")
    half = (dimensions - 1) / 2
    constant = (dimensions - 2) * math.log(2) + 2 * math.lgamma(half) - math.lgamma(2 * half)
    return (log_density(distance.double(), dimensions) - constant).exp().to(distance.dtype)


def plot_sphere_density(
    dimensions: Sequence[int] = (4, 8, 32, 128, 512), *, style: Style | None = None
) -> Figure:
    """Plot the density of distances on spheres of several dimensions.

    >>> figure = plot_sphere_density((4, 128))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['D = 4', 'D = 128', '√2']
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    distance = torch.linspace(0, 2, 1003, dtype=torch.float64)[1:-1]
    for number, count in enumerate(dimensions):
        axes.plot(distance, distance_density(distance, count), label=f"D = {count}", **style.curve(number))
    axes.axvline(2**0.5, color=style.foreground, linewidth=0.6, linestyle=":", label="√2")
    axes.set(xlim=(0, 2), ylim=(0, None))
    style.label(axes, "distance of two random points", "density")
    style.legend(axes, loc="upper left")
    return figure
