"""Reports: the evaluation of a run or model on its test images, as text, JSON or an HTML page."""

from firstpage.report.evaluation import EmbeddedTest, Estimate, Evaluation, embed_test, evaluate_test
from firstpage.report.page import render_page, write_page, write_report

__all__ = [
    "EmbeddedTest",
    "Estimate",
    "Evaluation",
    "embed_test",
    "evaluate_test",
    "render_page",
    "write_page",
    "write_report",
]
