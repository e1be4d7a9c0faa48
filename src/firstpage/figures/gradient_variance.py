"""How noisy the push on a negative is, by its distance (Sampling Matters, Fig. 3a)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firstpage.errors import UserError
from firstpage.figures.style import Style, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["direction_variance", "plot_gradient_variance"]

Floats = NDArray[np.float64]


def direction_variance(
    distance: Floats, noise: float, dimensions: int = 128, *, draws: int = 2**15, seed: int = 0
) -> Floats:
    """The nuclear norm of the covariance of the direction in which a negative is pushed, at each distance.

    The direction is (a − n′)/‖a − n′‖, where n′ is the negative's embedding n with noise z ~ N(0, σ²I),
    back on the sphere. 1 is a random direction, 0 a certain one. A covariance has no negative eigenvalue, so
    its nuclear norm is its trace; a direction has length 1, so that is 1 − ‖mean‖².

    All but two coordinates of the mean vanish by symmetry. What the others do to a draw is their joint
    length, σ·χ of D − 2 degrees of freedom: three numbers a draw, in any dimension.

    Args:
        distance: ‖a − n‖, from 0 to 2.
        noise: σ, of each coordinate: ‖z‖ is about σ√D.
        dimensions: D, at least 3.
        draws: how many z are drawn, the same for every distance, so that the curve is smooth.
        seed: of the draws.

    >>> direction_variance(np.array([0.1, 0.5, 1.4]), noise=0.02).round(2)
    array([0.82, 0.16, 0.02])
    """
    if dimensions < 3:
        raise UserError(f"dimensions={dimensions}: must be at least 3")
    if not noise > 0:
        raise UserError(f"noise={noise}: must be positive")
    lots = np.random.default_rng(seed)
    along, across = noise * lots.standard_normal((2, draws))
    aside = noise**2 * lots.chisquare(dimensions - 2, draws)
    variance = np.empty(len(distance))
    for place, angle in enumerate(2 * np.arcsin(np.asarray(distance) / 2)):
        x, y = np.cos(angle) + along, np.sin(angle) + across  # n + z, the anchor being (1, 0, 0…)
        length = np.sqrt(x**2 + y**2 + aside)
        x, y = x / length, y / length
        gap = np.sqrt(2 - 2 * x)  # ‖a − n′‖
        variance[place] = 1 - ((1 - x) / gap).mean() ** 2 - (y / gap).mean() ** 2
    return variance


def plot_gradient_variance(
    noises: Sequence[float] = (0.01, 0.02, 0.05, 0.1), dimensions: int = 128, *, look: Style | None = None
) -> Figure:
    """Variance of the gradient's direction against the negative's distance, for several levels of noise.

    >>> figure = plot_gradient_variance((0.05,))
    >>> figure.axes[0].lines[0].get_label()
    'σ = 0.05'
    """
    look = look or style()
    figure, (axes,) = look.panels()
    distance = np.linspace(0, 2**0.5, 72)
    for number, noise in enumerate(noises):
        variance = direction_variance(distance, noise, dimensions)
        axes.plot(distance, variance, label=f"σ = {noise:g}", **look.curve(number))
    axes.set(xlim=(0, 2**0.5), ylim=(0, 1.02))
    look.label(axes, "distance of the negative", "variance of the gradient’s direction")
    look.legend(axes, loc="upper right")
    return figure
