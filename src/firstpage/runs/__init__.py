"""Run folders: what a training run writes, and how to read it and open its model and data again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy
from firstpage.runs.record import Record

if TYPE_CHECKING:
    from firstpage.runs.opening import OpenRun, open_run

__all__ = ["OpenRun", "Record", "open_run"]

__getattr__ = lazy(
    "firstpage.runs", {"OpenRun": "firstpage.runs.opening", "open_run": "firstpage.runs.opening"}
)
