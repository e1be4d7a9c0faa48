"""The report: a run or a model judged on its test images, as text, JSON or one HTML page."""

from firstpage.report.measure import Estimate, Measured, measure
from firstpage.report.page import page, report, write
from firstpage.report.subject import Subject

__all__ = ["Estimate", "Measured", "Subject", "measure", "page", "report", "write"]
