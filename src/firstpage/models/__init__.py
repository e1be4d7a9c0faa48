"""Models: from pixels to vectors.

- `firstpage.models.backbones`: the networks of the papers by name, `small` for a CPU, any other through timm.
- `firstpage.models.weights`: what public files of weights are read with.

>>> from firstpage.models import backbones
>>> backbones.create("small").widths
(48, 96, 192)
"""

from firstpage.models import backbones, weights

__all__ = ["backbones", "weights"]
