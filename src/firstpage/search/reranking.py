"""The first results of a search in the order of a learned similarity."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search.vectors import Vectors


def rerank_results(
    model: Embedder, stored: Vectors, queries: Tensor, scores: Tensor, rows: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return results with the first `count` of each query in the order of what the model learned of pairs.

    Args:
        model: The embedder, with a `pair_similarity`.
        stored: The vectors of the index.
        queries: [Q, dim] Unit vectors.
        scores: [Q, R] Cosines of the results, best first; -inf fills up.
        rows: [Q, R] Their rows.
        count: How many to compare again.

    Raises:
        UserError: The model has learned no similarity, or the index has not all its dimensions.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> rerank_results(model, None, torch.eye(4), torch.ones(4, 1), torch.zeros(4, 1), 100)
    Traceback (most recent call last):
    firstpage.errors.UserError: rerank=100: the model has learned no similarity: train it with ...
    """
    if model.pair_similarity is None:
        raise UserError(
            f"rerank={count}: the model has learned no similarity: train it with loss.name='pddm' and "
            "model.rerank=true"
        )
    if queries.shape[1] != model.dim:
        raise UserError(
            f"rerank={count}: the index has {queries.shape[1]} of the model's {model.dim} dimensions: "
            "build it with all of them"
        )
    learned = torch.full_like(scores[:, :count], -torch.inf)
    with torch.inference_mode():
        for number, query in enumerate(queries):  # one at a time: the results of all might not fit
            found = scores[number, :count] > -torch.inf
            vectors = stored.decode(rows[number, :count][found].numpy())
            learned[number, found] = model.pair_similarity(
                query.to(model.device), vectors.to(model.device)
            ).cpu()
    order = torch.arange(rows.shape[1]).repeat(len(rows), 1)
    order[:, :count] = learned.sort(dim=1, descending=True, stable=True).indices
    return scores.gather(1, order), rows.gather(1, order)
