"""Variance of the gradient of a negative, by its distance (Sampling Matters, Fig. 3a)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from firstpage.errors import UserError
from firstpage.figures.style import Style, plot_curves

Floats = NDArray[np.float64]


def direction_variance(
    distance: Floats, noise: float, dimensions: int = 128, *, samples: int = 2**15, seed: int = 0
) -> Floats:
    """Return the nuclear norm of the covariance of a negative's gradient direction, at each distance.

    The direction is (a − n′)/‖a − n′‖, where n′ is the negative's embedding n with noise z ~ N(0, σ²I),
    normalized. 1 is a random direction, 0 a fixed one. A covariance has no negative eigenvalues, so its
    nuclear norm is its trace; a direction has length 1, so that is 1 − ‖mean‖².

    All but two coordinates of the mean vanish by symmetry. The others only enter a sample by their joint
    length, σ·χ with D − 2 degrees of freedom: three numbers per sample, in any dimension.

    Args:
        distance: ‖a − n‖, from 0 to 2.
        noise: Standard deviation σ of each coordinate: ‖z‖ is about σ√D.
        dimensions: Dimension D of the embedding, at least 3.
        samples: Number of samples of z, the same for every distance, so that the curve is smooth.
        seed: Seed of the samples.

    >>> direction_variance(np.array([0.1, 0.5, 1.4]), noise=0.02).round(2)
    array([0.82, 0.16, 0.02])
    """
    if dimensions < 3:
        raise UserError(f"dimensions={dimensions}: must be at least 3")
    if not noise > 0:
        raise UserError(f"noise={noise}: must be positive")
    generator = np.random.default_rng(seed)
    noise_x, noise_y = noise * generator.standard_normal((2, samples))
    rest = noise**2 * generator.chisquare(dimensions - 2, samples)  # squared length of the other coordinates
    variance = np.empty(len(distance))
    for position, angle in enumerate(2 * np.arcsin(np.asarray(distance) / 2)):
        x, y = np.cos(angle) + noise_x, np.sin(angle) + noise_y  # n + z, for the anchor (1, 0, 0…)
        length = np.sqrt(x**2 + y**2 + rest)
        x, y = x / length, y / length
        gap = np.sqrt(2 - 2 * x)  # ‖a − n′‖
        variance[position] = 1 - ((1 - x) / gap).mean() ** 2 - (y / gap).mean() ** 2
    return variance


def plot_gradient_variance(
    noises: Sequence[float] = (0.01, 0.02, 0.05, 0.1), dimensions: int = 128, *, style: Style | None = None
) -> Figure:
    """Plot the variance of the gradient's direction against the negative's distance, by noise level.

    >>> figure = plot_gradient_variance((0.05,))
    >>> figure.axes[0].lines[0].get_label()
    'σ = 0.05'
    """
    distance = np.linspace(0, 2**0.5, 72)
    curves = {
        f"σ = {noise:g}": (distance, direction_variance(distance, noise, dimensions)) for noise in noises
    }
    labels = "distance of the negative", "variance of the gradient’s direction"
    return plot_curves(curves, labels, style, legend="upper right", xlim=(0, 2**0.5), ylim=(0, 1.02))
