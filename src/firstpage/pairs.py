"""Pairs: queries against candidates, the one object every method reads.

A step computes it once. Mining, losses and health share it, and none of them knows whether the candidates
are the batch itself, all ranks' batches, a cross-batch memory or a whole gallery.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from firstpage._sphere import distances, full_precision, products, scale_gradient, squared_distances, unit
from firstpage.errors import UserError

__all__ = ["Pairs", "check_range", "full_precision", "scale_gradient", "unit"]


@dataclass(frozen=True, eq=False, init=False)
class Pairs:
    """Every query compared with every candidate: similarity, distance, who is positive, who negative.

    Build it with `Pairs.of`. All matrices are [queries × candidates]; the similarity is the cosine, in
    float32 (float64 if the embeddings are) even under autocast, and differentiable. It and the masks are
    computed when they are first read, and kept: a loss over proxies never reads them. An image is neither
    positive nor negative to itself.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    >>> pairs.similarity
    tensor([[1.0000, 0.8000, 0.0000],
            [0.8000, 1.0000, 0.6000],
            [0.0000, 0.6000, 1.0000]])
    >>> pairs.positive.int()
    tensor([[0, 1, 0],
            [1, 0, 0],
            [0, 0, 0]], dtype=torch.int32)
    """

    queries: Tensor  # [Q, D] as given (not normalized), at least float32
    labels: Tensor  # [Q]
    candidates: Tensor  # [C, D]
    candidate_labels: Tensor  # [C]
    similarity: Tensor  # [Q, C] cosine
    positive: Tensor  # [Q, C] bool: of the query's class, and another image
    negative: Tensor  # [Q, C] bool: of another class
    image_ids: Tensor | None = None  # [Q] which image each query is
    candidate_ids: Tensor | None = None  # [C] likewise
    _computed: dict[str, Tensor] = field(init=False, repr=False)  # what was read so far
    _cosine: bool = field(init=False, repr=False)  # whether the similarity is the cosine of the vectors here
    _with_gradient: bool = field(init=False, repr=False)

    def __init__(
        self,
        queries: Tensor,
        labels: Tensor,
        candidates: Tensor,
        candidate_labels: Tensor,
        similarity: Tensor | None,  # None: the cosine
        positive: Tensor | None,  # None: by the labels
        negative: Tensor | None,
        image_ids: Tensor | None = None,
        candidate_ids: Tensor | None = None,
    ) -> None:
        keep = partial(object.__setattr__, self)
        keep("queries", queries)
        keep("labels", labels)
        keep("candidates", candidates)
        keep("candidate_labels", candidate_labels)
        keep("image_ids", image_ids)
        keep("candidate_ids", candidate_ids)
        given = {"similarity": similarity, "positive": positive, "negative": negative}
        keep("_computed", {name: value for name, value in given.items() if value is not None})
        keep("_cosine", similarity is None)
        keep("_with_gradient", torch.is_grad_enabled())  # now, wherever it is first read

    @classmethod
    def of(
        cls,
        embeddings: Tensor,
        labels: Tensor,
        candidates: Tensor | None = None,
        candidate_labels: Tensor | None = None,
        *,
        image_ids: Tensor | None = None,
        candidate_ids: Tensor | None = None,
    ) -> Pairs:
        """Compare `embeddings` with `candidates`, or with one another when there are none.

        Without candidates, query i and candidate i are one image, so the diagonal is left out. With
        candidates, give `image_ids` and `candidate_ids` where a query's own image may be among them (a
        memory, a gathered batch): equal ids are one image. Values are checked for NaN on the CPU only;
        on a GPU the check would stall every step.

        Args:
            embeddings: [Q, D] floats. They need not be normalized.
            labels: [Q] integers, the class of each row.
            candidates: [C, D] floats; the batch itself if left out.
            candidate_labels: [C] integers.
            image_ids: [Q] integers, the image each row shows.
            candidate_ids: [C] integers, likewise.

        Raises:
            UserError: naming the argument, its value and the remedy.

        >>> gallery = torch.eye(3)
        >>> Pairs.of(torch.tensor([[0.6, 0.8, 0.0]]), torch.tensor([1]), gallery, torch.arange(3)).distance
        tensor([[0.8944, 0.6325, 1.4142]])
        """
        _check_rows("embeddings", embeddings, "labels", labels)
        if candidates is None:
            if candidate_labels is not None or candidate_ids is not None:
                raise UserError(
                    "candidates=None: pass the candidates that candidate_labels/candidate_ids describe"
                )
            candidates, candidate_labels, candidate_ids = embeddings, labels, image_ids
        else:
            if candidate_labels is None:
                raise UserError(
                    "candidate_labels=None: candidates need candidate_labels, one integer per row"
                )
            _check_candidates(candidates, candidate_labels, embeddings)
        if (image_ids is None) != (candidate_ids is None):
            missing = "image_ids" if image_ids is None else "candidate_ids"
            raise UserError(f"{missing}=None: image_ids and candidate_ids go together: pass {missing} too")
        if image_ids is not None and candidate_ids is not None:
            _check_integers("image_ids", image_ids, embeddings)
            _check_integers("candidate_ids", candidate_ids, candidates)
            own_ids = candidate_ids is image_ids
            image_ids = image_ids.long()
            candidate_ids = image_ids if own_ids else candidate_ids.long()
        # As torch reads an index: uint8 would be taken for a mask.
        labels, candidate_labels = labels.long(), candidate_labels.long()
        # float16 and bfloat16 become float32; float64 stays
        dtype = torch.promote_types(torch.promote_types(embeddings.dtype, candidates.dtype), torch.float32)
        queries = embeddings.to(dtype)
        return cls(
            queries=queries,
            labels=labels,
            candidates=queries if candidates is embeddings else candidates.to(dtype),
            candidate_labels=candidate_labels,
            similarity=None,
            positive=None,
            negative=None,
            image_ids=image_ids,
            candidate_ids=candidate_ids,
        )

    def _once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` returns, which is kept: mining and losses share it."""
        if name not in self._computed:
            with torch.set_grad_enabled(self._with_gradient), full_precision(self.queries):
                self._computed[name] = compute()
        return self._computed[name]

    @property
    def unit_queries(self) -> Tensor:
        """[Q, D] the queries, scaled to length one.

        >>> Pairs.of(torch.tensor([[3.0, 4.0]]), torch.tensor([0])).unit_queries
        tensor([[0.6000, 0.8000]])
        """
        return self._once("queries", lambda: unit(self.queries))

    @property
    def unit_candidates(self) -> Tensor:
        """[C, D] the candidates, scaled to length one.

        >>> Pairs.of(torch.tensor([[3.0, 4.0]]), torch.tensor([0])).unit_candidates
        tensor([[0.6000, 0.8000]])
        """
        if self.candidates is self.queries:
            return self.unit_queries
        return self._once("candidates", lambda: unit(self.candidates))

    @property  # type: ignore[no-redef]
    def similarity(self) -> Tensor:
        """[Q, C] cosine, or what the pairs were given in its place."""
        return self._once("similarity", lambda: products(self.unit_queries, self.unit_candidates))

    @property  # type: ignore[no-redef]
    def positive(self) -> Tensor:
        """[Q, C] of the query's class, and another image."""
        return self._mask("positive")

    @property  # type: ignore[no-redef]
    def negative(self) -> Tensor:
        """[Q, C] of another class."""
        return self._mask("negative")

    def _mask(self, name: str) -> Tensor:
        if name not in self._computed:
            own = self.candidates is self.queries
            ids = self.image_ids, self.candidate_ids
            positive, negative = _masks(self.labels, self.candidate_labels, *ids, own)
            self._computed.setdefault("positive", positive)
            self._computed.setdefault("negative", negative)
        return self._computed[name]

    @property
    def distance(self) -> Tensor:
        """[Q, C] Euclidean distance of the unit vectors, d = √(2 − 2s).

        Its slope −1/d has no bound at d = 0, where two images coincide and there is no direction to push
        in; there the distance is 0 with gradient 0. Rounding in s blurs d² by a few units of machine
        precision, so that much counts as 0.

        >>> pairs = Pairs.of(torch.ones(2, 4, requires_grad=True), torch.tensor([0, 0]))
        >>> pairs.distance.detach()
        tensor([[0., 0.],
                [0., 0.]])
        """
        return self._once("distance", lambda: distances(self.similarity))

    @property
    def squared_distance(self) -> Tensor:
        """[Q, C] d² = 2 − 2s, where no root is needed; 0 where the distance is.

        >>> Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 0])).squared_distance
        tensor([[0.0000, 0.8000],
                [0.8000, 0.0000]])
        """
        return self._once("squared_distance", lambda: squared_distances(self.similarity))

    @property
    def candidate_similarity(self) -> Tensor:
        """[C, C] cosine of the candidates with one another.

        >>> pairs = Pairs.of(torch.ones(1, 2), torch.tensor([0]), torch.eye(2), torch.tensor([0, 1]))
        >>> pairs.candidate_similarity
        tensor([[1., 0.],
                [0., 1.]])
        """
        if self.candidates is self.queries and self._cosine:
            return self.similarity
        vectors = self.unit_candidates
        return self._once("candidate_similarity", lambda: products(vectors, vectors))

    def against(self, candidates: Tensor, candidate_labels: Tensor) -> Pairs:
        """The same queries, normalized once, against other candidates: all other images, such as proxies.

        >>> pairs = Pairs.of(torch.eye(2), torch.tensor([0, 1]))
        >>> pairs.against(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).similarity
        tensor([[0.6000],
                [0.8000]])
        """
        _check_candidates(candidates, candidate_labels, self.queries)
        candidates, candidate_labels = candidates.to(self.queries.dtype), candidate_labels.long()
        pairs = Pairs(self.queries, self.labels, candidates, candidate_labels, None, None, None)
        pairs._computed["queries"] = self.unit_queries
        return pairs

    def with_constant_candidates(self) -> Pairs:
        """The same pairs, but only the queries receive gradient.

        >>> batch = torch.eye(3, requires_grad=True)
        >>> pairs = Pairs.of(batch, torch.tensor([0, 0, 1])).with_constant_candidates()
        >>> pairs.similarity[0].sum().backward()  # the query's own list moves the query alone
        >>> batch.grad.abs().sum(dim=1)
        tensor([2., 0., 0.])
        """
        constant = self.unit_candidates.detach()
        with full_precision(self.queries):
            similarity = self.unit_queries @ constant.T
        return replace(self, candidates=self.candidates.detach(), similarity=similarity)

    def without_copies(self, threshold: float = 0.9999) -> Pairs:
        """The same pairs, where a candidate more similar than `threshold` is not a positive.

        An oversampled class repeats an image within a batch, and the copy would always be the easiest
        positive. (With `image_ids` copies are known exactly and were left out by `of`.)

        >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 0, 0]))
        >>> pairs.without_copies().positive[0]
        tensor([False, False,  True])
        """
        return replace(self, positive=self.positive & (self.similarity.detach() <= threshold))

    def probe(self, similarity: Tensor | None = None) -> Pairs:
        """The same pairs as constants, with a similarity of which a loss can be differentiated.

        Args:
            similarity: [Q, C] another one to look at; its own if left out.

        >>> probe = Pairs.of(torch.eye(3), torch.tensor([0, 0, 1])).probe()
        >>> torch.autograd.grad(probe.similarity[probe.positive].sum(), probe.similarity)[0]
        tensor([[0., 1., 0.],
                [1., 0., 0.],
                [0., 0., 0.]])
        """
        queries = self.queries.detach().requires_grad_()
        own = self.candidates is self.queries
        leaf = (self.similarity if similarity is None else similarity).detach().clone().requires_grad_()
        parts = (self.positive, self.negative, self.image_ids)
        candidates = queries if own else self.candidates.detach()
        return _ProbedPairs(queries, self.labels, candidates, self.candidate_labels, leaf, *parts)

    def weighted(self, weights: Tensor) -> Pairs:
        """The same pairs, of which each receives its weight times the gradient; no value changes.

        For a loss that is a sum over pairs this is the gradient of the sum with these weights. Any other
        loss can be weighted too.

        Args:
            weights: Constants [Q, C] of pairs, or [Q, 1] of queries.

        >>> batch = torch.eye(2, requires_grad=True)
        >>> pairs = Pairs.of(batch, torch.tensor([0, 0])).weighted(torch.tensor([[3.0], [0.0]]))
        >>> pairs.similarity[0, 1].backward()
        >>> batch.grad
        tensor([[0., 3.],
                [3., 0.]])
        """
        scaled = scale_gradient(self.similarity, weights)
        parts = (self.positive, self.negative, self.image_ids)
        given = (self.queries, self.labels, self.candidates, self.candidate_labels, scaled, *parts)
        return _WeightedPairs(*given, weights=weights)


class _ProbedPairs(Pairs):
    """Pairs of which the gradient of the similarity matrix is read, so every loss must use that matrix."""

    def with_constant_candidates(self) -> Pairs:
        return self


@dataclass(frozen=True, eq=False, init=False)
class _WeightedPairs(Pairs):
    """Pairs that stay weighted when their similarity is computed again."""

    weights: Tensor | float = 1.0

    def __init__(self, *fields: Tensor | None, weights: Tensor | float = 1.0, **named: Tensor | None) -> None:
        super().__init__(*fields, **named)  # type: ignore[arg-type]
        object.__setattr__(self, "weights", weights)

    def with_constant_candidates(self) -> Pairs:
        pairs = super().with_constant_candidates()
        return replace(pairs, similarity=scale_gradient(pairs.similarity, self.weights))


def _masks(
    labels: Tensor,
    candidate_labels: Tensor,
    image_ids: Tensor | None,
    candidate_ids: Tensor | None,
    own: bool,
) -> tuple[Tensor, Tensor]:
    """Who is positive and who negative, [Q, C]; if `own`, query i and candidate i are one image."""
    same = labels[:, None] == candidate_labels[None, :]
    if image_ids is not None and candidate_ids is not None:
        itself = image_ids[:, None] == candidate_ids[None, :]
        if own and candidate_ids is not image_ids:
            itself.fill_diagonal_(True)
        return same & ~itself, ~(same | itself)
    negative = ~same
    return same.fill_diagonal_(False) if own else same, negative


def _check_rows(name: str, vectors: Tensor, labels_name: str, labels: Tensor) -> None:
    """Complain of anything that is not one float vector and one integer label a row."""
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or 0 in vectors.shape:
        got = f"shape {tuple(vectors.shape)}" if isinstance(vectors, Tensor) else type(vectors).__name__
        raise UserError(f"{name}: got {got}, need a tensor [images, dimensions] with one row per image")
    if not vectors.is_floating_point():
        raise UserError(f"{name}: got dtype {vectors.dtype}, need floats: call {name}.float()")
    _check_integers(labels_name, labels, vectors)
    # Reading a value on a GPU waits for it, and a compiled graph has no values: CPU only.
    if not torch.compiler.is_compiling() and vectors.device.type == "cpu":
        if math.isfinite(vectors.detach().sum()):  # one pass; what is finite may still have no finite sum
            return
        bad = ~vectors.detach().isfinite().all(dim=1)
        if bad.any():
            raise UserError(
                f"{name}: row {int(bad.nonzero()[0])} holds NaN or infinity: "
                "lower the learning rate, clip the gradient, or look for a broken image"
            )


def _check_candidates(candidates: Tensor, labels: Tensor, embeddings: Tensor) -> None:
    _check_rows("candidates", candidates, "candidate_labels", labels)
    _check_device("candidates", candidates, embeddings)
    if candidates.shape[1] != embeddings.shape[1]:
        raise UserError(
            f"candidates have {candidates.shape[1]} dimensions and embeddings {embeddings.shape[1]}: "
            "embed both with the same model"
        )


def _check_integers(name: str, values: Tensor, vectors: Tensor) -> None:
    rows = len(vectors)
    if not isinstance(values, Tensor) or values.ndim != 1 or len(values) != rows:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"{name}: got {got}, need a tensor of shape ({rows},): one integer per row")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise UserError(f"{name}: got dtype {values.dtype}, need integers: call {name}.long()")
    _check_device(name, values, vectors)


def _check_device(name: str, tensor: Tensor, embeddings: Tensor) -> None:
    if tensor.device != embeddings.device:
        raise UserError(
            f"{name} on {tensor.device}, embeddings on {embeddings.device}: "
            f"call {name}.to({str(embeddings.device)!r})"
        )


def check_range(name: str, index: Tensor, count: int, owner: str) -> None:
    """Complain of an index that the table of `owner` has no entry for; on the CPU, where looking is free.

    >>> check_range("labels", torch.tensor([0, 7]), 3, "ProxyNCA(classes=3)")
    Traceback (most recent call last):
    firstpage.errors.UserError: labels run from 0 to 7: ProxyNCA(classes=3) knows 0 to 2: renumber ...
    """
    if torch.compiler.is_compiling() or index.device.type != "cpu":
        return
    low, high = (int(value) for value in index.aminmax())
    if low < 0 or high >= count:
        raise UserError(
            f"{name} run from {low} to {high}: {owner} knows 0 to {count - 1}: "
            "renumber them, or make it larger"
        )
