"""Training: one readable loop, and everything a step is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.training.folds import fit_folds
    from firstpage.training.loop import fit
    from firstpage.training.reproduction import reproduce
    from firstpage.training.result import Result

__all__ = ["Result", "fit", "fit_folds", "reproduce"]

__getattr__ = lazy(
    "firstpage.training",
    {
        "Result": "firstpage.training.result",
        "fit": "firstpage.training.loop",
        "fit_folds": "firstpage.training.folds",
        "reproduce": "firstpage.training.reproduction",
    },
)
