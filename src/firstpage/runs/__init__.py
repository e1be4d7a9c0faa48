"""Run folders: what a training run writes, and how it is read again."""

from firstpage.runs.record import Record

__all__ = ["Record"]
