"""Training: one readable loop, and everything a step is made of."""

from firstpage.training.folds import fit_folds
from firstpage.training.loop import fit
from firstpage.training.reproduction import reproduce
from firstpage.training.result import Result

__all__ = ["Result", "fit", "fit_folds", "reproduce"]
