"""An ensemble of embedders that is an embedder: saved, loaded, exported and indexed as any other."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.backbones import Backbone
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import build_settings
from firstpage.recipes.settings import ModelSettings


class Ensemble(Backbone):
    """The backbone of an ensemble: embedders of one architecture, whose unit vectors are concatenated.

    With the head `none` of an `Embedder`, they become one unit vector. `combine` makes one of trained models.

    Args:
        members: Number of embedders.
        model: Settings of each, as of `ModelSettings`.

    Attributes:
        networks: The embedders.

    >>> Ensemble(members=2, model={"backbone": "small", "dim": 8, "stored": 48}).widths
    (16, 16, 16)
    """

    def __init__(self, members: int, model: dict[str, Any]) -> None:
        super().__init__()
        if not isinstance(members, int) or members < 1:
            raise UserError(f"Ensemble(members={members}): members must be at least 1")
        settings = build_settings(ModelSettings, model, "model.options.model.")
        self.networks = nn.ModuleList(Embedder(settings) for _ in range(members))
        first = self._first
        self.widths = (members * first.dim,) * 3
        self.input_size, self.mean, self.std = (
            getattr(first.backbone, name) for name in ("input_size", "mean", "std")
        )

    @property
    def _first(self) -> Embedder:
        first = self.networks[0]
        assert isinstance(first, Embedder)
        return first

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the unit vectors of all members as maps of one pixel, [B, members × dim, 1, 1], thrice."""
        vectors = torch.cat([network(images) for network in self.networks], dim=1)[:, :, None, None]
        return vectors, vectors, vectors

    def check_size(self, height: int, width: int) -> None:
        """Raise a `UserError` if the members do not accept images of that size."""
        self._first.backbone.check_size(height, width)


def combine(models: Sequence[Embedder]) -> Embedder:
    """Return one embedder of several: their unit vectors concatenated, scaled to length one.

    Args:
        models: Embedders of the same settings. Their weights are copied.

    Raises:
        UserError: There is none, or their settings differ.

    >>> models = [Embedder.create(backbone="small", dim=8, stored=48, crop=48).eval() for _ in range(3)]
    >>> both, images = combine(models), torch.randn(2, 3, 48, 48)
    >>> expected = torch.cat([model(images) for model in models], dim=1) / 3**0.5
    >>> both.dim, torch.allclose(both(images), expected, atol=1e-6)
    (24, True)
    """
    settings = [replace(model.settings, weights=None) for model in models]
    if not settings or any(other != settings[0] for other in settings):
        raise UserError(f"combine: got {len(settings)} models; give at least one, all of the same settings")
    first = settings[0]
    whole = Embedder(
        ModelSettings(
            backbone=f"{Ensemble.__module__}:{Ensemble.__name__}",
            options={"members": len(models), "model": asdict(first)},
            head="none",
            dim=len(models) * models[0].dim,
            stored=first.stored,
            resize=first.resize,
            crop=first.crop,
        )
    )
    assert isinstance(whole.backbone, Ensemble)
    for network, model in zip(whole.backbone.networks, models, strict=True):
        network.load_state_dict(model.state_dict())
    return whole.to(models[0].device).eval()
