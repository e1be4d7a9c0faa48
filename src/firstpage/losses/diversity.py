"""Diversity: what keeps the learners of an ensemble apart, beside their losses.

An ensemble of equal learners is worth no more than one of them. Each term here looks at the vectors that the
learners give to the same images, and at no label. All are 0-dimensional, in float32 even under autocast.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.pairs import full_precision, scale_gradient, unit

HIDDEN = 512  # units of a regressor's hidden layer, as in A-BIER


def activation_overlap(learners: Sequence[Tensor]) -> Tensor:
    """Σ_{i<j} of the mean over images, and over dimensions k of i and l of j, of (f_ik f_jl)².

    From: Opitz et al., BIER, ICCV 2017, activation loss: on an image that one learner responds to, the others
    should be silent. There the rows of the embedding layer are held at length 1, so that silence on all
    images is no answer. Here every learner is divided by the root mean square of its entries over the batch,
    which does the same for any head.

    Args:
        learners: [B, dim] of each learner, not normalized.

    >>> loud, silent = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0], [3.0]])
    >>> activation_overlap([loud, silent]), activation_overlap([loud, silent.flip(0)])
    (tensor(0.), tensor(2.))
    """
    # Σ_kl (f_ik f_jl)² is the product of the squared lengths.
    energies = [_precise(vectors).square().mean(dim=1) for vectors in learners]  # [B] of each
    means = [energy.mean() for energy in energies]
    relative = [
        energy / mean.masked_fill(mean == 0, 1.0) for energy, mean in zip(energies, means, strict=True)
    ]
    return torch.stack([(one * other).mean() for one, other in combinations(relative, 2)]).sum()


def divergence(learners: Sequence[Tensor], margin: float = 1.0) -> Tensor:
    """Σ_{i<j} of the mean over images of [margin − d²]₊, d the distance of an image's two unit vectors.

    From: Kim et al., Attention-based Ensemble for Deep Metric Learning, ECCV 2018, Eq. 6.

    Args:
        learners: [B, dim] of each learner.
        margin: The squared distance at which two learners are left alone.

    >>> one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6]])
    >>> divergence([one, other, one])
    tensor(2.2000)
    """
    vectors = [unit(_precise(part)) for part in learners]
    terms = [(margin - (one - other).square().sum(dim=1)).relu() for one, other in combinations(vectors, 2)]
    return torch.stack([term.mean() for term in terms]).sum()


class ActivationDiversity(nn.Module):
    """`activation_overlap` as a module.

    >>> ActivationDiversity()([torch.ones(1, 2), torch.ones(1, 3)])
    tensor(1.)
    """

    def forward(self, learners: Sequence[Tensor]) -> Tensor:
        """The term of the vectors of each learner."""
        with full_precision(learners[0]):
            return activation_overlap(learners)


class Divergence(nn.Module):
    """`divergence` as a module, for learners of one size.

    Args:
        margin: The squared distance at which two learners are left alone, 0 < margin <= 4.

    >>> Divergence()([torch.ones(1, 2), torch.ones(1, 2)])
    tensor(1.)
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        if not 0 < margin <= 4:
            raise UserError(f"ensemble.margin={margin}: is a squared distance on the sphere, 0 < margin <= 4")
        self.margin = margin

    def forward(self, learners: Sequence[Tensor]) -> Tensor:
        """The term of the vectors of each learner."""
        with full_precision(learners[0]):
            return divergence(learners, self.margin)


class _Regressor(nn.Module):
    """Two linear layers, each with rows of length 1 and a bias of at most that length."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(source, HIDDEN), nn.Linear(HIDDEN, target)

    def forward(self, vectors: Tensor) -> Tensor:
        for layer in (self.hidden, self.output):
            vectors = vectors if layer is self.hidden else vectors.relu()
            length = torch.linalg.vector_norm(layer.bias).clamp_min(1.0)
            vectors = F.linear(vectors, unit(layer.weight), layer.bias / length)
        return vectors


class AdversarialDiversity(nn.Module):
    """Regressors that tell one learner from another, and learners that make this hard.

    From: Opitz et al., Deep Metric Learning with BIER, PAMI 2018 (A-BIER). A network of two layers for each
    pair i < j maps the vector of j to the dimensions of i, and raises the mean of (f_i ∘ h(f_j))²; the
    gradient that reaches the learners is reversed, so they lower it. There penalties hold the rows of the
    regressors at length 1 and their biases at most at that; here they are divided by their lengths. Learners
    are unit vectors times √dim, so that none gets away by becoming short.

    The value is negative: the regressors' loss. At test the regressors are gone.

    Args:
        dims: Dimensions of each learner.

    >>> term = AdversarialDiversity([2, 3])
    >>> learners = [torch.ones(4, 2, requires_grad=True), torch.ones(4, 3)]
    >>> bool(term(learners) < 0), len(term.regressors)
    (True, 1)
    """

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.regressors = nn.ModuleList(
            _Regressor(source, target) for target, source in combinations(dims, 2)
        )

    def forward(self, learners: Sequence[Tensor]) -> Tensor:
        """The term of the vectors of each learner."""
        with full_precision(learners[0]):
            reversed_ = [
                scale_gradient(unit(_precise(part)) * part.shape[1] ** 0.5, -1.0) for part in learners
            ]
            terms = []
            for regressor, (target, source) in zip(self.regressors, combinations(reversed_, 2), strict=True):
                terms.append(-(target * regressor(source)).square().mean())
            return torch.stack(terms).sum()


def create_diversity(name: str, dims: Sequence[int], margin: float = 1.0) -> nn.Module | None:
    """The term of that name, for learners of these dimensions.

    Args:
        name: `activation`, `adversarial`, `divergence` or `none`.
        dims: Dimensions of each learner.
        margin: That of `divergence`.

    >>> create_diversity("divergence", [64, 64], margin=0.5).margin
    0.5
    """
    if name == "none":
        return None
    if len(dims) < 2:
        raise UserError(
            f"ensemble.diversity={name!r}: the model has one learner: set model.head=split and "
            "model.learners, or ensemble.diversity=none"
        )
    if name == "activation":
        return ActivationDiversity()
    if name == "adversarial":
        return AdversarialDiversity(dims)
    if name != "divergence":
        raise UserError(
            f"ensemble.diversity={name!r}: choose one of activation, adversarial, divergence, none"
        )
    if len(set(dims)) > 1:
        raise UserError(
            f"ensemble.diversity='divergence': compares learners of one size, not {list(dims)}: choose "
            "activation or adversarial"
        )
    return Divergence(margin)


def _precise(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))
