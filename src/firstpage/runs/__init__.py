"""Run folders: what a training run writes, and how to read it and open its model and data again."""

from firstpage.runs.opening import OpenRun, open_run
from firstpage.runs.record import Record

__all__ = ["OpenRun", "Record", "open_run"]
