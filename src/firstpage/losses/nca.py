"""The easy positive family: NCA over mined positives and negatives (Easy Positive)."""

from torch import Generator, Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction, masked_logsumexp, masked_mean
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy
from firstpage.pairs import Pairs


def nca(pairs: Pairs, mined: Mined, temperature: float = 0.1) -> Tensor:
    """[Q]: −log( e^{s_ap/τ} / (e^{s_ap/τ} + Σ_n e^{s_an/τ}) ), averaged over a query's positives.

    Easy Positive, §4. (`NCA` leaves copies of the query out first, by `pairs.without_copies`.)

    >>> import torch
    >>> from firstpage.mining import mine
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> nca(pairs, mine(pairs, "easy", "hard"))
    tensor([0.1269, 1.7839, 0.0000])
    """
    positive, negative = mined.of_both(pairs.similarity)
    if mined.paired:
        excess = (negative - positive) / temperature
    else:
        everyone = masked_logsumexp(negative, mined.negative_mask, scale=1 / temperature)
        excess = everyone[:, None] - positive / temperature
    # −log(e^p / (e^p + e^n)) = log(1 + e^(n−p))
    return masked_mean(F.softplus(excess), mined.comparable)


class NCA(MinedLoss):
    """NCA loss over mined images: the easy positive family and its hard and batch-all siblings.

    | positives × negatives | all        | hard | semihard |
    |-----------------------|------------|------|----------|
    | easy                  | EP         | EPHN | EPSHN    |
    | hard                  | HP         | HPHN |          |
    | all                   | BA         |      |          |

    From: Xuan et al., Improved Embeddings with Easy Positive Triplet Mining, WACV 2020, §4. With two images
    a class EP, HP and BA coincide, and the paper calls them N-pair.

    Prefer EPSHN, the default, where classes have several looks (males and females of a bird): a query must be
    near some image of its class, not near all. It wants 4 to 16 images a class. An anchor without a semi-hard
    negative is dropped, that is, its term is 0.

    EPHN and EPSHN want features to begin with. From random weights the easiest positive and the negative next
    to it are neighbors by chance: the loss stays about log 2 and learns slowly (on glyphs P@1 goes from 0.9
    to 3.8 in 8 epochs; with EP to 7.9 in 4). Without pretrained weights begin with EP or top-k precision.

    The paper's equations leave the temperature out; its text sets it to 0.1. The released code sums over the
    batch, so its learning rate of 5e-4 at batch 128 is about 0.06 for the mean used here. Like it, candidates
    more similar than `copies` are not taken as positives, so that an image repeated in the batch is not its
    own easiest positive.

    Args:
        temperature: τ.
        positives: positive strategy.
        negatives: negative strategy.
        copies: similarity above which a candidate is a copy of the query.
        mining: a strategy for both sides, in place of the two.
        generator: for strategies that draw.
        reduction: over queries.

    >>> import torch
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> NCA()(points, torch.tensor([0, 0, 1, 1]))
    tensor(0.1269)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        positives: str | PositiveStrategy = "easy",
        negatives: str | NegativeStrategy = "semihard",
        copies: float = 0.9999,
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(positives, negatives, mining, generator, reduction)
        if not temperature > 0:
            raise UserError(f"NCA(temperature={temperature}): temperature must be positive")
        if not 0 < copies <= 1:
            raise UserError(
                f"NCA(copies={copies}): copies is a cosine, 0 < copies <= 1; 1 keeps all but identical ones"
            )
        self.temperature = temperature
        self.copies = copies

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: what each query contributes, copies of it left out."""
        return super().terms(pairs.without_copies(self.copies))

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: the NCA loss of each query's chosen images."""
        return nca(pairs, mined, self.temperature)
