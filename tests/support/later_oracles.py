"""Independent oracles of the later losses (METHODS 10), in the manner of `oracles`: plain loops, float64.

Written from METHODS and the papers' formulas alone. A formula is followed wherever it is defined; a mean
over nothing is 0, so a query without a positive has the term 0 unless its docstring says otherwise.
The query itself is never among its candidates (METHODS, notation), so no sum or rank below counts it.
"""

import torch

from support.oracles import hinge, log_sum_exp, zero


def unit(row):
    """The vector at length 1, in float64."""
    row = row.double()
    return row / torch.sqrt(torch.dot(row, row))


def log1p_sum_exp(exponents):
    """log(1 + the sum of the exponentials), exact where that sum is tiny too; 0 for an empty list."""
    return torch.logaddexp(zero(), log_sum_exp(exponents)) if exponents else zero()


def mean(values):
    """Mean of a list of scalar tensors; 0 for an empty list."""
    return sum(values, zero()) / max(1, len(values))


# ---------------------------------------------------------------- with proxies and centers


def proxy_anchor(batch, proxies, alpha=32.0, delta=0.1):
    """Proxy-Anchor (METHODS 10, Kim et al. 2020). Row y of `proxies` is the proxy of label y.

    The value belongs to the batch: every query gets all of it, so the mean over queries is the paper's.
    (A share for each query is no alternative: the logs of sums over images do not split.)
    The images x are the queries; candidates take no part. Every query has its proxy, so none is left out;
    a proxy that all images belong to has no negative, log(1 + 0) = 0, but counts in |P|.
    """
    proxies = [unit(proxy) for proxy in proxies]
    positive_logs, negative_logs = [], []
    for y, proxy in enumerate(proxies):
        pulls, pushes = [], []
        for q in range(batch.query_count):
            s = torch.dot(batch.queries[q], proxy)
            if batch.labels[q] == y:
                pulls.append(-alpha * (s - delta))
            else:
                pushes.append(alpha * (s + delta))
        if pulls:
            positive_logs.append(log1p_sum_exp(pulls))
        negative_logs.append(log1p_sum_exp(pushes))
    value = mean(positive_logs) + mean(negative_logs)
    return torch.stack([value for _ in range(batch.query_count)])


def soft_triple(batch, centers, gamma=0.1, scale=20.0, margin=0.01, tau=0.2):
    """SoftTriple (METHODS 10, Qian et al. 2019). centers: [classes, K, dim], row y those of label y.

    The cross-entropy is per query. The regularizer belongs to the centers: every query gets all of it.
    Candidates take no part. With one class the cross-entropy is 0; with K = 1 the regularizer is.
    """
    centers = [[unit(center) for center in rows] for rows in centers]
    class_count, center_count = len(centers), len(centers[0])
    # K(K - 1) is twice the number of pairs t < u: the paper's R is half the mean distance. METHODS and the
    # paper agree; the other reading, the sum over ordered pairs, would be the mean distance itself.
    # The 1e-5 under the root is in METHODS, not in the paper: it keeps the gradient of equal centers finite.
    distances = zero()
    for rows in centers:
        for u in range(center_count):
            for t in range(u):
                distances = distances + torch.sqrt(2 + 1e-5 - 2 * torch.dot(rows[t], rows[u]))
    regularizer = distances / max(1, class_count * center_count * (center_count - 1))
    terms = []
    for q in range(batch.query_count):
        logits = []
        for y, rows in enumerate(centers):
            similarities = [torch.dot(batch.queries[q], center) for center in rows]
            total = log_sum_exp([s / gamma for s in similarities])
            relaxed = zero()
            for s in similarities:  # the softmax weights are differentiated, as in the paper
                relaxed = relaxed + torch.exp(s / gamma - total) * s
            logits.append(scale * (relaxed - (margin if y == batch.labels[q] else 0.0)))
        own = logits[batch.labels[q]]
        others = [logit - own for y, logit in enumerate(logits) if y != batch.labels[q]]
        terms.append(log1p_sum_exp(others) + tau * regularizer)
    return torch.stack(terms)


# ---------------------------------------------------------------- pairs


def multi_similarity(batch, alpha=2.0, beta=50.0, lam=0.5, epsilon=0.1):
    """Multi-Similarity with its mining (METHODS 10, Wang et al. 2019).

    No positive or no negative: mining keeps nothing, so 0. Both are compared with all of the other kind,
    before mining, so one kept pair implies a kept pair of the other kind: "skip the query if one side is
    empty", the other reading, is the same. Mining is not differentiated. Copies of the query stay positives
    (METHODS names no threshold here).
    """
    terms = []
    for q in range(batch.query_count):
        positives = {p: batch.s(q, p) for p in batch.positives(q)}
        negatives = {n: batch.s(q, n) for n in batch.negatives(q)}
        farthest = min((s.item() for s in positives.values()), default=float("inf"))
        nearest = max((s.item() for s in negatives.values()), default=-float("inf"))
        pulls = [-alpha * (s - lam) for s in positives.values() if s.item() - epsilon < nearest]
        pushes = [beta * (s - lam) for s in negatives.values() if s.item() + epsilon > farthest]
        terms.append(log1p_sum_exp(pulls) / alpha + log1p_sum_exp(pushes) / beta)
    return torch.stack(terms)


def circle(batch, m=0.4, gamma=80.0):
    """Circle loss, weights constant (METHODS 10, Sun et al. 2020).

    No positive or no negative: the product of sums in log(1 + sum * sum) is 0, so 0. A pair whose weight is
    clipped to 0 stays in its sum as exp(0) = 1, as the formula says; leaving it out is the other reading.
    """
    terms = []
    for q in range(batch.query_count):
        pulls, pushes = [], []
        for p in batch.positives(q):
            s = batch.s(q, p)
            weight = max(0.0, 1 + m - s.item())
            pulls.append(-gamma * weight * (s - (1 - m)))
        for n in batch.negatives(q):
            s = batch.s(q, n)
            weight = max(0.0, s.item() + m)
            pushes.append(gamma * weight * (s - m))
        if pulls and pushes:
            terms.append(log1p_sum_exp([log_sum_exp(pushes) + log_sum_exp(pulls)]))
        else:
            terms.append(zero())
    return torch.stack(terms)


def supervised_contrastive(batch, temperature=0.1):
    """Supervised contrastive loss, the mean outside the log (METHODS 10, Khosla et al. 2020, L_out).

    No positive: 0. No negative: the formula stays, -mean log softmax among the positives (at least log |P|).
    All candidates, positives too, are in the denominator. No factor τ in front, as in METHODS.
    """
    terms = []
    for q in range(batch.query_count):
        positives = batch.positives(q)
        exponents = {c: batch.s(q, c) / temperature for c in positives + batch.negatives(q)}
        terms.append(mean([log_sum_exp(list(exponents.values())) - exponents[p] for p in positives]))
    return torch.stack(terms)


# ---------------------------------------------------------------- ranks


def step_sum(batch, q, x, others, temperature):
    """How many of `others` are nearer to query q than candidate x is, by sigmoids; x itself never counts."""
    total = zero()
    for z in others:
        if z != x:
            total = total + torch.sigmoid((batch.s(q, z) - batch.s(q, x)) / temperature)
    return total


def recall_at_k(batch, ks=(1, 2, 4, 8, 16), rank_temperature=0.01, recall_temperature=1.0):
    """Recall@k surrogate without SiMix (METHODS 10, Patel et al. 2022), mean over ks.

    No positive: 0. No negative: the formula stays; it is not 0 (a positive at rank k counts σ(0) = 1/2).
    A rank counts all other candidates, positives too, as METHODS' sum over z ≠ x does and the paper's; ranks
    among negatives only, the other reading, would let all positives share rank 1 and pass min(k, |P|).
    """
    terms = []
    for q in range(batch.query_count):
        positives, negatives = batch.positives(q), batch.negatives(q)
        ranks = [1 + step_sum(batch, q, x, positives + negatives, rank_temperature) for x in positives]
        losses = []
        for k in ks:
            found = zero()
            for rank in ranks:
                found = found + torch.sigmoid((k - rank) / recall_temperature)
            if ranks:
                losses.append(1 - found / min(k, len(ranks)))
        terms.append(mean(losses))
    return torch.stack(terms)


def smooth_ap(batch, tau=0.01):
    """Smooth-AP (METHODS 10, Brown et al. 2020).

    No positive: 0. No negative: 0, numerator and denominator are equal. The sums over j leave out i: its
    σ(0) = 1/2 on both sides, the literal reading of METHODS, would make the rank of the first 1.5.
    """
    terms = []
    for q in range(batch.query_count):
        positives, negatives = batch.positives(q), batch.negatives(q)
        losses = []
        for i in positives:
            above = 1 + step_sum(batch, q, i, positives, tau)
            intruders = step_sum(batch, q, i, negatives, tau)
            losses.append(intruders / (above + intruders))  # 1 - above / (above + intruders)
        terms.append(mean(losses))
    return torch.stack(terms)


def roadmap_ap(batch, tau=0.01, rho=100.0, delta=0.05, offset=1.44):
    """The AP part of ROADMAP, "SupAP" (METHODS 10, Ramzi et al. 2021). No positive or no negative: 0.

    A positive just as near counts in the exact step, H(0) = 1, as the paper has it; it has no gradient.
    The offset 1.44 is METHODS'; the paper's continuous one is σ(δ/τ) + 1/2 = 1.4933 at τ = .01, δ = .05, so
    with 1.44 the step function falls by .0533 at t = δ.
    """
    terms = []
    for q in range(batch.query_count):
        losses = []
        for i in batch.positives(q):
            nearer = [
                p for p in batch.positives(q) if p != i and batch.s(q, p).item() >= batch.s(q, i).item()
            ]
            intruders = zero()
            for n in batch.negatives(q):
                t = batch.s(q, n) - batch.s(q, i)
                if t.item() <= 0:
                    intruders = intruders + torch.sigmoid(t / tau)
                elif t.item() <= delta:
                    intruders = intruders + 0.5 + torch.sigmoid(t / tau)
                else:
                    intruders = intruders + rho * (t - delta) + offset
            losses.append(intruders / (1 + len(nearer) + intruders))  # 1 - rank among positives / rank
        terms.append(mean(losses))
    return torch.stack(terms)


def roadmap_calibration(batch, near=0.9, far=0.6):
    """The calibration of ROADMAP, each hinge averaged over the query's pairs of its kind (METHODS 10).

    Each part is 0 alone: a query without positives keeps its negatives' hinge, and the reverse. METHODS gives
    no mean: other readings are sums, and means over all pairs of the batch or over active pairs only. A mean
    per query keeps negatives, which are many more, from outweighing positives, and the terms apart.
    """
    terms = []
    for q in range(batch.query_count):
        positive_part = mean([hinge(near - batch.s(q, p)) for p in batch.positives(q)])
        negative_part = mean([hinge(batch.s(q, n) - far) for n in batch.negatives(q)])
        terms.append(positive_part + negative_part)
    return torch.stack(terms)


def roadmap(batch, tau=0.01, rho=100.0, delta=0.05, near=0.9, far=0.6, offset=1.44):
    """ROADMAP, AP part "plus" calibration as METHODS 10 says: a plain sum.

    The paper has (1 - λ) AP + λ calibration with λ = 1/2, half of this: combine the two parts for it.
    """
    return roadmap_ap(batch, tau, rho, delta, offset) + roadmap_calibration(batch, near, far)
