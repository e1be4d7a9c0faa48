"""Deep spectral clustering loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs, full_precision


def spectral_clustering(pairs: Pairs, ridge: float = 1e-3) -> Tensor:
    """[Q]: ½‖C_i − (FF†)_i‖², how far each row of the embeddings' projector is from the clusters'.

    C = Y(YᵀY)⁻¹Yᵀ is the ideal: 1/n_c between images of one class, 0 elsewhere. FF† = F(FᵀF + λI)⁻¹Fᵀ, where
    λ is `ridge` times the mean eigenvalue of FᵀF.

    >>> clusters = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> bool(spectral_clustering(Pairs.of(clusters, torch.tensor([0, 0, 1, 1]))).sum() < 1e-4)
    True
    """
    images, dimensions = pairs.candidates.shape
    with full_precision(pairs.queries):
        # At the optimum most dimensions are unused: float32 could not factor that, float64 with a ridge can.
        # (The checked `cholesky` would wait for the device to say so.)
        queries, candidates = pairs.unit_queries.double(), pairs.unit_candidates.double()
        gram = candidates.T @ candidates  # [D, D]
        identity = torch.eye(dimensions, dtype=gram.dtype, device=gram.device)
        factor, _ = torch.linalg.cholesky_ex(gram + ridge * images / dimensions * identity)
        projector = queries @ torch.cholesky_solve(candidates.T, factor)  # [Q, C]
        same = (pairs.labels[:, None] == pairs.candidate_labels[None, :]).to(projector.dtype)
        ideal = same / same.sum(dim=1, keepdim=True).clamp_min(1)
        return ((ideal - projector).square().sum(dim=1) / 2).to(pairs.queries.dtype)


class SpectralClustering(Loss):
    """Spectral clustering loss: the embeddings should span the classes' indicator vectors, and nothing else.

    From: Law et al., Deep Spectral Clustering Learning, ICML 2017, §3; Ranked List, §2.1.2. It costs a D × D
    factorization a step. C has the rank of the batch's classes; FF† is the projector on all of F's columns,
    not on its leading singular vectors alone, so every direction that holds no class is pushed out. The
    authors compute loss and gradient in closed form from sub-matrices; here autograd does, in one piece.

    Only a batch with more images than dimensions means anything (the authors took 18 classes × 70 images):
    otherwise FF† is the identity whatever the embedding, and a smaller batch is refused. Prefer it for
    clustering with few, large classes.

    Args:
        ridge: keeps the inverse defined where dimensions are unused; relative to FᵀF's mean eigenvalue.
        reduction: over queries; the paper's loss is the sum.

    >>> batch = torch.nn.functional.normalize(torch.randn(12, 4), dim=1)
    >>> bool(SpectralClustering(reduction="sum")(batch, torch.arange(12) // 4) > 0)
    True
    """

    def __init__(self, ridge: float = 1e-3, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not ridge > 0:
            raise UserError(f"SpectralClustering(ridge={ridge}): ridge must be positive, such as 1e-3")
        self.ridge = ridge

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the squared error of each query's row of the projector."""
        images, dimensions = pairs.candidates.shape
        if images <= dimensions:
            raise UserError(
                f"embeddings: {images} images of {dimensions} dimensions: SpectralClustering needs more "
                f"images than dimensions: take batches larger than {dimensions}, or fewer dimensions"
            )
        return spectral_clustering(pairs, self.ridge)
