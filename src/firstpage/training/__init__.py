"""The training loop and its parts."""

from firstpage.training.folds import fit_folds
from firstpage.training.loop import fit
from firstpage.training.members import fit_members
from firstpage.training.nonfinite import NonFiniteError
from firstpage.training.reproduction import reproduce
from firstpage.training.result import Result
from firstpage.training.stopping import Stopped

__all__ = ["NonFiniteError", "Result", "Stopped", "fit", "fit_folds", "fit_members", "reproduce"]
