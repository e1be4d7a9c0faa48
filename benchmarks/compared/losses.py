"""Forward and backward of every loss, beside pytorch-metric-learning's where it has one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from compared import OURS, PML, Case, Options, has
from firstpage import losses

DRAWS = "both draw at random"
CUBIC = 512  # images up to which a peer that lists every triplet of a batch is run on a CPU
DENSE = 128  # likewise of one that compares every positive pair with every negative pair


@dataclass(frozen=True)
class Peer:
    """The same loss elsewhere."""

    build: Callable[[int, int], nn.Module]  # of the number of classes and of dimensions
    settings: dict[str, object] = field(default_factory=dict)  # of ours, so that both compute the same
    relation: Callable[[Tensor], Tensor] | None = torch.mean  # of our terms to their value
    note: str = ""
    miner: Callable[[], nn.Module] | None = None
    most: int | None = None  # images on a CPU, where more would take minutes and many gigabytes
    tolerance: float = 1e-3
    parameters: Callable[[nn.Module], Tensor] | None = None  # what becomes our proxies


def peers() -> dict[str, Peer]:
    """Every loss that pytorch-metric-learning has too, with the settings by which both are the same."""
    from pytorch_metric_learning import distances, miners, reducers
    from pytorch_metric_learning import losses as pml

    cosine = distances.CosineSimilarity()
    squared = distances.LpDistance(power=2)

    def triplet(_: int, __: int) -> nn.Module:
        return pml.TripletMarginLoss(0.1, distance=cosine, reducer=reducers.MeanReducer())

    def easy_hard(positives: str, negatives: str) -> Callable[[], nn.Module]:
        return lambda: miners.BatchEasyHardMiner(pos_strategy=positives, neg_strategy=negatives)

    def active(terms: Tensor) -> Tensor:
        return terms.sum() / (terms > 0).sum()

    def ntxent(_: int, __: int) -> nn.Module:
        return pml.NTXentLoss(0.1)

    semihard = "they take every triplet within the margin, here the closest negative of each positive"
    return {
        "margin": Peer(
            lambda c, d: pml.MarginLoss(nu=0, learn_beta=True),
            relation=None,
            note=f"{DRAWS}; their weights underflow in high dimension and leave queries out",
            miner=miners.DistanceWeightedMiner,
        ),
        "triplet-semihard": Peer(
            triplet,
            relation=None,
            note=semihard,
            miner=lambda: miners.TripletMarginMiner(0.1, "semihard"),
            most=CUBIC,
        ),
        "triplet-hard": Peer(triplet, miner=miners.BatchHardMiner),
        "triplet-all": Peer(triplet, {"positives": "all", "negatives": "all"}, most=CUBIC),
        "contrastive": Peer(
            lambda c, d: pml.ContrastiveLoss(),
            relation=None,
            note="they do not square distances; `contrastive-linear` is the same in both",
        ),
        "contrastive-linear": Peer(lambda c, d: pml.ContrastiveLoss(distance=squared), {"form": "linear"}),
        "epshn": Peer(ntxent, relation=active, miner=easy_hard("easy", "semihard")),
        "ephn": Peer(ntxent, miner=easy_hard("easy", "hard")),
        "hphn": Peer(ntxent, miner=easy_hard("hard", "hard")),
        "batch-all": Peer(ntxent, most=DENSE),
        "rll": Peer(
            lambda c, d: pml.RankedListLoss(0.4, 10, imbalance=0.5, alpha=1.2, Tp=0),
            relation=lambda terms: terms.mean() / 2,
            note="they also move the candidates of a list, and add 1e-5 to every weight",
            tolerance=1e-2,
        ),
        "lifted": Peer(lambda c, d: pml.LiftedStructureLoss(neg_margin=1, pos_margin=0), most=DENSE),
        "npair": Peer(
            lambda c, d: pml.NPairsLoss(),
            relation=None,
            note="they draw one pair a class and normalize; here its first, raw, with the length's cost",
        ),
        "angular": Peer(lambda c, d: pml.AngularLoss(45)),
        "proxy-nca": Peer(
            lambda c, d: pml.ProxyNCALoss(c, d, softmax_scale=9),
            relation=lambda terms: nn.functional.softplus(terms).mean(),
            note="same up to the own class, which they put into the denominator",
            parameters=lambda loss: loss.proxies,
        ),
        "histogram": Peer(lambda c, d: pml.HistogramLoss(n_bins=100)),
        "proxy-anchor": Peer(lambda c, d: pml.ProxyAnchorLoss(c, d), parameters=lambda loss: loss.proxies),
        "multi-similarity": Peer(
            lambda c, d: pml.MultiSimilarityLoss(), miner=lambda: miners.MultiSimilarityMiner(epsilon=0.1)
        ),
        "soft-triple": Peer(
            lambda c, d: pml.SoftTripleLoss(c, d),
            {"tau": 0.0},
            note="without τ, which they do not have",
            parameters=lambda loss: loss.fc.T,
        ),
        "circle": Peer(lambda c, d: pml.CircleLoss()),
        "supcon": Peer(lambda c, d: pml.SupConLoss()),
    }


VARIANTS = {"triplet-all": "triplet-hard", "contrastive-linear": "contrastive"}
SLOW = {"struct-clust", "pddm"}  # by design: no peer, and minutes at 2,048 images


def cases(options: Options) -> Iterator[Case]:
    """Every loss at every size."""
    known = peers() if has("pytorch_metric_learning") else {}
    for name in [*losses.names(), *(name for name in VARIANTS if name in known)]:  # a peer has their settings
        if options.wants("losses", name) and (name not in SLOW or name in options.names):
            # spectral clustering needs more images than dimensions
            for count in (n for n in options.sizes if name != "spectral-clust" or n > options.dim):
                yield _case(name, count, known.get(name), options)


def inputs(count: int, options: Options) -> tuple[Tensor, Tensor]:
    """Unit vectors around a center for each class, in order, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // options.per_class
    centers = torch.randn(int(labels[-1]) + 1, options.dim, generator=generator)
    vectors = centers[labels] + 1.5 * torch.randn(count, options.dim, generator=generator)
    vectors = nn.functional.normalize(vectors, dim=1)
    return vectors.to(options.device).requires_grad_(), labels.to(options.device)


def create(name: str, classes: int, dim: int, **settings: object) -> losses.Loss:
    """The loss of that name, told what it needs to know of the data."""
    name = VARIANTS.get(name, name)
    known = {"classes": classes, "dim": dim}
    return losses.create(name, **{key: known[key] for key in losses.required_arguments(name)}, **settings)


def _case(name: str, count: int, peer: Peer | None, options: Options) -> Case:
    embeddings, labels = inputs(count, options)
    classes, device = int(labels[-1]) + 1, options.device
    torch.manual_seed(0)
    ours = create(name, classes, options.dim, **(peer.settings if peer else {})).to(device)
    surveyed(ours, embeddings, labels)
    note = peer.note if peer else "no peer has it"
    sides: dict[str, Callable[[], object]] = {OURS: step(ours, embeddings, labels)}
    same = None
    if peer and peer.most and device.type == "cpu" and count > peer.most:
        note = f"{note}; theirs takes minutes and gigabytes".removeprefix("; ")
    elif peer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = Mined(peer.build(classes, options.dim), peer.miner).to(device)
        if peer.parameters:
            proxies: nn.Parameter = ours.proxies  # type: ignore[assignment]
            with torch.no_grad():
                proxies.copy_(peer.parameters(theirs.loss))
        sides[PML] = step(theirs, embeddings, labels)
        if peer.relation:
            relation, terms = peer.relation, create(name, classes, options.dim, **peer.settings).to(device)
            terms.load_state_dict(ours.state_dict())
            terms.reduction = "none"

            def compare() -> tuple[Tensor, Tensor]:
                return relation(terms(embeddings, labels)), theirs(embeddings, labels)

            same = compare
    if device.type == "cuda":
        sides |= graph(ours, embeddings, labels)
    return Case(name, f"N={count}", sides, same, note, peer.tolerance if peer else 0.0)


class Mined(nn.Module):
    """A loss of pytorch-metric-learning with its miner."""

    def __init__(self, loss: nn.Module, miner: Callable[[], nn.Module] | None) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner() if miner else None

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of the images that the miner chose."""
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels) if self.miner else None)
        return value


def surveyed(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Show a loss all images first if it asks for that."""
    if hasattr(loss, "survey"):
        loss.survey(embeddings.detach(), labels)


def step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """One forward and backward pass."""

    def call() -> Tensor:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        value: Tensor = loss(embeddings, labels)
        value.backward()
        return value

    return call


def graph(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> dict[str, Callable[[], object]]:
    """The same pass recorded once and replayed, as in a training with `train.compile`; none if it cannot."""
    call, stream = step(loss, embeddings, labels), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(recorded):
            call()
    except RuntimeError:  # a loss that reads a value, by design: struct-clust
        torch.cuda.synchronize()
        return {}
    return {f"{OURS}, replayed": recorded.replay}
