"""Data: from folders of images to batches.

`read` returns the `Catalog` of a dataset in any known layout, `PixelStore` decodes its images once,
`GroupSampler` plans batches of a few images from each of many classes, and `Augment` augments a batch on its
device.

>>> from firstpage import data
>>> data.kinds()[:3]
['cub', 'cars', 'sop']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.data.augment import Augment
    from firstpage.data.catalog import Catalog, VerificationPairs
    from firstpage.data.face_alignment import align_faces
    from firstpage.data.jpeg_store import JpegStore
    from firstpage.data.neighbor_sampler import NeighborSampler
    from firstpage.data.readers import describe, kinds, read
    from firstpage.data.sampler import GroupSampler
    from firstpage.data.store import PixelStore
    from firstpage.data.stream import Stream

__all__ = [
    "Augment",
    "Catalog",
    "GroupSampler",
    "JpegStore",
    "NeighborSampler",
    "PixelStore",
    "Stream",
    "VerificationPairs",
    "align_faces",
    "describe",
    "kinds",
    "read",
]

__getattr__ = lazy(
    "firstpage.data",
    {
        "Augment": "firstpage.data.augment",
        "Catalog": "firstpage.data.catalog",
        "GroupSampler": "firstpage.data.sampler",
        "JpegStore": "firstpage.data.jpeg_store",
        "NeighborSampler": "firstpage.data.neighbor_sampler",
        "PixelStore": "firstpage.data.store",
        "Stream": "firstpage.data.stream",
        "VerificationPairs": "firstpage.data.catalog",
        "align_faces": "firstpage.data.face_alignment",
        "describe": "firstpage.data.readers",
        "kinds": "firstpage.data.readers",
        "read": "firstpage.data.readers",
    },
)
