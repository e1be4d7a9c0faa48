"""The sections of a recipe: every key, its default and its meaning. `[loss]` has the arguments of a loss."""

from dataclasses import dataclass, field

from firstpage.errors import UserError

HEADS = ("linear", "pca", "mlp", "none", "multilevel", "split", "attention")
MOST_LEARNERS = 64


def _not_negative(section: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not value >= 0:
            raise UserError(f"{section}.{name}={value}: must not be negative")


@dataclass(frozen=True)
class ModelSettings:
    """Settings of an `Embedder`, and the `[model]` table of a recipe.

    Args:
        backbone: One that `firstpage list backbones` names, `timm:NAME`, or `package.module:Class` for one of
            your own.
        options: Further arguments of that backbone, such as `{"strides": "v1"}` for a ResNet.
        weights: A file of pretrained weights, or `imagenet`. Defaults to random weights.
        pooling: `avg`, `max`, `avg+max`, `gem` or `cls`.
        stages: How many of the backbone's three stages the head sees, from the last: their pooled features,
            side by side. Low stages know colors, textures and shapes that the last one has forgotten, which a
            head that is trained alone gains from; set `layer_norm`, too, as the stages differ in scale.
        layer_norm: Normalize the pooled features before the head, each stage by itself.
        head: `linear`, `pca` (linear; a run starts it at the principal components of the training images'
            features instead of random weights, which helps where `dim` is small), `mlp`, `none` (the pooled
            features themselves), or one that gives several embeddings, each with a loss of its own:
            `multilevel` (a linear head on each of three stages), `split` (one linear layer, cut into
            `learners`) or `attention` (a mask on the middle stage for each learner).
        dim: Dimensions of the embedding; without `learners`, those of each level of a `multilevel` head.
        learners: Dimensions of each learner of a head with several. They add up to `dim`. In the embedding,
            learners are unit vectors times their share of the dimensions; without this setting, the levels of
            a `multilevel` head are concatenated as they are.
        standardize: Add a batch norm without scale after the head. A network with random weights maps all
            images to nearly one point, where losses with a hinge have no gradient; this moves them apart.
        rerank: Save the similarity that the loss `pddm` learns, to order the first results of a search by it.
        freeze_batch_norm: Do not update the batch norms of a pretrained network; best on small data.
        checkpointing: Recompute activations in the backward pass, to save memory.
        stored: Side of the stored images, in pixels, or their `[height, width]` if they are not square.
        resize: How an image is scaled to it: `shorter` scales the shorter side and keeps the aspect, `squash`
            scales both, `pad` the longer one and pads.
        crop: Side of the central crop that the network gets, or `[height, width]`. Defaults to the input size
            of the backbone.
        boxes: Cut images of data with boxes (CUB, Cars, In-Shop) to them, in training, tests and indexes.
            Images of other data stay whole, so cut a query to its object (`firstpage search --box`).

    >>> ModelSettings(backbone="small", dim=64).pooling
    'avg'
    """

    backbone: str = "resnet50"
    options: dict[str, object] = field(default_factory=dict)
    weights: str | None = field(default=None, metadata={"example": "imagenet"})
    pooling: str = "avg"
    stages: int = 1
    layer_norm: bool = False
    head: str = "linear"
    dim: int = 512
    learners: tuple[int, ...] = ()
    standardize: bool = False
    rerank: bool = False
    freeze_batch_norm: bool = False
    checkpointing: bool = False
    stored: int | tuple[int, int] = 256
    resize: str = "shorter"
    crop: int | tuple[int, int] | None = field(default=None, metadata={"example": 224})
    boxes: bool = False

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise UserError(f"model.head={self.head!r}: choose one of {', '.join(HEADS)}")
        self._check_learners()
        if not 1 <= self.stages <= 3:
            raise UserError(f"model.stages={self.stages}: must be in 1..3")
        if self.stages > 1 and self.head in ("multilevel", "attention"):
            raise UserError(
                f"model.stages={self.stages}: model.head={self.head!r} has its own stages: set model.stages=1"
            )
        for name in ("weights", "checkpointing", "name"):
            if name in self.options:
                raise UserError(f"model.options: {name!r} is not an option of a backbone; remove it")
        if not 1 <= self.dim <= 2**16:
            raise UserError(f"model.dim={self.dim}: must be in 1..{2**16}")
        stored = (self.stored, self.stored) if isinstance(self.stored, int) else self.stored
        crop = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        if not 1 <= min(stored) <= max(stored) <= 2**13:
            raise UserError(f"model.stored={self.stored}: must be in 1..{2**13}")
        if crop is not None and not all(1 <= side <= most for side, most in zip(crop, stored, strict=True)):
            raise UserError(
                f"model.crop={self.crop}: must be in 1..{self.stored}, the side of the stored images"
            )

    def _check_learners(self) -> None:
        learners, several = list(self.learners), self.head in ("split", "attention")
        given = f"model.learners={learners}"
        if not learners and not several:
            return
        if not several and self.head != "multilevel":
            raise UserError(f"{given}: model.head={self.head!r} is one learner: set model.learners=[]")
        if self.head == "multilevel" and len(learners) != 3:
            raise UserError(f"{given}: a multilevel head has three: give three, or none")
        if not 2 <= len(learners) <= MOST_LEARNERS or min(learners) < 1:
            raise UserError(
                f"{given}: give the dimensions of 2 to {MOST_LEARNERS} learners, such as [96, 160, 256]"
            )
        if sum(learners) != self.dim:
            raise UserError(f"{given}: add up to {sum(learners)}: set model.dim={sum(learners)}")
        if self.head == "attention" and len(set(learners)) > 1:
            raise UserError(f"{given}: learners of an attention head share a layer: give them one size")


@dataclass(frozen=True)
class EnsembleSettings:
    """`[ensemble]`: what the loss of each learner sees, for a `model.head` that gives several.

    Args:
        rule: `sum` (every learner sees all pairs), `cascade` (each the hardest pairs of the one before) or
            `boost` (all pairs, weighted by what the learners before it leave wrong). See `losses.Ensemble`.
        shares: For `cascade`: the share of all pairs that each learner sees, the first 1.
        diversity: What keeps learners apart, besides: `activation`, `adversarial`, `divergence` or `none`;
            see `losses.diversity`.
        weight: Weight of that term: about 1 for `divergence`, 0.01 for `activation`, 1e-4 for `adversarial`.
        margin: For `divergence`: the squared distance at which two learners are left alone.

    >>> EnsembleSettings(rule="cascade").shares
    (1.0, 0.5, 0.2)
    """

    rule: str = "sum"
    shares: tuple[float, ...] = (1.0, 0.5, 0.2)
    diversity: str = "none"
    weight: float = 1.0
    margin: float = 1.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("rule", self.rule, ("sum", "cascade", "boost")),
            ("diversity", self.diversity, ("none", "activation", "adversarial", "divergence")),
        ):
            if value not in known:
                raise UserError(f"ensemble.{name}={value!r}: choose one of {', '.join(known)}")
        _not_negative("ensemble", self, "weight")


@dataclass(frozen=True)
class BatchSettings:
    """`[batch]`: how training images are grouped into batches.

    Args:
        size: Images in a batch, over all ranks. Defaults to 128, or fewer if the training classes give fewer.
        images_per_class: Most images of one class in a batch.
        oversample: Repeat images of a class that has too few.
        chunk: Images in the network at a time, on each rank, so that a batch of thousands takes the memory of
            a few; 0 for all. See `training.gradient_caching`.
        sampler: `group` for `data.GroupSampler`, or a class of your own as `package.module:Class`.
        neighbors: Nearest classes that each class drawn brings into its batch (HTL); 0 draws all at random.
            See `data.NeighborSampler`.

    >>> BatchSettings(size=180, images_per_class=3).size
    180
    """

    size: int | None = None
    images_per_class: int = 4
    oversample: bool = False
    chunk: int = 0
    sampler: str = "group"
    neighbors: int = 0

    @property
    def images(self) -> int:
        """Images in a batch: `size`, or 128 where the data has not been asked.

        >>> BatchSettings().images, BatchSettings(size=64).images
        (128, 64)
        """
        return 128 if self.size is None else self.size

    def __post_init__(self) -> None:
        _not_negative("batch", self, "chunk", "neighbors")


@dataclass(frozen=True)
class MemorySettings:
    """`[memory]`: embeddings of earlier batches as further candidates; see `training.memory`.

    Args:
        size: Number of embeddings; 0 for none.
        start: Number of batches before the memory is used; it must also be full.

    >>> MemorySettings(size=16_384).start
    0
    """

    size: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        _not_negative("memory", self, "size", "start")


@dataclass(frozen=True)
class AugmentSettings:
    """`[augment]`: random crops, flips and colors of training images.

    Args:
        size: Side of the crops, or `[height, width]`. Defaults to `model.crop`. A random crop shows an object
            larger than the whole image does, so a model tests best at a `model.crop` above this.
        crop: `resized` (random size and aspect), `random` (random position) or `center`.
        scale: Smallest and largest share of the image's area in a resized crop.
        ratio: Smallest and largest aspect of a resized crop.
        flip: Probability of a horizontal flip.
        jitter: Strength of random brightness, contrast, saturation and hue.

    >>> AugmentSettings(crop="random").flip
    0.5
    """

    size: int | tuple[int, int] | None = None
    crop: str = "resized"
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class OptimizerSettings:
    """`[optimizer]`: one learning rate for the backbone, multiples of it for new parts.

    Args:
        name: `adamw`, `adam` or `sgd`.
        lr: Learning rate of the backbone.
        head: Learning rate of the head, as a multiple of `lr`.
        loss: Learning rate of the loss's own parameters (β, proxies), as a multiple of `lr`.
        weight_decay: Not applied to biases, norms and the loss's parameters.
        momentum: For SGD.
        betas: For Adam.
        eps: For Adam.
        clip: Largest norm of the gradient; 0 does not clip.

    >>> OptimizerSettings(lr=1e-4).head
    10.0
    """

    name: str = "adamw"
    lr: float = 1e-5
    head: float = 10.0
    loss: float = 10.0
    weight_decay: float = 1e-4
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "adam", "sgd"):
            raise UserError(f"optimizer.name={self.name!r}: choose one of adamw, adam, sgd")
        if not self.lr > 0:
            raise UserError(f"optimizer.lr={self.lr}: must be positive")
        _not_negative("optimizer", self, "head", "loss", "weight_decay", "momentum", "clip")


@dataclass(frozen=True)
class ScheduleSettings:
    """`[schedule]`: how long to train, and how the learning rates change.

    Args:
        epochs: Passes over the training images; 0 keeps the untrained model, as a baseline.
        kind: `step` (times `factor` at each milestone), `cosine` (down to 0) or `constant`.
        milestones: When to multiply by `factor`, as shares of all epochs.
        factor: What the learning rates are multiplied by at a milestone.
        warmup: Epochs of linear warm-up.
        head_epochs: Epochs at the start in which only the head and the loss are trained. If these are all
            epochs, the features of a few crops of each image are computed once, and kept in the cache: a
            CPU then needs minutes instead of hours. See `training.features`.

    >>> ScheduleSettings(kind="cosine").epochs
    15
    """

    epochs: int = 15
    kind: str = "step"
    milestones: tuple[float, ...] = (0.6, 0.85)
    factor: float = 0.1
    warmup: float = 0.0
    head_epochs: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("step", "cosine", "constant"):
            raise UserError(f"schedule.kind={self.kind!r}: choose one of step, cosine, constant")
        if not all(0 < milestone <= 1 for milestone in self.milestones):
            raise UserError(
                f"schedule.milestones={list(self.milestones)}: must be shares of all epochs, in 0..1: "
                "epoch 20 of 40 is 0.5"
            )
        _not_negative("schedule", self, "epochs", "factor", "warmup", "head_epochs")


@dataclass(frozen=True)
class TrainSettings:
    """`[train]`: seed, protocol, precision, evaluations and checkpoints.

    Args:
        seed: Seed of weights, batches, augmentation and sampling.
        protocol: `fair` selects the best epoch on classes held out from training (those of a split `val`, if
            there is one), and tests once, at the end. `paper` selects on the test classes, as the papers
            did, which is optimistic.
        select: The metric that selects the best epoch, such as `P@1` or `MAP@R`.
        fold: Which of the `folds` is held out (`fair`).
        folds: Number of parts the training classes are split into (`fair`).
        meta_classes: Train on so many random groups of classes (DREML); 0 trains on the classes.
        members: Networks of an ensemble, trained one after another; see `training.members`.
        member: Which of them (`fit` trains one); it has its own batches and groups of classes.
        precision: Of the network: `bf16` or `fp32`; `auto` is bf16 on a GPU, and on a CPU that is fast at it.
        compile: Compile network and augmentation with `torch.compile`: a minute at the start, then twice as
            fast. On a GPU the network is recorded as CUDA graphs, except with `batch.chunk`.
        sync_batch_norm: Normalize trained batch norms by the images of all ranks.
        store: What is stored of the images: `raw` pixels, `jpeg` (small, decoded again in every epoch), or
            `none` to decode the files themselves; `auto` is raw up to 40 GB, then jpeg.
        ema: Decay of an average of the weights that is evaluated and saved; 0 for none.
        evaluate_untrained: Evaluate the untrained model first, to see whether training helps.
        evaluate_every: Epochs between evaluations.
        evaluate_steps: Steps between evaluations, instead of epochs; 0 goes by epochs.
        patience: Evaluations without improvement before stopping early; 0 never stops.
        survey_every: Epochs between embeddings of all training images, for what goes by them: the tree of the
            loss `htl`, and `batch.neighbors`.
        checkpoint_every: Minutes between checkpoints; 0 for every step.
        feedback: Weight of the loss of marked pairs, beside that of the recipe, if there are marks.

    >>> TrainSettings().folds
    5
    """

    seed: int = 0
    protocol: str = "fair"
    select: str = "P@1"
    fold: int = 0
    folds: int = 5
    meta_classes: int = 0
    members: int = 1
    member: int = 0
    precision: str = "auto"
    compile: bool = False
    sync_batch_norm: bool = False
    store: str = "auto"
    ema: float = 0.0
    evaluate_untrained: bool = True
    evaluate_every: int = 1
    evaluate_steps: int = 0
    patience: int = 0
    survey_every: int = 1
    checkpoint_every: float = 5.0
    feedback: float = 1.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("protocol", self.protocol, ("paper", "fair")),
            ("precision", self.precision, ("auto", "bf16", "fp32")),
            ("store", self.store, ("auto", "raw", "jpeg", "none")),
        ):
            if value not in known:
                raise UserError(f"train.{name}={value!r}: choose one of {', '.join(known)}")
        if not 0 <= self.fold < self.folds:
            raise UserError(f"train.fold={self.fold}: must be in 0..{self.folds - 1}")
        if not 0 <= self.member < self.members:
            raise UserError(
                f"train.member={self.member}: must be in 0..{self.members - 1}, below train.members"
            )
        if not 0 <= self.ema < 1:
            raise UserError(f"train.ema={self.ema}: must be in [0, 1), such as 0.999")
        for name in ("evaluate_every", "survey_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name}={getattr(self, name)}: must be at least 1")
        _not_negative(
            "train", self, "meta_classes", "evaluate_steps", "patience", "checkpoint_every", "feedback"
        )

    @property
    def batch_seed(self) -> int:
        """Return the seed of batches, augmentation and losses: another one for each member of an ensemble.

        >>> TrainSettings(seed=7).batch_seed, TrainSettings(seed=7, members=2, member=1).batch_seed
        (7, 1000010)
        """
        return self.seed + 1_000_003 * self.member

    @property
    def half(self) -> bool | None:
        """Return whether the network runs in bfloat16; None depends on the device.

        >>> TrainSettings(precision="fp32").half
        False
        """
        return {"bf16": True, "fp32": False}.get(self.precision)
