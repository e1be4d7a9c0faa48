"""Proxies: learned vectors that stand for classes, which the losses over them share."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs, check_range


class ProxyLoss(Loss):
    """A loss of images against learned proxies of their classes; a subclass writes `proxy_terms`.

    A proxy is a direction: it is normalized like an embedding. Proxy i stands for class i // per_class. The
    proxies are parameters: give `loss.parameters()` to the optimizer, at 10 to 100 times the base rate.
    Candidates passed to the call are not used: the proxies are the candidates. On many ranks every rank sees
    the whole batch, so what is averaged over a batch stays that.

    Args:
        classes: number of classes. Labels must be below it.
        dim: dimensions of the embedding.
        per_class: proxies of each class.
        reduction: over queries.

    >>> class Pull(ProxyLoss):
    ...     "How far a query is from its class's proxy."
    ...     def proxy_terms(self, pairs):
    ...         return (pairs.distance * pairs.positive).sum(dim=1)
    >>> loss = Pull(classes=3, dim=4)
    >>> loss(torch.eye(4), torch.tensor([0, 1, 2, 2])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([3, 4])
    """

    def __init__(self, classes: int, dim: int, per_class: int = 1, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        name = type(self).__name__
        if classes < 1 or dim < 1:
            raise UserError(f"{name}(classes={classes}, dim={dim}): both must be at least 1")
        if per_class < 1:
            raise UserError(f"{name}(per_class={per_class}): per_class must be at least 1")
        self.classes = classes
        self.per_class = per_class
        self.proxies = nn.Parameter(torch.randn(classes * per_class, dim))

    def to_proxies(self, pairs: Pairs) -> Pairs:
        """The same queries against all proxies: those of a query's class are its positives.

        >>> from firstpage.losses import ProxyNCA
        >>> loss = ProxyNCA(classes=3, dim=2)
        >>> loss.to_proxies(Pairs.of(torch.eye(2), torch.tensor([2, 0]))).positive.int()
        tensor([[0, 0, 1],
                [1, 0, 0]], dtype=torch.int32)
        """
        name, dim = type(self).__name__, self.proxies.shape[1]
        if dim != pairs.queries.shape[1]:
            given = pairs.queries.shape[1]
            raise UserError(f"embeddings have {given} dimensions: {name}(dim={dim}) needs dim={given}")
        # On a GPU, where this does not look, a label without a proxy has no positive.
        check_range("labels", pairs.labels, self.classes, f"{name}(classes={self.classes})")
        classes = torch.arange(len(self.proxies), device=pairs.labels.device)
        if self.per_class > 1:
            classes = classes // self.per_class
        return pairs.against(self.proxies, classes)

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: what each query contributes."""
        return self.proxy_terms(self.to_proxies(pairs))

    @abstractmethod
    def proxy_terms(self, pairs: Pairs) -> Tensor:
        """[Q]: what each query contributes, the candidates of `pairs` being the proxies."""
