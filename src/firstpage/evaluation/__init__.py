"""Evaluation: how right the first page is, exactly, in bounded memory."""

from firstpage.evaluation.retrieval import Retrieval, evaluate

__all__ = ["Retrieval", "evaluate"]
