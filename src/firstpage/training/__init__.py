"""Training: recipes, one readable loop, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.training.folds import fit_folds
    from firstpage.training.loop import fit
    from firstpage.training.recipe import Recipe
    from firstpage.training.record import Record
    from firstpage.training.result import Result

__all__ = ["Recipe", "Record", "Result", "fit", "fit_folds"]

__getattr__ = lazy(
    "firstpage.training",
    {
        "Recipe": "firstpage.training.recipe",
        "Record": "firstpage.training.record",
        "Result": "firstpage.training.result",
        "fit": "firstpage.training.loop",
        "fit_folds": "firstpage.training.folds",
    },
)
