"""firstpage: image embeddings for visual search whose first page of results is right.

Labeled images go in, an embedding whose first page of results is right comes out, and everything is
measured on the way.

- `firstpage.data`: images, labels and splits; from files to batches.
- `firstpage.Pairs`: who is compared with whom, the one object every method reads.
- `firstpage.mining`: who is looked at (positive strategies × negative strategies).
- `firstpage.losses`: what their scores cost.
- `firstpage.models`: backbones, and the embedder that turns images into unit vectors.
- `firstpage.recipes`: every setting of a run, as data.
- `firstpage.training`: the loop that runs a recipe; `firstpage.runs` reads and opens what it wrote.
- `firstpage.evaluation`: how right the first page is; `firstpage.figures` draws it.
- `firstpage.report`: the evaluation of a run or model on its test images, as text, JSON or one HTML page.

`read`, `fit` and `Embedder` are here as well: they are what most programs begin with.

>>> import torch
>>> from firstpage import losses
>>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
>>> loss = losses.create("topk", k=3)
>>> loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage import data, evaluation, figures, losses, mining, models, recipes, report, runs, training
    from firstpage.data import read
    from firstpage.errors import UserError
    from firstpage.models import Embedder
    from firstpage.pairs import Pairs
    from firstpage.recipes import Recipe
    from firstpage.training import fit

__version__ = "0.1.0"

__all__ = [
    "Embedder",
    "Pairs",
    "Recipe",
    "UserError",
    "__version__",
    "data",
    "evaluation",
    "figures",
    "fit",
    "losses",
    "mining",
    "models",
    "read",
    "recipes",
    "report",
    "runs",
    "training",
]

__getattr__ = lazy(
    "firstpage",
    {
        "Embedder": "firstpage.models",
        "Pairs": "firstpage.pairs",
        "Recipe": "firstpage.recipes",
        "UserError": "firstpage.errors",
        "data": "firstpage.data",
        "evaluation": "firstpage.evaluation",
        "figures": "firstpage.figures",
        "fit": "firstpage.training",
        "losses": "firstpage.losses",
        "mining": "firstpage.mining",
        "models": "firstpage.models",
        "read": "firstpage.data",
        "recipes": "firstpage.recipes",
        "report": "firstpage.report",
        "runs": "firstpage.runs",
        "training": "firstpage.training",
    },
)
