"""Training: recipes, one readable loop, and the folder of a run."""

from firstpage.training.folds import fit_folds
from firstpage.training.loop import fit
from firstpage.training.recipe import Recipe
from firstpage.training.record import Record
from firstpage.training.result import Result

__all__ = ["Recipe", "Record", "Result", "fit", "fit_folds"]
