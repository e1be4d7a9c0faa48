"""The losses under test with their oracles, and the batches they meet."""

from dataclasses import dataclass
from functools import partial

import torch

from firstpage import Pairs, losses
from support import later_oracles, oracles, system_oracles

CLASSES, DIM = 4, 5


@dataclass(frozen=True)
class Case:
    """A loss, and the naive function that must give the same terms."""

    build: object
    oracle: object

    def __str__(self):
        return self.build(reduction="none").__class__.__name__


def sized(name, classes=CLASSES, dim=DIM):
    """The arguments that a loss needs of the data."""
    return {key: {"classes": classes, "dim": dim}[key] for key in losses.required_arguments(name)}


def with_proxies(name):
    """Builds a loss with proxies, always the same ones."""

    def build(**settings):
        torch.manual_seed(0)
        return losses.create(name, **sized(name), **settings).double()

    return build


proxy_nca = with_proxies("proxy-nca")


def margin_classes(**settings):
    loss = losses.Margin(classes=CLASSES, nu=0.3, negatives="hard", **settings).double()
    with torch.no_grad():
        loss.beta.fill_(1.2)  # exactly: it was born in float32
        loss.beta_class.copy_(torch.tensor([0.0, -0.3, 0.2, 0.1]))
    return loss


def _margin_oracle(batch):
    """The margin loss over all positives, and the anchor's hardest negative for each of them."""
    beta = [1.2 + [0.0, -0.3, 0.2, 0.1][label] for label in batch.labels]
    terms, active = [], 0
    for q in range(batch.query_count):
        term = torch.zeros((), dtype=torch.float64)
        negatives = batch.negatives(q)
        costs = []
        for p in batch.positives(q):
            costs.append(0.2 + batch.d(q, p) - beta[q])
            if negatives:
                hardest = max(negatives, key=lambda n: batch.s(q, n).item())
                costs.append(0.2 - batch.d(q, hardest) + beta[q])
        for cost in costs:
            term = term + oracles.hinge(cost) + 0.3 * beta[q]
            active += cost.item() > 0
        terms.append(term)
    return torch.stack(terms) * batch.query_count / max(1, active)


def _topk_whole_oracle(batch):
    """Pages of 1 and 3, or of all positives of each query where most queries have a right first result."""
    asked, right = 0, 0
    for q in range(batch.query_count):
        positives = batch.positives(q)
        ranking = sorted(positives + batch.negatives(q), key=lambda c: -batch.s(q, c).item())
        asked += bool(positives)
        right += bool(positives) and ranking[0] in positives
    if right <= asked / 2:
        return torch.stack([oracles.topk(batch, k, 0.2) for k in (1, 3)]).mean(dim=0)
    lengths = [len(batch.positives(q)) for q in range(batch.query_count)]
    return torch.stack([oracles.topk(batch, max(n, 1), 0.2)[q] for q, n in enumerate(lengths)])


def pddm(**settings):
    """The loss of PDDM with layers that are not dead at any pair, which would make pairs equally similar."""
    loss = with_proxies("pddm")(**settings)
    for name, parameter in loss.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.constant_(parameter, 0.5)
    return loss


def htl(**settings):
    """The hierarchical triplet loss with the tree of a batch of its own."""
    loss = losses.create("htl", classes=CLASSES, levels=8, **settings).double()
    loss.survey(*(part.detach() for part in batch(99, count=20)))
    return loss


def _htl_oracle(one):
    tree = system_oracles.Tree(*(part.detach() for part in batch(99, count=20)), range(CLASSES), 8)
    return system_oracles.hierarchical_triplet(one, tree, 0.1)


def _named(name, oracle, **settings):
    return Case(lambda **more: losses.create(name, **settings, **more), oracle)


# Every deterministic loss. Those that draw lots are compared draw by draw in test_losses.
CASES = {
    "topk-1": _named("topk", lambda b: oracles.topk(b, 1, 0.1), k=1),
    "topk-5": _named("topk", lambda b: oracles.topk(b, 5, 0.1)),
    "topk-100": _named("topk", lambda b: oracles.topk(b, 100, 0.1), k=100),
    "topk-pages": _named(
        "topk",
        lambda b: torch.stack([oracles.topk(b, k, 0.2) for k in (1, 3, 4)]).mean(dim=0),
        k=[1, 3, 4],
        margin=0.2,
    ),
    "topk-whole": _named("topk", _topk_whole_oracle, k=[1, 3], margin=0.2, whole=True),
    "margin": Case(margin_classes, _margin_oracle),
    "triplet-hard": _named(
        "triplet-hard",
        lambda b: oracles.triplet(b, "cosine", 0.1, oracles.mined_triplets(b, "hard", "hard", copies=None)),
    ),
    "triplet-semihard": _named(
        "triplet-semihard",
        lambda b: oracles.triplet(
            b, "cosine", 0.1, oracles.mined_triplets(b, "all", "semihard", copies=None)
        ),
    ),
    "triplet-all-cosine": _named(
        "triplet-hard",
        lambda b: oracles.triplet(b, "cosine", 0.3),
        positives="all",
        negatives="all",
        margin=0.3,
    ),
    "triplet-all-l2": _named(
        "triplet-hard", lambda b: oracles.triplet(b, "l2", 0.2), positives="all", negatives="all", form="l2"
    ),
    "triplet-all-l2-squared": _named(
        "triplet-hard",
        lambda b: oracles.triplet(b, "l2_squared", 0.2),
        positives="all",
        negatives="all",
        form="l2_squared",
    ),
    "contrastive": _named("contrastive", lambda b: oracles.contrastive(b, 1.0)),
    "ep": _named("ep", lambda b: oracles.nca(b, 0.1, "easy", "all")),
    "ephn": _named("ephn", lambda b: oracles.nca(b, 0.1, "easy", "hard")),
    "epshn": _named("epshn", lambda b: oracles.nca(b, 0.1, "easy", "semihard")),
    "hp": _named("hp", lambda b: oracles.nca(b, 0.1, "hard", "all")),
    "hphn": _named("hphn", lambda b: oracles.nca(b, 0.1, "hard", "hard")),
    "batch-all": _named("batch-all", lambda b: oracles.nca(b, 0.1, "all", "all")),
    "batch-all-semihard": _named(
        "batch-all", lambda b: oracles.nca(b, 0.1, "all", "semihard"), negatives="semihard"
    ),
    "rll": _named("rll", lambda b: oracles.rll(b, 1.2, 0.4, 10.0)),
    "lifted": _named("lifted", lambda b: oracles.lifted(b, 1.0)),
    "lifted-long": _named("lifted", lambda b: oracles.lifted(b, 3.0, 32.0), alpha=3.0, scale=32.0),
    "npair": _named("npair", lambda b: oracles.npair(b, 0.02)),
    "angular": _named("angular", lambda b: oracles.angular(b, 45.0)),
    "npair-angular": _named("npair-angular", lambda b: oracles.npair(b, 0.02) + 2 * oracles.angular(b, 45.0)),
    "proxy-nca": Case(proxy_nca, lambda b: oracles.proxy_nca(b, proxy_nca().proxies.detach(), 3.0)),
    "histogram": _named("histogram", lambda b: oracles.histogram(b, 25), bins=25),  # the oracle is slow
    "binomial": _named("binomial", lambda b: oracles.binomial(b, 2.0, 0.5, 25.0)),
    "spectral-clust": _named(
        "spectral-clust", lambda b: oracles.spectral_clust(b, 1e-3 * b.candidate_count / DIM)
    ),
    "htl": Case(htl, _htl_oracle),
    "pddm": Case(pddm, lambda b: system_oracles.pddm(b, pddm().similarity.state_dict(), 0.5, 1.0, 0.5)),
}

# The losses of METHODS.md, §10. Each is compared with its oracle once that is here, by the same name: a
# function of an `oracles.Batch` that returns its terms, such as `lambda b: later_oracles.circle(b, 0.4, 80)`.
LATER = {
    "proxy-anchor": with_proxies("proxy-anchor"),
    "multi-similarity": partial(losses.create, "multi-similarity"),
    "soft-triple": partial(with_proxies("soft-triple"), per_class=3),
    "recall-at-k": partial(losses.create, "recall-at-k"),
    "smooth-ap": partial(losses.create, "smooth-ap"),
    "roadmap": partial(losses.create, "roadmap"),
    "circle": partial(losses.create, "circle"),
    "supcon": partial(losses.create, "supcon"),
}
# That of Proxy-Anchor is not among them: it has the figure of a batch, not the shares of its queries.
LATER_ORACLES = {
    "multi-similarity": later_oracles.multi_similarity,
    "soft-triple": lambda batch: later_oracles.soft_triple(
        batch, LATER["soft-triple"]().proxies.detach().double().view(CLASSES, 3, DIM)
    ),
    "recall-at-k": later_oracles.recall_at_k,
    "smooth-ap": later_oracles.smooth_ap,
    "roadmap": later_oracles.roadmap,
    "circle": later_oracles.circle,
    "supcon": later_oracles.supervised_contrastive,
}
CASES |= {name: Case(LATER[name], oracle) for name, oracle in LATER_ORACLES.items()}

# What builds each deterministic loss, with an oracle or without.
BUILDS = {name: case.build for name, case in CASES.items()} | LATER


def batch(seed=0, count=10, dim=DIM, classes=CLASSES, dtype=torch.float64, spread=1.0):
    """Random embeddings around class centers, and labels with unequal classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    centers = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    embeddings = (centers[labels] + spread * noise).to(dtype)
    return embeddings.requires_grad_(), labels


def pairs_of(seed=0, **settings):
    return Pairs.of(*batch(seed, **settings))
