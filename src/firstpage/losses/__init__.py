"""Losses: what the scores of the mined images cost. One file each, named after it.

Every loss is called as `loss(embeddings, labels)` or, against candidates of your own (a memory, other
ranks' batches, a gallery), as `loss(embeddings, labels, candidates, candidate_labels)`. `create(name)` builds
any row of the papers' tables; `names()` lists them. Each file also holds the loss as a pure function.

>>> import torch
>>> from firstpage import losses
>>> loss = losses.create("topk", k=3)
>>> embeddings = torch.randn(8, 16, requires_grad=True)
>>> loss(embeddings, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])).backward()
"""

from firstpage.losses.angular import Angular, angular
from firstpage.losses.base import Loss, MinedLoss
from firstpage.losses.binomial_deviance import BinomialDeviance, binomial_deviance
from firstpage.losses.combined import Combined
from firstpage.losses.contrastive import Contrastive, contrastive
from firstpage.losses.histogram import Histogram, histogram
from firstpage.losses.lifted_structure import LiftedStructure, lifted_structure
from firstpage.losses.margin import Margin, margin
from firstpage.losses.nca import NCA, nca
from firstpage.losses.npair import NPair, npair
from firstpage.losses.proxy_nca import ProxyNCA, proxy_nca
from firstpage.losses.ranked_list import RankedList, ranked_list
from firstpage.losses.registry import create, describe, describe_settings, names, required_arguments
from firstpage.losses.spectral_clustering import SpectralClustering, spectral_clustering
from firstpage.losses.structured_clustering import StructuredClustering, structured_clustering
from firstpage.losses.topk_precision import TopKPrecision, topk_precision
from firstpage.losses.triplet import Triplet, triplet

__all__ = [
    "NCA",
    "Angular",
    "BinomialDeviance",
    "Combined",
    "Contrastive",
    "Histogram",
    "LiftedStructure",
    "Loss",
    "Margin",
    "MinedLoss",
    "NPair",
    "ProxyNCA",
    "RankedList",
    "SpectralClustering",
    "StructuredClustering",
    "TopKPrecision",
    "Triplet",
    "angular",
    "binomial_deviance",
    "contrastive",
    "create",
    "describe",
    "describe_settings",
    "histogram",
    "lifted_structure",
    "margin",
    "names",
    "nca",
    "npair",
    "proxy_nca",
    "ranked_list",
    "required_arguments",
    "spectral_clustering",
    "structured_clustering",
    "topk_precision",
    "triplet",
]
