"""Reports: the evaluation of a run or model on its test images, as text, JSON or an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
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

_EVALUATION, _PAGE = "firstpage.report.evaluation", "firstpage.report.page"  # only pages need matplotlib
__getattr__ = lazy(
    "firstpage.report",
    {
        name: _PAGE if name in ("render_page", "write_page", "write_report") else _EVALUATION
        for name in __all__
    },
)
