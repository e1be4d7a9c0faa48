"""Independent oracles: every loss as plain loops over queries, candidates and triplets, in float64.

Each loss returns a tensor [Q], one term per query, and autograd through it gives the oracle gradients.
METHODS below is `METHODS.md`; q, a, i are queries (rows), c, p, n, j are candidates (columns).
"""

import itertools
import math
from decimal import Decimal, localcontext

import torch

# ---------------------------------------------------------------- the batch


def zero():
    """A constant 0, connected to nothing."""
    return torch.zeros((), dtype=torch.float64)


def hinge(x):
    """[x]+ of a scalar tensor; the gradient at the kink is 0."""
    return x if x.item() > 0 else zero()


def log_sum_exp(terms):
    """log of the sum of the exponentials of a list of scalar tensors."""
    return torch.logsumexp(torch.stack(terms), dim=0)


class Batch:
    """Queries and candidates (METHODS, notation). Without candidates the queries are their own candidates.

    self_mask[q][c] marks further (query, candidate) couples that are the same image.
    """

    def __init__(self, embeddings, labels, candidates=None, candidate_labels=None, self_mask=None):
        self.shared = candidates is None
        if self.shared:
            candidates, candidate_labels = embeddings, labels
        self.query_count = len(embeddings)
        self.candidate_count = len(candidates)
        self.raw_queries = [row.double() for row in embeddings]
        self.raw_candidates = [row.double() for row in candidates]
        self.queries = [row / torch.sqrt(torch.dot(row, row)) for row in self.raw_queries]
        self.candidates = [row / torch.sqrt(torch.dot(row, row)) for row in self.raw_candidates]
        self.labels = [int(label) for label in labels]
        self.candidate_labels = [int(label) for label in candidate_labels]
        assert len(self.labels) == self.query_count
        assert len(self.candidate_labels) == self.candidate_count
        self.self_mask = self_mask

    def is_self(self, q, c):
        """Whether query q and candidate c are the same image."""
        if self.shared and q == c:
            return True
        return self.self_mask is not None and bool(self.self_mask[q][c])

    def s(self, q, c):
        """Cosine similarity."""
        return torch.dot(self.queries[q], self.candidates[c])

    def d(self, q, c, constant_candidate=False):
        """Distance sqrt(2 - 2s); a constant 0 for (near-)identical points."""
        candidate = self.candidates[c].detach() if constant_candidate else self.candidates[c]
        squared = 2 - 2 * torch.dot(self.queries[q], candidate)
        if squared.item() <= 1e-14:
            return zero()
        return torch.sqrt(squared)

    def positives(self, q):
        """Candidates of the query's class, itself excluded, in column order."""
        return [
            c
            for c in range(self.candidate_count)
            if self.candidate_labels[c] == self.labels[q] and not self.is_self(q, c)
        ]

    def negatives(self, q):
        """Candidates of the other classes, in column order."""
        return [
            c
            for c in range(self.candidate_count)
            if self.candidate_labels[c] != self.labels[q] and not self.is_self(q, c)
        ]

    def positive_pairs(self):
        """All ordered (query, positive candidate) pairs."""
        return [(q, p) for q in range(self.query_count) for p in self.positives(q)]

    def negative_pairs(self):
        """All ordered (query, negative candidate) pairs."""
        return [(q, n) for q in range(self.query_count) for n in self.negatives(q)]


# ---------------------------------------------------------------- 1. top-k precision


def topk_sets(scores, y, k, margin):
    """Misplaced positives P and negatives N of one query (METHODS 1), as sets of positions in `scores`.

    y: 1 for a positive, 0 for a negative, None for neither (self). `scores` are s, before the margin.
    """
    shifted = {}
    for c, (score, relevant) in enumerate(zip(scores, y, strict=True)):
        if relevant is None:
            continue
        shifted[c] = float(score) if relevant else float(score) + margin
    ranking = sorted(shifted, key=lambda c: (-shifted[c], c))
    top = ranking[:k]
    positives_ranked = [c for c in ranking if y[c]]
    negatives_ranked = [c for c in ranking if not y[c]]
    m = min(k, len(positives_ranked))
    misplaced_positives = {c for c in positives_ranked[:m] if c not in top}
    misplaced_negatives = {c for c in negatives_ranked[k - m :] if c in top}
    assert len(misplaced_positives) == len(misplaced_negatives)
    return misplaced_positives, misplaced_negatives


def topk(batch, k, margin):
    """Top-k precision loss, sum of shat over N minus sum over P (METHODS 1, Sampling Wisely)."""
    terms = []
    for q in range(batch.query_count):
        positives, negatives = batch.positives(q), batch.negatives(q)
        scores, y = [], []
        for c in range(batch.candidate_count):
            scores.append(batch.s(q, c).item())
            y.append(1 if c in positives else 0 if c in negatives else None)
        misplaced_positives, misplaced_negatives = topk_sets(scores, y, k, margin)
        term = zero()
        for n in misplaced_negatives:
            term = term + (batch.s(q, n) + margin)
        for p in misplaced_positives:
            term = term - batch.s(q, p)
        terms.append(term)
    return torch.stack(terms)


# ---------------------------------------------------------------- 2. margin, contrastive, triplet


def distance_weights(distances_row, negative_flags, dim, floor, cutoff, temperature=1.0):
    """Probabilities of one anchor's negatives, 1/q(d) (METHODS 2, Sampling Matters), in 60 digits.

    d is clamped to [floor, cutoff]; a negative at d >= cutoff has probability 0, unless all are that far:
    then they are equally likely. The temperature divides the log weight. No negative: all zero.
    """
    distances = [float(d) for d in distances_row]
    negatives = [c for c in range(len(distances)) if negative_flags[c]]
    near = [c for c in negatives if distances[c] < cutoff]
    probabilities = [0.0] * len(distances)
    if not near:
        for c in negatives:
            probabilities[c] = 1 / len(negatives)
        return probabilities
    with localcontext() as context:
        context.prec = 60
        weights = {}
        for c in near:
            d = Decimal(min(max(distances[c], floor), cutoff))
            log_q = (dim - 2) * d.ln() + Decimal(dim - 3) / 2 * (1 - d * d / 4).ln()
            weights[c] = (-log_q / Decimal(temperature)).exp()
        total = sum(weights.values())
        for c in near:
            probabilities[c] = float(weights[c] / total)
    return probabilities


def margin(batch, alpha, beta, nu, drawn):
    """Margin loss (METHODS 2, Sampling Matters).

    beta: one a query. drawn: {(anchor, positive): negative}; a pair that is not there has no negative.
    """
    sums = []
    active = 0
    for q in range(batch.query_count):
        total = zero()
        for p in batch.positives(q):
            loss = hinge(alpha + (batch.d(q, p) - beta[q]))
            active += loss.item() > 0
            total = total + loss + nu * beta[q]
            if (q, p) in drawn:
                n = drawn[(q, p)]
                assert n in batch.negatives(q)
                loss = hinge(alpha - (batch.d(q, n) - beta[q]))
                active += loss.item() > 0
                total = total + loss + nu * beta[q]
        sums.append(total)
    return torch.stack([batch.query_count * total / max(1, active) for total in sums])


def contrastive(batch, margin):
    """Contrastive loss, positives and negatives each averaged over active pairs (METHODS 2)."""
    positive_sums, negative_sums = [], []
    active_positives = active_negatives = 0
    for q in range(batch.query_count):
        positive_sum, negative_sum = zero(), zero()
        for p in batch.positives(q):
            loss = batch.d(q, p) ** 2
            active_positives += loss.item() > 0
            positive_sum = positive_sum + loss
        for n in batch.negatives(q):
            loss = hinge(margin - batch.d(q, n)) ** 2
            active_negatives += loss.item() > 0
            negative_sum = negative_sum + loss
        positive_sums.append(positive_sum)
        negative_sums.append(negative_sum)
    terms = []
    for q in range(batch.query_count):
        positive_part = positive_sums[q] / max(1, active_positives)
        negative_part = negative_sums[q] / max(1, active_negatives)
        terms.append(batch.query_count * (positive_part + negative_part))
    return torch.stack(terms)


def triplet(batch, form, margin, triplets=None):
    """Triplet loss (METHODS 2), mean over a query's triplets (a, p, n); None = all x all.

    form: 'l2_squared', 'l2' or 'cosine'.
    """
    if triplets is None:
        triplets = [
            (a, p, n)
            for a in range(batch.query_count)
            for p in batch.positives(a)
            for n in batch.negatives(a)
        ]
    terms = []
    for q in range(batch.query_count):
        losses = []
        for a, p, n in triplets:
            if a != q:
                continue
            if form == "l2_squared":
                violation = batch.d(a, p) ** 2 - batch.d(a, n) ** 2 + margin
            elif form == "l2":
                violation = batch.d(a, p) - batch.d(a, n) + margin
            elif form == "cosine":
                violation = batch.s(a, n) - batch.s(a, p) + margin
            else:
                raise ValueError(f"unknown triplet form {form!r}")
            losses.append(hinge(violation))
        terms.append(sum(losses, zero()) / max(1, len(losses)))
    return torch.stack(terms)


# ---------------------------------------------------------------- 3. easy positive family


def mined_positives(batch, a, strategy, copies=0.9999):
    """Positives of anchor a, 'all', 'easy' or 'hard', copies removed first (METHODS 3, Easy Positive)."""
    found = []
    for p in batch.positives(a):
        if copies is None or batch.s(a, p).item() <= copies:
            found.append(p)
    if strategy == "all" or not found:
        return found
    if strategy == "easy":  # max and min return the first of equals: the lowest index
        return [max(found, key=lambda p: batch.s(a, p).item())]
    if strategy == "hard":
        return [min(found, key=lambda p: batch.s(a, p).item())]
    raise ValueError(f"unknown positive strategy {strategy!r}")


def mined_negatives(batch, a, p, strategy):
    """Negatives for the pair (a, p), 'all', 'hard' or 'semihard' (METHODS 3, Easy Positive)."""
    found = batch.negatives(a)
    if strategy == "semihard":
        found = [n for n in found if batch.s(a, n).item() < batch.s(a, p).item()]
    elif strategy not in ("all", "hard"):
        raise ValueError(f"unknown negative strategy {strategy!r}")
    if strategy == "all" or not found:
        return found
    return [max(found, key=lambda n: batch.s(a, n).item())]


def mined_triplets(batch, positives, negatives, copies=0.9999):
    """Sorted list of the mined (a, p, n) (METHODS 3); copies=None keeps copies of the anchor."""
    found = []
    for a in range(batch.query_count):
        for p in mined_positives(batch, a, positives, copies):
            for n in mined_negatives(batch, a, p, negatives):
                found.append((a, p, n))
    return sorted(found)


def nca(batch, temperature, positives, negatives, copies=0.9999):
    """NCA form over mined positives and negatives (METHODS 3, Easy Positive)."""
    terms = []
    for a in range(batch.query_count):
        losses = []
        for p in mined_positives(batch, a, positives, copies):
            chosen = mined_negatives(batch, a, p, negatives)
            if not chosen:
                continue
            above = batch.s(a, p) / temperature
            below = log_sum_exp([above] + [batch.s(a, n) / temperature for n in chosen])
            losses.append(-(above - below))
        terms.append(sum(losses, zero()) / max(1, len(losses)))
    return torch.stack(terms)


# ---------------------------------------------------------------- 4. ranked list


def rll(batch, alpha, margin, temperature):
    """Ranked list loss, candidates and weights constant (METHODS 4, Ranked List Loss)."""
    terms = []
    for q in range(batch.query_count):
        positive_losses = []
        for p in batch.positives(q):
            d = batch.d(q, p, constant_candidate=True)
            if d.item() > alpha - margin:
                positive_losses.append(d - (alpha - margin))
        positive_part = sum(positive_losses, zero()) / max(1, len(positive_losses))

        negative_losses, exponents = [], []
        for n in batch.negatives(q):
            d = batch.d(q, n, constant_candidate=True)
            if d.item() < alpha:
                negative_losses.append(alpha - d)
                exponents.append(temperature * (alpha - d.item()))
        # The common factor exp(-largest) cancels in the normalized weights.
        largest = max(exponents, default=0.0)
        weights = [math.exp(exponent - largest) for exponent in exponents]
        negative_part = zero()
        for weight, loss in zip(weights, negative_losses, strict=True):
            negative_part = negative_part + weight / sum(weights) * loss
        terms.append(positive_part + negative_part)
    return torch.stack(terms)


# ---------------------------------------------------------------- 5. the compared methods


def lifted(batch, alpha=1.0, length=1.0):
    """Lifted structure loss with the square (METHODS 5, Song et al. 2016), of vectors of that length."""
    pair_count = len(batch.positive_pairs())
    terms = []
    for i in range(batch.query_count):
        total = zero()
        for j in batch.positives(i):
            exponents = [alpha - length * batch.d(i, k) for k in batch.negatives(i)]
            for query in range(batch.query_count):
                if j in batch.negatives(query):
                    exponents.append(alpha - length * batch.d(query, j))
            if exponents:  # else log(0): the hinge is 0
                total = total + hinge(log_sum_exp(exponents) + length * batch.d(i, j)) ** 2
        terms.append(batch.query_count / (2 * max(1, pair_count)) * total)
    return torch.stack(terms)


def npair_pairs(batch):
    """One (anchor, positive) a class: the first query of the class and its first positive, if it has one."""
    pairs = []
    seen = []
    for q in range(batch.query_count):
        if batch.labels[q] in seen:
            continue
        seen.append(batch.labels[q])
        if batch.positives(q):
            pairs.append((q, batch.positives(q)[0]))
    return pairs


def npair(batch, l2):
    """N-pair-mc on the raw embeddings, with L2 regularization (METHODS 5, Sohn 2016)."""
    pairs = npair_pairs(batch)
    terms = [zero() for _ in range(batch.query_count)]
    for i, i_positive in pairs:
        anchor, positive = batch.raw_queries[i], batch.raw_candidates[i_positive]
        exponents = [zero()]  # the 1 of log(1 + ...)
        for j, j_positive in pairs:
            if j != i:
                other = batch.raw_candidates[j_positive]
                exponents.append(torch.dot(anchor, other) - torch.dot(anchor, positive))
        squares = torch.dot(anchor, anchor) + torch.dot(positive, positive)
        terms[i] = batch.query_count / len(pairs) * (log_sum_exp(exponents) + l2 * squares)
    return torch.stack(terms)


def angular(batch, degrees):
    """Angular loss on unit embeddings (METHODS 5, Wang et al. 2017)."""
    tan_squared = math.tan(math.radians(degrees)) ** 2
    terms = []
    for a in range(batch.query_count):
        losses = []
        if batch.negatives(a):
            for p in batch.positives(a):
                exponents = [zero()]  # the 1 of log(1 + ...)
                for n in batch.negatives(a):
                    both = batch.queries[a] + batch.candidates[p]
                    pull = 2 * (1 + tan_squared) * batch.s(a, p)
                    exponents.append(4 * tan_squared * torch.dot(both, batch.candidates[n]) - pull)
                losses.append(log_sum_exp(exponents))
        terms.append(sum(losses, zero()) / max(1, len(losses)))
    return torch.stack(terms)


def proxy_nca(batch, proxies, scale):
    """Proxy-NCA, own proxy not in the denominator (METHODS 5, Movshovitz-Attias et al. 2017).

    A label is the row of its proxy. Embeddings and proxies are unit vectors times `scale`.
    """
    scaled_proxies = []
    for proxy in proxies:
        proxy = proxy.double()
        scaled_proxies.append(scale * proxy / torch.sqrt(torch.dot(proxy, proxy)))
    terms = []
    for q in range(batch.query_count):
        exponents = []
        for proxy in scaled_proxies:
            difference = scale * batch.queries[q] - proxy
            exponents.append(-torch.dot(difference, difference))
        y = batch.labels[q]
        others = [exponents[z] for z in range(len(exponents)) if z != y]
        terms.append(-(exponents[y] - log_sum_exp(others)) if others else zero())
    return torch.stack(terms)


def soft_histogram(similarities, bins):
    """Counts (not normalized) of a list of similarities at `bins` nodes on [-1, 1], linear assignment."""
    step = 2 / (bins - 1)
    heights = []
    for r in range(bins):
        node = -1 + r * step
        height = zero()
        for similarity in similarities:
            height = height + hinge(1 - torch.abs(similarity - node) / step)
        heights.append(height)
    return heights


def histogram(batch, bins):
    """Histogram loss (METHODS 5, Ustinova & Lempitsky 2016)."""
    positive_pairs, negative_pairs = batch.positive_pairs(), batch.negative_pairs()
    if not positive_pairs or not negative_pairs:
        return torch.stack([zero() for _ in range(batch.query_count)])
    negative_counts = soft_histogram([batch.s(q, n) for q, n in negative_pairs], bins)
    terms = []
    for q in range(batch.query_count):
        own_counts = soft_histogram([batch.s(q, p) for p in batch.positives(q)], bins)
        term = zero()
        for r in range(bins):
            for t in range(r + 1):
                h_negative = negative_counts[r] / len(negative_pairs)
                h_positive = own_counts[t] / len(positive_pairs)
                term = term + h_negative * h_positive
        terms.append(batch.query_count * term)
    return torch.stack(terms)


def binomial(batch, alpha=2.0, beta=0.5, cost=25.0):
    """Binomial deviance, positives and negatives each averaged over all their pairs (METHODS 5)."""
    positive_count, negative_count = len(batch.positive_pairs()), len(batch.negative_pairs())
    terms = []
    for q in range(batch.query_count):
        positive_sum, negative_sum = zero(), zero()
        for p in batch.positives(q):
            positive_sum = positive_sum + log_sum_exp([zero(), -alpha * (batch.s(q, p) - beta)])
        for n in batch.negatives(q):
            negative_sum = negative_sum + log_sum_exp([zero(), alpha * cost * (batch.s(q, n) - beta)])
        positive_part = positive_sum / max(1, positive_count)
        negative_part = negative_sum / max(1, negative_count)
        terms.append(batch.query_count * (positive_part + negative_part))
    return torch.stack(terms)


# ---------------------------------------------------------------- clustering losses


def nmi(first, second):
    """Normalized mutual information of two labelings, geometric mean, natural logarithms.

    1 when both are a single cluster, 0 when just one is.
    """
    size = len(first)

    def entropy(labeling):
        shares = [labeling.count(label) / size for label in set(labeling)]
        return -sum(share * math.log(share) for share in shares)

    single = [len(set(labeling)) == 1 for labeling in (first, second)]
    if all(single):
        return 1.0
    if any(single):
        return 0.0
    joint = list(zip(first, second, strict=True))
    information = 0.0
    for u, v in set(joint):
        share = joint.count((u, v)) / size
        independent = (first.count(u) / size) * (second.count(v) / size)
        information += share * math.log(share / independent)
    return information / math.sqrt(entropy(first) * entropy(second))


def assignment(batch, chosen):
    """The member of `chosen` nearest to each query, the lowest index among equals; self is allowed."""
    ordered = sorted(chosen)
    return [min(ordered, key=lambda j: batch.d(i, j).item()) for i in range(batch.query_count)]


def class_medoids(batch):
    """{class: candidate of that class with the least summed distance to the queries of the class}."""
    medoids = {}
    for label in sorted(set(batch.labels)):
        members = [q for q in range(batch.query_count) if batch.labels[q] == label]
        options = [c for c in range(batch.candidate_count) if batch.candidate_labels[c] == label]
        if not options:
            raise ValueError(f"class {label} has queries but no candidate")
        sums = {c: sum(batch.d(q, c).item() for q in members) for c in options}
        medoids[label] = min(options, key=lambda c: sums[c])
    return medoids


def struct_clust_search(batch, gamma):
    """The S with |S| = number of classes that maximizes F(S) + gamma (1 - NMI), by trying every S."""
    class_count = len(set(batch.labels))
    distances = []
    for i in range(batch.query_count):
        distances.append([batch.d(i, j).item() for j in range(batch.candidate_count)])
    best, best_value = None, -math.inf
    for chosen in itertools.combinations(range(batch.candidate_count), class_count):
        nearest = []
        score = 0.0
        for row in distances:
            nearest.append(min(chosen, key=row.__getitem__))
            score -= row[nearest[-1]]
        value = score + gamma * (1 - nmi(nearest, batch.labels))
        if value > best_value:
            best, best_value = chosen, value
    return best


def struct_clust_given(batch, gamma, chosen, medoids=None):
    """Struct Clust for a given S (and {class: medoid}, else searched) (METHODS 5, Song et al. 2017)."""
    if medoids is None:
        medoids = class_medoids(batch)
    nearest = assignment(batch, chosen)
    penalty = gamma * (1 - nmi(nearest, batch.labels))
    terms = []
    for i in range(batch.query_count):
        to_medoid = batch.d(i, medoids[batch.labels[i]])
        to_chosen = batch.d(i, nearest[i])
        terms.append(to_medoid - to_chosen + penalty / batch.query_count)
    if sum(term.item() for term in terms) <= 0:  # the hinge over the whole batch
        return torch.stack([zero() for _ in terms])
    return torch.stack(terms)


def struct_clust(batch, gamma):
    """Struct Clust, exact: S by brute force (METHODS 5, Song et al. 2017)."""
    return struct_clust_given(batch, gamma, struct_clust_search(batch, gamma))


def spectral_clust(batch, ridge):
    """Spectral Clust, 1/2 |C - F F+|^2 row by row, ridge-regularized (METHODS 5, Law et al. 2017)."""
    dim = len(batch.candidates[0])
    gram = ridge * torch.eye(dim, dtype=torch.float64)
    for candidate in batch.candidates:
        gram = gram + torch.outer(candidate, candidate)
    inverse = torch.linalg.inv(gram)
    terms = []
    for q in range(batch.query_count):
        class_size = batch.candidate_labels.count(batch.labels[q])
        term = zero()
        for c in range(batch.candidate_count):
            target = 1 / class_size if batch.candidate_labels[c] == batch.labels[q] else 0.0
            projected = torch.dot(batch.queries[q], torch.mv(inverse, batch.candidates[c]))
            term = term + 0.5 * (target - projected) ** 2
        terms.append(term)
    return torch.stack(terms)
