"""Run folders: what a training run writes, and how to read it and open its model and data again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.runs.opening import OpenRun, open_run
    from firstpage.runs.record import Record

__all__ = ["OpenRun", "Record", "open_run"]

__getattr__ = lazy(
    "firstpage.runs",
    {
        "OpenRun": "firstpage.runs.opening",
        "Record": "firstpage.runs.record",
        "open_run": "firstpage.runs.opening",
    },
)
