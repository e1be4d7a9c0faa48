"""Figures: one file each."""

from firstpage.figures.retrieved_lists import retrieved_lists

__all__ = ["retrieved_lists"]
