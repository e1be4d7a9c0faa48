"""The forward and backward pass of a training step; `TrainJob.update` then updates the weights."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from firstpage.losses import Ensemble
from firstpage.models.embedder import Embedder
from firstpage.pairs import Pairs
from firstpage.recipes.recipe import Recipe
from firstpage.training.compiling import compile_network
from firstpage.training.feedback import marked_loss
from firstpage.training.gradient_caching import Levels, backward, chunk_slices
from firstpage.training.health import step_health
from firstpage.training.memory import Memory
from firstpage.training.ranks import Ranks
from firstpage.training.seeding import seeded


class TrainStep:
    """Computes the loss of a batch and its gradients: for `fit`, for `reproduce` and for health metrics.

    Every rank embeds its share of the global batch, in chunks if asked for; the embeddings are gathered, and
    the loss of the whole batch is computed on every rank. All random numbers are functions of the seed and
    the step, so a step can be repeated exactly.

    Args:
        recipe: The recipe of the run.
        model: The model to train.
        criteria: The losses of all levels, that is, of the learners of the model.
        memories: The cross-batch memory of each level, or none.
        half: Run the network in bfloat16.
        ranks: The processes that share a batch.
        marked: Number of images at the end of each batch that are marked pairs; see `training.feedback`.

    Attributes:
        levels: The embeddings [B, D] of the last global batch but its marked pairs, one tensor a level.
        parameters: Those of the model, but for those of the losses.
        is_frozen: Whether the backbone is not trained for now. The network is not run compiled then: without
            a backward pass through the backbone that would gain little, and it would be compiled twice.

    >>> model = Embedder.create(backbone="small", dim=4, stored=32, crop=32)
    >>> from firstpage.losses import NCA
    >>> step = TrainStep(Recipe(), model, Ensemble([NCA()]))
    >>> images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) // 2
    >>> loss = step(lambda rows: images[rows], labels, torch.arange(8), step=0)
    >>> loss.ndim, step.levels[0].shape, model.backbone.conv.weight.grad is None
    (0, torch.Size([8, 4]), False)
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Embedder,
        criteria: Ensemble,
        memories: Sequence[Memory] = (),
        *,
        half: bool = False,
        ranks: Ranks | None = None,
        marked: int = 0,
    ) -> None:
        self.recipe, self.model, self.criteria, self.memories = recipe, model, criteria, memories
        self.half, self.ranks = half, Ranks() if ranks is None else ranks
        self.levels: list[Tensor] = []
        self.is_frozen = False
        self._marked = marked
        self._device = model.device
        # Listed once: a network of many parts is slow to walk. What a loss learns may be a part of the model.
        learned = set(criteria.parameters())
        self.parameters = [parameter for parameter in model.parameters() if parameter not in learned]
        compiled = recipe.train.compile
        whole = recipe.batch.chunk == 0
        self._network = compile_network(model.raw, self._device, cuda_graphs=whole) if compiled else model.raw

    def __call__(
        self,
        images: Callable[[slice], Tensor],
        labels: Tensor,
        ids: Tensor,
        step: int,
        *,
        shares: Sequence[slice] | None = None,
        check: Callable[..., None] | None = None,
    ) -> Tensor:
        """Add the gradients of a batch to the parameters of model and losses, and return its loss, detached.

        Args:
            images: Returns the network input of a slice of the global batch.
            labels: [B] The classes of the global batch.
            ids: [B] Its images, as rows of the catalog.
            step: Number of steps before this one.
            shares: The slices to embed here. Defaults to this rank's share.
            check: Called with the gathered embeddings before the loss is computed.
        """
        device, seed = self._device, self.recipe.train.seed

        def embed(rows: slice) -> Levels:
            batch = images(rows)
            network = self.model.raw if self.is_frozen else self._network
            with torch.autocast(device.type, torch.bfloat16, enabled=self.half):
                return network(batch)

        def loss(levels: Levels) -> Tensor:
            together = shares is not None  # then all rows are here
            whole = [level if together else self.ranks.gather(level, len(ids)) for level in levels]
            if check is not None:
                check(*whole)
            count = len(ids) - self._marked
            self.levels = [level[:count] for level in whole] if self._marked else whole
            with seeded(device, "loss", seed, step):  # the same random numbers on all ranks
                value = self._loss(labels[:count], ids[:count])
            if not self._marked:
                return value
            marks = [marked_loss(level[count:], labels[count:]) for level in whole]
            return value + self.recipe.train.feedback * torch.stack(marks).sum()

        value = backward(
            self.model,
            embed,
            loss,
            [self.ranks.share(len(ids))] if shares is None else shares,
            self.recipe.batch.chunk,
            key=("dropout", seed, step),
        )
        self.ranks.all_reduce_gradients(self.parameters, self.criteria.parameters())
        return value

    def split(self, count: int) -> list[slice]:
        """Return the parts of a batch of `count` images that are embedded here, one at a time."""
        return chunk_slices(self.ranks.share(count), self.recipe.batch.chunk)

    def _loss(self, labels: Tensor, ids: Tensor) -> Tensor:
        """Return the loss of the ensemble of all levels."""
        candidates = [self._candidates(number, labels, ids) for number in range(len(self.levels))]
        # Not compiled: that takes half a minute a loss, and the GPU is busy with the network meanwhile.
        loss: Tensor = self.criteria(self.levels, labels, candidates)
        return loss

    def _candidates(self, number: int, labels: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return what the loss of a level compares its batch with: the batch itself, and its memory."""
        if not self.memories:
            return {"image_ids": ids}
        return self.memories[number].candidates(self.levels[number], labels, ids)

    def health(self, labels: Tensor, ids: Tensor, step: int) -> dict[str, Tensor]:
        """Return the health metrics of the last level in the last step, on its device; see `step_health`.

        Of a model with several learners, `loss/diversity` is what keeps them apart, before its weight.
        """
        self.levels = [level.detach() for level in self.levels]
        last, count = len(self.levels) - 1, len(self.levels[0])
        labels, ids = labels[:count], ids[:count]
        pairs = Pairs.of(self.levels[last], labels, **self._candidates(last, labels, ids))
        with seeded(self._device, "loss", self.recipe.train.seed, step):  # as the step drew them
            metrics = step_health(self.criteria[last], pairs)
        if self.criteria.diversity is not None:
            with torch.no_grad():
                metrics["loss/diversity"] = self.criteria.diversity(self.levels)
        return metrics

    def push_memories(self, labels: Tensor, ids: Tensor, unless: Tensor) -> None:
        """Push the last batch into the memories, unless a flag on the device is set."""
        for memory, level in zip(self.memories, self.levels, strict=False):
            memory.push(level, labels[: len(level)], ids[: len(level)], unless=unless)
