"""Random groups of classes, which the networks of a DREML ensemble are trained on (METHODS §11)."""

import numpy as np
from numpy.typing import NDArray

from firstpage.errors import UserError


def group_classes(labels: NDArray[np.int64], groups: int, *key: int) -> NDArray[np.int64]:
    """Return the group of each image when the classes are divided at random into groups of equal size.

    From: Xuan et al., Deep Randomized Ensembles for Metric Learning, ECCV 2018. Sizes differ by at most one
    class. Images of a class stay together.

    Args:
        labels: [N] Classes of the images, from 0 without gaps.
        groups: Number of groups, the meta-classes.
        key: What the division is drawn by: the seed, and the number of the network.

    Raises:
        UserError: There are fewer than two groups, or fewer classes than groups.

    >>> group_classes(np.array([0, 0, 1, 2, 3, 3]), 2, 7).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    classes = int(labels.max()) + 1
    if not 2 <= groups <= classes:
        raise UserError(
            f"train.meta_classes={groups}: must be in 2..{classes}, the number of training classes; "
            "0 trains on the classes themselves"
        )
    order = np.random.default_rng(key).permutation(classes)
    group_of = np.empty(classes, np.int64)
    group_of[order] = np.arange(classes) % groups
    return group_of[labels]
