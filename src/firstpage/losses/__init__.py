"""Losses: what the scores of the mined images cost. One file each, named after it.

Every loss is called as `loss(embeddings, labels)` or, against candidates of your own (a memory, other
ranks' batches, a gallery), as `loss(embeddings, labels, candidates, candidate_labels)`. `create(name)` builds
any row of the papers' tables, and the losses that came later; `names()` lists them. Each file also holds the
loss as a pure function.

>>> import torch
>>> from firstpage import losses
>>> loss = losses.create("topk", k=3)
>>> embeddings = torch.randn(8, 16, requires_grad=True)
>>> loss(embeddings, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])).backward()
"""

from firstpage.losses.angular import Angular, angular
from firstpage.losses.base import Loss, MinedLoss
from firstpage.losses.binomial_deviance import BinomialDeviance, binomial_deviance
from firstpage.losses.circle import Circle, circle
from firstpage.losses.combined import Combined
from firstpage.losses.contrastive import Contrastive, contrastive
from firstpage.losses.diversity import (
    ActivationDiversity,
    AdversarialDiversity,
    Divergence,
    activation_overlap,
    create_diversity,
    divergence,
)
from firstpage.losses.ensemble import Ensemble
from firstpage.losses.hierarchical_triplet import HierarchicalTriplet, hierarchical_triplet
from firstpage.losses.histogram import Histogram, histogram
from firstpage.losses.lifted_structure import LiftedStructure, lifted_structure
from firstpage.losses.margin import Margin, margin
from firstpage.losses.multi_similarity import MultiSimilarity, multi_similarity
from firstpage.losses.nca import NCA, nca
from firstpage.losses.npair import NPair, npair
from firstpage.losses.pair_similarity import PairSimilarity
from firstpage.losses.pddm import PDDM, pddm
from firstpage.losses.proxies import ProxyLoss
from firstpage.losses.proxy_anchor import ProxyAnchor, proxy_anchor
from firstpage.losses.proxy_nca import ProxyNCA, proxy_nca
from firstpage.losses.ranked_list import RankedList, ranked_list
from firstpage.losses.recall_at_k import RecallAtK, recall_at_k, simix
from firstpage.losses.registry import create, describe, describe_settings, names, required_arguments
from firstpage.losses.roadmap import Roadmap, roadmap
from firstpage.losses.smooth_ap import SmoothAP, smooth_ap
from firstpage.losses.soft_triple import SoftTriple, soft_triple
from firstpage.losses.spectral_clustering import SpectralClustering, spectral_clustering
from firstpage.losses.structured_clustering import StructuredClustering, structured_clustering
from firstpage.losses.supervised_contrastive import SupervisedContrastive, supervised_contrastive
from firstpage.losses.topk_precision import TopKPrecision, topk_precision
from firstpage.losses.triplet import Triplet, triplet

__all__ = [
    "NCA",
    "PDDM",
    "ActivationDiversity",
    "AdversarialDiversity",
    "Angular",
    "BinomialDeviance",
    "Circle",
    "Combined",
    "Contrastive",
    "Divergence",
    "Ensemble",
    "HierarchicalTriplet",
    "Histogram",
    "LiftedStructure",
    "Loss",
    "Margin",
    "MinedLoss",
    "MultiSimilarity",
    "NPair",
    "PairSimilarity",
    "ProxyAnchor",
    "ProxyLoss",
    "ProxyNCA",
    "RankedList",
    "RecallAtK",
    "Roadmap",
    "SmoothAP",
    "SoftTriple",
    "SpectralClustering",
    "StructuredClustering",
    "SupervisedContrastive",
    "TopKPrecision",
    "Triplet",
    "activation_overlap",
    "angular",
    "binomial_deviance",
    "circle",
    "contrastive",
    "create",
    "create_diversity",
    "describe",
    "describe_settings",
    "divergence",
    "hierarchical_triplet",
    "histogram",
    "lifted_structure",
    "margin",
    "multi_similarity",
    "names",
    "nca",
    "npair",
    "pddm",
    "proxy_anchor",
    "proxy_nca",
    "ranked_list",
    "recall_at_k",
    "required_arguments",
    "roadmap",
    "simix",
    "smooth_ap",
    "soft_triple",
    "spectral_clustering",
    "structured_clustering",
    "supervised_contrastive",
    "topk_precision",
    "triplet",
]
