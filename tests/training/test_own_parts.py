"""A loss, a sampler and a backbone of the user's own: in a recipe by name, and in `fit` as an object."""

import json

import pytest
import torch
from torch import nn

from firstpage.data import GroupSampler
from firstpage.losses import Loss
from firstpage.losses.base import masked_mean
from firstpage.models import Embedder
from firstpage.models.backbones import Small
from firstpage.recipes import Recipe
from firstpage.training import fit
from firstpage.training.step import TrainStep
from support.noise import Noise, noise_catalog

HERE = __name__
IMAGES = 48


CATALOG = noise_catalog(IMAGES, 4, 32)


class Gap(Loss):
    """Mean negative minus mean positive similarity, times a learned scale for each class."""

    def __init__(self, classes: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.dim, self.scale = dim, scale
        self.weights = nn.Parameter(torch.ones(classes))

    def terms(self, pairs):
        positive, negative = (
            masked_mean(pairs.similarity, mask) for mask in (pairs.positive, pairs.negative)
        )
        return self.scale * self.weights[pairs.labels] * (negative - positive)


class Plain(nn.Module):
    """A loss that knows nothing of firstpage."""

    def forward(self, embeddings, labels):
        assert embeddings.requires_grad
        return (embeddings - embeddings.detach().mean(0)).square().mean() + 0 * labels.sum()


class Halves(GroupSampler):
    """Half an epoch at a time."""

    def __len__(self):
        return super().__len__() // 2


class Wider(Small):
    """A backbone with an option."""

    def __init__(self, checkpointing: bool = False, factor: int = 1) -> None:
        super().__init__(checkpointing)
        self.factor = factor

    def stages(self, images):
        return tuple(self.factor * stage for stage in super().stages(images))


def train(folder=None, given=None, **sections):
    table = {
        "model": {"backbone": "small", "dim": 8, "stored": 36, "crop": 32},
        "batch": {"size": 16, "images_per_class": 4},
        "schedule": {"epochs": 2},
        "train": {"protocol": "paper"},
    }
    for name, section in sections.items():
        table[name] = table.get(name, {}) | section
    recipe = Recipe.of(table)
    return fit(recipe, CATALOG, folder, loss=given, pixels=Noise(IMAGES), device="cpu", progress=False)


def test_a_loss_by_name_gets_the_numbers_it_asks_for(monkeypatch):
    used, init = [], TrainStep.__init__

    def recording(self, recipe, model, criteria, *rest, **options):
        used.extend(criteria)
        init(self, recipe, model, criteria, *rest, **options)

    monkeypatch.setattr(TrainStep, "__init__", recording)
    train(loss={"name": f"{HERE}:Gap", "scale": 2})
    (loss,) = used
    assert (loss.dim, len(loss.weights), loss.scale) == (8, 8, 2.0)
    assert loss.weights.ne(1).any()  # the optimizer has its parameters


def test_a_loss_object_and_its_name_train_alike(tmp_path):
    by_object = train(tmp_path, given=Gap(classes=8, dim=8, scale=2.0))
    by_name = train(loss={"name": f"{HERE}:Gap", "scale": 2.0})
    assert by_object.history == by_name.history
    again = train(tmp_path, given=Gap(classes=8, dim=8, scale=2.0))
    assert "was already finished" in again.text()
    with pytest.raises(ValueError, match=r"contains a run with loss\.given=.*, not "):
        train(tmp_path, given=Gap(classes=8, dim=8, scale=3.0))
    recipe = Recipe.read(tmp_path / "recipe.toml")
    assert recipe.loss["name"] == f"{HERE}:Gap"
    with pytest.raises(ValueError, match=r"loss\.given=.*: this run used a loss object: pass it again"):
        fit(recipe, CATALOG, pixels=Noise(IMAGES), device="cpu", progress=False)


def test_a_loss_of_another_library(tmp_path):
    result = train(tmp_path, given=Plain(), model={"head": "multilevel"})
    assert len(result.history) == 3
    with pytest.raises(ValueError, match=r"memory\.size=20: Plain does not use it"):
        train(given=Plain(), memory={"size": 20})


def test_a_loss_of_pytorch_metric_learning_by_name():
    pytest.importorskip("pytorch_metric_learning")
    name = "pytorch_metric_learning.losses:TripletMarginLoss"
    assert len(train(loss={"name": name, "margin": 0.2}).history) == 3


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        ({"name": f"{HERE}:Gap", "scale": "large"}, r"scale='large': must be a number"),
        ({"name": f"{HERE}:Gap", "scal": 2}, r"no setting 'scal'; did you mean 'scale'\?"),
        ({"name": f"{HERE}:Gap", "classes": 3}, r"loss\.classes=3: the data has 8"),
        ({"name": f"{HERE}:Gaps"}, r"has no 'Gaps'; did you mean 'Gap'\?"),
        ({"name": f"{HERE}:train"}, "is not a class of losses"),
        ({"name": "no_such_module:Gap"}, "no module 'no_such_module'"),
    ],
)
def test_wrong_losses_are_one_line(loss, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        train(loss=loss)
    assert "\n" not in str(caught.value)


def test_a_sum_in_a_recipe_logs_its_parts(tmp_path):
    parts = [{"name": "topk", "weight": 10.0, "k": 1}, {"name": "proxy-anchor"}]
    result = train(tmp_path, loss={"name": "sum", "parts": parts})
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    (logged,) = (line for line in lines if "loss" in line)
    assert logged["loss"] == pytest.approx(10 * logged["loss/topk"] + logged["loss/proxy-anchor"], rel=1e-4)
    assert Recipe.read(tmp_path / "recipe.toml").loss["parts"] == parts
    assert result.history


def test_a_sampler_by_name():
    whole, half = train(), train(batch={"sampler": f"{HERE}:Halves"})
    assert whole.history[1:] != half.history[1:]
    with pytest.raises(ValueError, match=r"batch\.sampler='groups': use 'group', or your own class"):
        train(batch={"sampler": "groups"})


def test_a_backbone_by_name_is_saved_and_loaded(tmp_path):
    result = train(tmp_path, model={"backbone": f"{HERE}:Wider", "options": {"factor": 3}})
    loaded = Embedder.load(tmp_path)
    assert type(loaded.backbone) is Wider
    assert loaded.backbone.factor == 3
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), result.model(images))
