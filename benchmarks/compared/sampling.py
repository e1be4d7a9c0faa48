"""Batches of several images a class for an epoch, beside pytorch-metric-learning's sampler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compared import OURS, PML, Case, Options, has
from firstpage.data.sampler import GroupSampler

SETS = {"cub": (100, 5_864), "online-products": (11_318, 59_551)}  # classes, images


def cases(options: Options) -> Iterator[Case]:
    """An epoch of batches of 128, four images a class, of every data set's size."""
    if not has("pytorch_metric_learning"):
        return
    from pytorch_metric_learning.samplers import MPerClassSampler

    for name, (classes, images) in SETS.items():
        if not options.wants("sampling", name):
            continue
        labels = np.arange(images) % classes
        ours = GroupSampler(labels, 128, 4)
        theirs = MPerClassSampler(labels, 4, 128, images)
        yield Case(
            name,
            f"{images:,} images",
            {OURS: lambda ours=ours: list(ours), PML: lambda theirs=theirs: list(theirs)},
            note="they draw a class's images anew each time; here a class goes through all of its images",
        )
