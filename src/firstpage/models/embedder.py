"""The embedder: from images to unit vectors, with its preprocessing, saved and loaded as plain files."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard, cast

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from firstpage import durable
from firstpage._reading import read_json
from firstpage.data.augment import Augment
from firstpage.data.catalog import Catalog
from firstpage.data.decode import open_regular, upright_rgb
from firstpage.data.framing import Framing, Size, as_pair
from firstpage.data.pixel_batch import PixelBatch
from firstpage.data.progress import progress_bar
from firstpage.errors import UserError, one_line
from firstpage.losses.pair_similarity import PairSimilarity
from firstpage.models import backbones
from firstpage.models.device import keep_freed_memory, use_half
from firstpage.models.heads import Attention, Head, concatenate_learners
from firstpage.pairs import unit
from firstpage.recipes.recipe import build_settings
from firstpage.recipes.settings import ModelSettings

VERSION = 1


class Pixels(Protocol):
    """A source of stored pixels: a `PixelStore`, a `JpegStore`, a `Stream`, or one of your own.

    It may also have `prepare(rows)`, which is called some steps before `batch(rows)`.
    """

    ok: np.ndarray  # [N] bool: whether each row could be decoded

    def __len__(self) -> int: ...
    def batch(self, rows: Any, device: Any = None) -> PixelBatch | Tensor:  # noqa: ANN401
        """Return the pixels of `rows`; images of one size may be a tensor, uint8 [B, height, width, 3]."""
        ...


def framing_of(settings: ModelSettings) -> Framing:
    """Return how the images of a model are stored.

    >>> framing_of(ModelSettings(stored=256, boxes=True)).boxes
    True
    """
    return Framing(settings.stored, settings.resize, settings.boxes)


class Embedder(nn.Module):
    """Backbone → pooling → optional layer norm → head → unit vector.

    A model may consist of several learners (`model.head`), each with a loss of its own; the embedding is
    their concatenation.

    Create one with `Embedder.create`, or load a saved one with `Embedder.load`. Calling it takes preprocessed
    images, float [B, 3, crop, crop]; `embed` takes files, images or stored pixels, and preprocesses them.

    Args:
        settings: The architecture and the preprocessing.

    Attributes:
        settings: The settings, with the default crop filled in.
        backbone: The network.
        level_dims: Dimensions of each level, that is, of each learner; one if the head gives one.
        heads: One head, or one for each of three stages.
        feature_width: How many pooled features one head sees.
        attention: The masks of an `attention` head.
        dim: Dimensions of the embedding.
        framing: How an image becomes stored pixels.
        pair_similarity: The learned similarity of two embeddings, with the setting `rerank`.

    >>> model = Embedder.create(backbone="small", dim=16, stored=48, crop=48)
    >>> model(torch.zeros(2, 3, 48, 48)).shape
    torch.Size([2, 16])
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.framing = framing_of(settings)
        self.backbone = backbones.create(
            settings.backbone,
            weights=settings.weights,
            checkpointing=settings.checkpointing,
            **settings.options,
        )
        crop = settings.crop
        if crop is None:
            side = self.backbone.input_size
            crop = min(side, settings.stored) if isinstance(settings.stored, int) else settings.stored
        self.settings = replace(settings, crop=crop)
        self.backbone.check_size(*as_pair(crop))
        seen = self.backbone.widths[-settings.stages :]  # by a head
        widths = [(width,) for width in self.backbone.widths] if settings.head == "multilevel" else [seen]
        dims = settings.learners or tuple(
            sum(width) if settings.head == "none" else settings.dim for width in widths
        )
        self.feature_width = sum(seen)
        self.level_dims, self.dim = dims, sum(dims)
        sizes = (self.dim,) if settings.head == "split" else dims[: len(widths)]
        if settings.head == "pca" and settings.dim > self.feature_width:
            raise UserError(
                f"model.dim={settings.dim}: {settings.backbone} has only {self.feature_width} features, of "
                f"whose components model.head='pca' keeps the first: use at most {self.feature_width}, or "
                "model.head=linear"
            )
        self.heads = nn.ModuleList(
            Head(width, size, settings, self.backbone.prefix_tokens)
            for width, size in zip(widths, sizes, strict=True)
        )
        self.attention: Attention | None = None
        if settings.head == "attention":
            if not isinstance(self.backbone, backbones.SplitBackbone):
                raise UserError(
                    f"model.head='attention': {settings.backbone} cannot be continued from its middle stage: "
                    "choose another head, or a network such as resnet50"
                )
            self.attention = Attention(self.backbone.widths[1], len(dims))
        self.pair_similarity = PairSimilarity(self.dim) if settings.rerank else None
        if settings.freeze_batch_norm:
            backbones.freeze_batch_norm(self.backbone)

    @classmethod
    def create(cls, **settings: Any) -> Self:  # noqa: ANN401
        """Create an embedder with these `ModelSettings`.

        >>> Embedder.create(backbone="small", head="multilevel", dim=8, stored=48).dim
        24
        """
        return cls(ModelSettings(**settings))

    def raw(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of each level [B, dim], not normalized, as the losses take them.

        >>> model = Embedder.create(backbone="small", head="split", learners=(3, 5), dim=8, stored=48)
        >>> [level.shape[1] for level in model.raw(torch.zeros(2, 3, 48, 48))]
        [3, 5]
        """
        return self.levels(self.features(images))

    def levels(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the vectors of each level from what `features` returned.

        >>> model = Embedder.create(backbone="small", head="split", learners=(3, 5), dim=8, stored=48)
        >>> [level.shape[1] for level in model.levels([torch.zeros(2, 192, 2, 2)])]
        [3, 5]
        """
        if self.settings.stages > 1:
            features = (self.pooled(features),)
        vectors = tuple(self.heads[number % len(self.heads)](part) for number, part in enumerate(features))
        return vectors[0].split(list(self.level_dims), dim=1) if self.settings.head == "split" else vectors

    def pooled(self, features: Sequence[Tensor]) -> Tensor:
        """Return what `features` returned as pooled features [B, F] of all stages that one head sees.

        >>> model = Embedder.create(backbone="small", stages=2, dim=8, stored=48)
        >>> model.pooled(model.features(torch.zeros(2, 3, 48, 48))).shape
        torch.Size([2, 288])
        """
        pooling = cast(Head, self.heads[0])[0]
        return torch.cat([pooling(part) for part in features], dim=1)

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what the heads pool: the last features, those of several stages, or those behind each mask.

        Features that were pooled before, [B, F], are what they are.

        >>> model = Embedder.create(backbone="small", head="multilevel", dim=8, stored=48)
        >>> [features.shape[1] for features in model.features(torch.zeros(2, 3, 48, 48))]
        [48, 96, 192]
        """
        if _are_features(images):
            return (images,)
        if self.attention is None:
            count = max(len(self.heads), self.settings.stages)
            return self.backbone.stages(images)[-count:] if count > 1 else (self.backbone(images),)
        backbone = cast(backbones.SplitBackbone, self.backbone)
        masked = self.attention(backbone.lower_stages(images)[1])
        high = backbone.high_stage(masked)
        return high.view(len(self.level_dims), images.shape[0], *high.shape[1:]).unbind(0)

    def forward(self, images: Tensor) -> Tensor:
        """Return unit vectors [B, dim]. Several levels are concatenated, then normalized."""
        levels = self.raw(images)
        if self.settings.learners:
            return concatenate_learners(levels)
        return unit(torch.cat(levels, dim=1).float())

    @property
    def device(self) -> torch.device:
        """The device of the weights.

        >>> Embedder.create(backbone="small", dim=4, stored=48).device
        device(type='cpu')
        """
        return next(self.parameters()).device

    @property
    def preprocess(self) -> Augment:
        """The transform from stored pixels to the network's input: the central crop, normalized.

        >>> Embedder.create(backbone="small", dim=4, stored=48, crop=40).preprocess.size
        40
        """
        crop = cast(Size, self.settings.crop)
        return Augment.test(crop, mean=self.backbone.mean, std=self.backbone.std)

    @torch.inference_mode()
    def embed(
        self,
        images: Pixels | Sequence[str | os.PathLike[str] | Image.Image | np.ndarray],
        *,
        rows: Sequence[int] | np.ndarray | None = None,
        batch_size: int | None = None,
        progress: bool | Callable[[int], None] = True,
        half: bool | None = None,
        flip: bool = False,
    ) -> Tensor:
        """Return the unit vectors [N, dim] of many images, float32 on the CPU.

        Args:
            images: Stored pixels, or a list of files, Pillow images or uint8 arrays [h, w, 3]. A Pillow
                image is turned upright by its EXIF orientation, what is transparent is white, as in files.
            rows: Row indices of the images to embed. Defaults to all of them.
            batch_size: Number of images at a time. Defaults to 256, on a CPU to fewer if they are large.
            progress: Show a progress bar, or call this with the number of images of each batch.
            half: Run the network in bfloat16. Defaults to bfloat16 on a GPU and on a CPU that is fast at it.
            flip: Average the embeddings of each image and of its mirror image, at twice the cost.

        Raises:
            UserError: A file cannot be decoded (the message names it), an array is not an image, or `images`
                is not a list.

        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> model.embed([Image.new("RGB", (60, 80)), np.zeros((5, 5, 3), np.uint8)], progress=False).shape
        torch.Size([2, 4])
        """
        _check_images(images)
        chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
        device, was_training = self.device, self.training
        half = use_half(device, half)
        keep_freed_memory(device)
        self.eval()
        vectors = []
        try:
            with (
                progress_bar("embedding", len(chosen), progress is True) as advance,
                torch.autocast(device.type, torch.bfloat16, enabled=half),
            ):
                for network_input in self.inputs(images, chosen, batch_size):
                    embedded = self(network_input)
                    if flip:
                        embedded = unit(embedded + self(network_input.flip(3)))
                    vectors.append(embedded)
                    if len(vectors) > 1:  # a GPU is waited for once it has the next batch
                        vectors[-2] = vectors[-2].cpu()
                    (progress if callable(progress) else advance)(len(network_input))
        finally:
            self.train(was_training)
        return torch.cat([batch.cpu() for batch in vectors]) if vectors else torch.empty(0, self.dim)

    def prepare(self, images: Sequence[str | os.PathLike[str] | Image.Image | np.ndarray]) -> Tensor:
        """Return what the network sees of a few images, on its device: [N, 3, crop, crop].

        >>> model = Embedder.create(backbone="small", dim=4, stored=48, crop=40)
        >>> model.prepare([Image.new("RGB", (60, 80))]).shape
        torch.Size([1, 3, 40, 40])
        """
        return self.preprocess(self._frame(list(images)).to(self.device))

    def batch_size(self) -> int:
        """Return how many images `embed` takes at a time.

        On a CPU a batch whose activations are larger than what glibc keeps of freed memory (32 MB) takes
        about 1.5 times as long: 64 channels at half the size, as a ResNet has first, take 64 bytes a pixel.

        >>> Embedder.create(backbone="small", dim=4, stored=352, crop=320).batch_size()  # on a CPU
        5
        """
        height, width = as_pair(self.preprocess.size)
        return 256 if self.device.type == "cuda" else max(4, min(256, 2**19 // (height * width)))

    def inputs(
        self,
        images: Any,  # noqa: ANN401
        rows: np.ndarray,
        batch_size: int | None = None,
        augment: Callable[..., Tensor] | None = None,
    ) -> Iterator[Tensor]:
        """Yield what the network sees of many images, a batch at a time, on its device.

        Args:
            images: As in `embed`. If they have a `batch_size`, it is the default.
            rows: Row indices of the images.
            batch_size: As in `embed`.
            augment: Called with stored pixels and, as `first`, the number of images before them. Defaults to
                `preprocess`.

        Raises:
            UserError: As in `embed`.

        >>> model = Embedder.create(backbone="small", dim=4, stored=48, crop=40)
        >>> images = [np.zeros((60, 80, 3), np.uint8)] * 5
        >>> [batch.shape[0] for batch in model.inputs(images, np.arange(5), batch_size=2)]
        [2, 2, 1]
        """
        _check_images(images)
        size = getattr(images, "batch_size", self.batch_size()) if batch_size is None else batch_size
        done, augment = 0, self.preprocess if augment is None else augment
        for pixels in self._pixels(images, rows, size):
            on_device = pixels.to(self.device)
            yield on_device if _are_features(on_device) else augment(on_device, first=done)
            done += len(pixels)

    def _pixels(self, images: Any, rows: np.ndarray, size: int) -> Iterator[PixelBatch | Tensor]:  # noqa: ANN401
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        if hasattr(images, "batches"):  # which decodes the next ones meanwhile
            yield from images.batches(parts, self.device)
            return
        for part in parts:
            if hasattr(images, "batch"):
                yield images.batch(part, self.device)
            else:
                yield self._frame([images[row] for row in part])

    def _frame(self, images: list[object]) -> PixelBatch:
        """Scale images as a store does."""
        scaled = [self._scale(image) for image in images]
        pixels = b"".join(self.framing.to_canvas(image) for image in scaled)
        canvases = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        sizes = torch.tensor([(image.height, image.width) for image in scaled], dtype=torch.int32)
        return PixelBatch(canvases.view(-1, *self.framing.canvas, 3), sizes, self.framing.least)

    def _scale(self, image: object) -> Image.Image:
        if isinstance(image, str | os.PathLike):
            with open_regular(os.fspath(image)) as file:
                return self.framing.read(file)
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise UserError(
                    f"images: got an array {image.dtype} {image.shape}; give uint8 [height, width, 3]"
                )
            image = Image.fromarray(image)
        if not isinstance(image, Image.Image):
            raise UserError(f"images: got {type(image).__name__}; give files, Pillow images or uint8 arrays")
        return self.framing.scale(upright_rgb(image))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `config.json` and `model.safetensors`, each completely or not at all.

        >>> import tempfile
        >>> model = Embedder.create(backbone="small", dim=4, stored=48)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = Embedder.load(model.save(folder))
        >>> torch.equal(again(torch.ones(1, 3, 48, 48)), model.eval()(torch.ones(1, 3, 48, 48)))
        True
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        settings = asdict(replace(self.settings, weights=None))  # the weights are in the other file
        config = {"firstpage": VERSION, "model": settings}
        weights = {name: value.contiguous().cpu() for name, value in self.state_dict().items()}
        durable.write(target / "model.safetensors", save(weights))
        durable.write(target / "config.json", f"{json.dumps(config, indent=2)}\n".encode())
        return target

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> Self:
        """Load a saved embedder, or the best one of a run, in evaluation mode.

        Nothing is downloaded, and a network that does not fit the tensors is refused before it takes memory.
        A backbone named `package.module:Class` is imported, so that module must be importable here; with a
        model from a stranger, check `config.json` first.

        Args:
            folder: Folder of a saved embedder, or of a run.
            device: Device for the weights.

        Raises:
            FileNotFoundError: There is no such folder, or it holds no saved embedder.
            UserError: `config.json` is not valid, or `model.safetensors` does not fit it.

        >>> Embedder.load("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere: no such folder
        """
        source = Path(folder)
        if (source / "best").is_dir():
            source = source / "best"
        config, weights = source / "config.json", source / "model.safetensors"
        if not config.is_file() or not weights.is_file():
            raise FileNotFoundError(f"{folder}: {_describe_folder(source)}")
        settings, state = _read_settings(config), _read_state(weights)
        for place in ("meta", "cpu"):  # first without memory, to compare names and shapes
            try:
                with torch.device(place), _limit_parameters(10 * len(state) + 1000):
                    model = cls(settings)
            except Exception as error:  # a backbone of the user's own may raise anything
                if place == "meta" and not isinstance(error, UserError):
                    continue  # not every backbone can be built without memory
                raise UserError(f"{config}: {one_line(error)}") from error
            try:
                model.load_state_dict(state, assign=place == "meta")
            except RuntimeError as error:
                raise UserError(
                    f"{source}: model.safetensors does not fit config.json: {one_line(error)}"
                ) from None
        return model.to(device).eval()


def _read_settings(path: Path) -> ModelSettings:
    """Read the settings of a saved model. Its `weights` are ignored: they would be loaded or downloaded."""
    config = read_json(path)
    if not isinstance(config, dict) or config.get("firstpage") != VERSION:
        raise UserError(f"{path}: not a firstpage model of version {VERSION}")
    if config.keys() != {"firstpage", "model"} or not isinstance(config["model"], dict):
        raise UserError(f"{path}: must hold the version `firstpage`, the table `model`, and nothing else")
    settings: ModelSettings
    try:
        settings = build_settings(ModelSettings, config["model"] | {"weights": None}, "model.")
    except UserError as error:
        raise UserError(f"{path}: {one_line(error)}") from None
    return settings


@contextmanager
def _limit_parameters(most: int) -> Iterator[None]:
    """Within this context, a network of more parameter tensors is refused before it is complete.

    A config with a billion layers would otherwise never end. Some networks build layers that they replace.
    """
    thread, count = threading.get_ident(), 0

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        count += thread == threading.get_ident()
        if count > most:
            raise UserError("has many more layers than model.safetensors has tensors")

    with register_module_parameter_registration_hook(check):
        yield


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # of a damaged file: SafetensorError, KeyError, OverflowError…
        raise UserError(f"{path}: damaged, or not a safetensors file: {one_line(error)}") from None


def _are_features(images: object) -> TypeGuard[Tensor]:
    return isinstance(images, Tensor) and images.ndim == 2


def _check_images(images: object) -> None:
    if isinstance(images, str | os.PathLike | Image.Image):
        raise UserError(f"images={images!r}: is one image; give a list of them")
    if isinstance(images, Catalog):
        raise UserError(
            "images: got a Catalog; give a PixelStore of it, or [catalog.path(row) for row in rows]"
        )


def _describe_folder(folder: Path) -> str:
    """Say why a folder holds no saved embedder."""
    if not folder.is_dir():
        return "no such folder"
    folds = sorted(folder.glob("fold-*/"))
    if folds:
        return f"holds the folds of a run; name one, such as {folds[0]}"
    return "no saved embedder there: config.json and model.safetensors are missing"
