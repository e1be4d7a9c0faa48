"""Training: recipes, one readable loop, and the folder of a run."""

from firstpage.training.folds import fit_folds
from firstpage.training.loop import Result, fit
from firstpage.training.recipe import Recipe

__all__ = ["Recipe", "Result", "fit", "fit_folds"]
