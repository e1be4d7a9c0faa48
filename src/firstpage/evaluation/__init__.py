"""Evaluation: exact metrics of embeddings, in bounded memory.

- `evaluate`: retrieval: precision and recall of the first page, metrics of the whole ranking, curves and
  confidence intervals.
- `cluster`: k-means, and how well its clusters agree with the classes; `agreement` for any other clusters.
- `verify`: same or different pairs by a threshold on their similarity, cross-validated in folds.
- `fit_calibration`: the probability that two images show the same class, from their cosine.
"""

from firstpage.evaluation.calibration import Calibration, fit_calibration
from firstpage.evaluation.clustering import Clustering, cluster
from firstpage.evaluation.partitions import agreement
from firstpage.evaluation.retrieval import Retrieval, evaluate
from firstpage.evaluation.verification import Verification, verify

__all__ = [
    "Calibration",
    "Clustering",
    "Retrieval",
    "Verification",
    "agreement",
    "cluster",
    "evaluate",
    "fit_calibration",
    "verify",
]
