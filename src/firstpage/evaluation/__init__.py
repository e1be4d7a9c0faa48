"""Evaluation: how right the first page is, exactly, in bounded memory.

- `evaluate`: retrieval: precision and recall of the first page, the whole ranking, curves and intervals.
- `cluster`: k-means, and how its clusters agree with the classes; `agreement` for clusters of one's own.
- `verify`: pairs told apart by a threshold, in folds.
"""

from firstpage.evaluation.clustering import Clustering, cluster
from firstpage.evaluation.partitions import agreement
from firstpage.evaluation.retrieval import Retrieval, evaluate
from firstpage.evaluation.verification import Verification, verify

__all__ = ["Clustering", "Retrieval", "Verification", "agreement", "cluster", "evaluate", "verify"]
