"""What `firstpage train --data FOLDER` chooses for data of every size."""

from pathlib import Path

import numpy as np
import pytest
import torch

from firstpage.data import Catalog
from firstpage.data.training_plan import plan_training
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes import Recipe
from firstpage.training import defaults
from firstpage.training.defaults import complete_recipe, default_recipe
from firstpage.training.features import uses_features
from firstpage.training.setup import prepare

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def photographs(*counts):
    """A dataset with these numbers of images in its classes."""
    labels = np.repeat(np.arange(len(counts)), counts)
    paths = [f"{number}.jpg" for number in range(len(labels))]
    return Catalog("photos", Path(), paths, labels, [str(name) for name in range(len(counts))], {})


@pytest.fixture
def _online(monkeypatch):
    monkeypatch.setattr(defaults, "fetch", lambda name: Path(name))


@pytest.fixture
def _offline(monkeypatch):
    def fail(name):
        raise FileNotFoundError("weights='imagenet': no route to host")

    monkeypatch.setattr(defaults, "fetch", fail)


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    "counts", [[2] * 300, [170] * 4, [5] * 100, [6] * 929, [3, 4, 5, 90, 200, 7, 8], [2] * 6, [500] * 60]
)
def test_what_is_chosen_can_be_trained(device, counts):
    catalog = photographs(*counts)
    recipe, notes = default_recipe(catalog, device)
    complete = complete_recipe(recipe, catalog)
    split, labels = plan_training(complete, catalog)
    assert ["training only the head" in note for note in notes] == [True] * (device == CPU)
    assert len(split.train) == len(labels)
    seen = complete.schedule.epochs * len(split.train)
    assert complete.batch.size <= 128
    assert seen >= min(20 * len(split.train), defaults.SEEN / 2)


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize(
    ("loss", "lr", "head_epochs"),
    [
        (["loss.name=margin"], 2e-5, 0),
        (["loss.name=topk", "loss.k=1"], 2e-5, 0),
        (["loss.name=htl"], 2e-5, 0),
        (["loss.name=proxy-anchor"], 1e-4, 3),
        (["loss.name=sum", "loss.parts=[{name='margin'}, {name='rll'}]"], 2e-5, 0),
        (["loss.name=sum", "loss.parts=[{name='margin'}, {name='proxy-nca'}]"], 1e-4, 3),
        ([], 1e-4, 3),
    ],
)
def test_losses_without_proxies_learn_more_slowly_on_pretrained_weights(loss, lr, head_epochs):
    catalog = photographs(*[60] * 100)
    recipe, _ = default_recipe(catalog, GPU, loss)
    assert (recipe.optimizer.lr, recipe.schedule.head_epochs) == (lr, head_epochs)
    transformer = ["model.backbone=vit_small_14", "model.weights=vit.safetensors", *loss]
    assert default_recipe(catalog, GPU, transformer)[0].optimizer.lr == 1e-5


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize("parts", ["['margin', 'rll']", "[[1]]", "[{weight=1.0}]", "[{name=3}]", "3"])
def test_odd_parts_of_a_sum_are_left_to_the_one_that_says_what_is_wrong(parts):
    catalog = photographs(*[60] * 100)

    def begin():
        recipe, _ = default_recipe(catalog, GPU, ["loss.name=sum", f"loss.parts={parts}"])
        prepare(complete_recipe(recipe, catalog), catalog, None, Embedder.create(backbone="small", stored=48))

    with pytest.raises(UserError, match=r"loss\.parts|parts"):
        begin()


@pytest.mark.usefixtures("_online")
def test_a_gpu_gets_the_products_objective_on_pretrained_weights_and_a_cpu_a_head_or_a_small_network():
    catalog = photographs(*[6] * 100)
    gpu, _ = default_recipe(catalog, GPU)
    assert (gpu.model.backbone, gpu.model.weights, gpu.loss["name"]) == ("resnet50", "imagenet", "first-page")
    assert (gpu.schedule.head_epochs, gpu.batch.images_per_class) == (3, 4)
    assert (gpu.augment.size, gpu.model.crop, gpu.model.stored) == (256, 320, 352)
    own, _ = default_recipe(catalog, GPU, ["model.stored=256"])
    assert (own.augment.size, own.model.crop, own.model.stored) == (None, None, 256)
    head, (note,) = default_recipe(catalog, CPU)
    assert (head.model.backbone, head.model.weights, head.model.head) == ("resnet50", "imagenet", "pca")
    assert uses_features(head)
    assert note.startswith(
        "training only the head, as this is a CPU; schedule.head_epochs=0 trains the whole "
    )
    assert complete_recipe(head, catalog).loss == defaults.TOPK | {"k": 3, "margin": 0.5}
    pairs, _ = default_recipe(photographs(*[2] * 100), CPU)
    assert complete_recipe(pairs, photographs(*[2] * 100)).loss == defaults.TOPK | {"k": 5, "margin": 0.5}
    large, _ = default_recipe(photographs(*[60] * 10), CPU)
    assert complete_recipe(large, photographs(*[60] * 10)).loss == defaults.TOPK | defaults.PAGES_ALONE
    large = large.changed(["batch.images_per_class=2"])
    assert complete_recipe(large, photographs(*[60] * 10)).loss == defaults.TOPK | defaults.PAGES_ALONE
    cpu, notes = default_recipe(catalog, CPU, ["model.backbone=small"])
    assert (cpu.model.backbone, cpu.model.weights, cpu.loss) == ("small", None, {"name": "topk"})
    assert notes == []
    assert cpu.batch.images_per_class == 8
    assert complete_recipe(cpu, catalog).loss == defaults.TOPK | defaults.LEARNED
    bare = Recipe.of({"loss": {"name": "topk"}, "model": {"weights": "file"}})
    assert complete_recipe(bare, catalog).loss == defaults.TOPK | {"k": 3, "margin": 0.3}
    assert complete_recipe(bare, photographs(*[11] * 60)).loss == defaults.TOPK | defaults.REFINED
    pairs = complete_recipe(bare.changed(["batch.images_per_class=2"]), catalog)
    assert pairs.loss == defaults.TOPK | defaults.REFINED_PAIRS
    pairs = complete_recipe(cpu.changed(["batch.images_per_class=2"]), catalog)
    assert pairs.loss == defaults.TOPK | defaults.LEARNED_PAIRS
    assert pairs.loss == complete_recipe(cpu, photographs(*[2] * 100)).loss


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize(
    ("counts", "images_per_class", "expected"),
    [
        ([6] * 100, 4, {"k": 3, "margin": 0.3}),
        ([3] * 100 + [90] * 40, 4, {"k": 2, "margin": 0.3}),  # a few large classes do not count
        ([10] * 20, 16, {"k": 9, "margin": 0.3}),
        ([6] * 100, 2, {"k": 5, "margin": 0.3}),  # one positive for each query
        ([2] * 100, 4, {"k": 5, "margin": 0.3}),
        ([11] * 60, 4, {}),
    ],
)
def test_all_images_of_small_classes_belong_on_the_first_page(counts, images_per_class, expected):
    catalog = photographs(*counts)
    recipe, _ = default_recipe(catalog, GPU, [f"batch.images_per_class={images_per_class}"])
    weight = {"weight": 30.0} if expected else {}
    assert complete_recipe(recipe, catalog).loss == {"name": "first-page"} | expected | weight
    given = recipe.changed(["loss.k=1"])
    assert complete_recipe(given, catalog).loss == {"name": "first-page", "k": 1}


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize(
    ("counts", "lr"),
    [
        ([40] * 125, 1e-4),
        ([40] * 110, 3e-5),  # four fifths of four fifths are fewer than 3,000
        ([7] * 200, 3e-5),
        ([2] * 1000, 1e-4),  # pairs
    ],
)
def test_few_images_are_learned_more_slowly(counts, lr):
    settings = default_recipe(photographs(*counts), GPU)[0].optimizer
    assert settings.lr == lr
    assert settings.lr * settings.head == pytest.approx(1e-4, rel=0.11)
    assert settings.lr * settings.loss == pytest.approx(1e-2, rel=0.11)
    transformer = ["model.backbone=vit_small_14", "model.weights=vit.safetensors"]
    vit = default_recipe(photographs(*counts), GPU, transformer)[0].optimizer
    assert (vit.lr, vit.head, vit.loss) == (1e-5, 1.0, 1000.0)


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ([], "linear"),
        (["model.dim=129"], "linear"),
        (["model.dim=128"], "pca"),
        (["model.dim=128", "model.head=mlp"], "mlp"),
        (["model.dim=64", "model.backbone=timm:resnet10t"], "linear"),  # which may have fewer features
        (["model.dim=64", "model.backbone=small"], "linear"),  # from random weights
    ],
)
def test_a_narrow_head_starts_at_the_principal_components_of_pretrained_features(changes, head):
    weights = [] if "model.backbone=small" in changes else ["model.weights=own.safetensors"]
    recipe, _ = default_recipe(photographs(*[6] * 1000), GPU, [*weights, *changes])
    faster = "model.dim=128" in changes  # whatever the head
    assert (recipe.model.head, recipe.optimizer.head) == (head, 10.0 if faster else 1.0)
    margin, _ = default_recipe(photographs(*[6] * 1000), GPU, [*weights, *changes, "loss.name=margin"])
    assert margin.optimizer.head == (50.0 if faster else 5.0 if weights else 1.0)


@pytest.mark.usefixtures("_online")
@pytest.mark.parametrize(
    ("changes", "alone", "head"),
    [
        ([], True, "pca"),
        (["schedule.epochs=7"], True, "pca"),
        (["model.backbone=vit_small_14"], True, "linear"),  # which has 384 features
        (["model.backbone=timm:resnet18"], True, "linear"),
        (["model.dim=513"], True, "linear"),
        (["model.head=mlp"], True, "mlp"),
        (["schedule.head_epochs=0"], False, "linear"),
        (["schedule.epochs=7", "schedule.head_epochs=7"], True, "pca"),
        (["schedule.epochs=0"], False, "linear"),
        (["model.head=none"], False, "none"),
        (["schedule.head_epochs=3", "schedule.epochs=9"], False, "linear"),
        (["model.pooling=gem"], False, "linear"),
        (["model.head=multilevel"], False, "multilevel"),
        (["model.backbone=small"], False, "linear"),  # which a CPU can train
    ],
)
def test_a_cpu_trains_a_head_alone_on_a_pretrained_network(changes, alone, head):
    changes = ["model.weights=own.safetensors", *changes]
    recipe, notes = default_recipe(photographs(*[6] * 1000), CPU, changes)
    assert recipe.changed(changes) == recipe
    asked = "schedule.head_epochs" in str(changes)
    assert (uses_features(recipe), recipe.model.head, len(notes)) == (alone, head, int(alone and not asked))
    gpu, notes = default_recipe(photographs(*[6] * 1000), GPU, changes)
    assert (uses_features(gpu), notes) == (alone and asked, [])
    assert gpu.model.stages == recipe.model.stages if alone and asked else gpu.model.stages == 1


def test_more_epochs_of_a_head_alone_are_still_of_a_head_alone():
    recipe, _ = default_recipe(photographs(*[6] * 1000), CPU, ["model.weights=own.safetensors"])
    assert uses_features(recipe.changed(["schedule.epochs=500"]))


@pytest.mark.usefixtures("_online")
def test_so_many_images_that_their_features_take_hours_train_a_small_network(monkeypatch):
    monkeypatch.setattr(defaults, "MOST_ALONE", 99)
    catalog = photographs(*[6] * 100)
    recipe, (note,) = default_recipe(catalog, CPU)
    assert (recipe.model.backbone, recipe.model.weights, recipe.loss["name"]) == ("small", None, "topk")
    assert note.startswith("training a small network from random weights, as the features of ")
    assert default_recipe(catalog, GPU)[0].model.weights == "imagenet"
    asked, _ = default_recipe(catalog, CPU, ["model.weights=imagenet"])
    assert (asked.model.backbone, uses_features(asked)) == ("resnet50", True)


@pytest.mark.usefixtures("_offline")
@pytest.mark.parametrize(("device", "backbone"), [(GPU, "resnet50"), (CPU, "small")])
def test_without_a_network_it_trains_from_random_weights_and_says_so(device, backbone):
    recipe, (note,) = default_recipe(photographs(*[6] * 100), device)
    assert (recipe.model.backbone, recipe.model.weights) == (backbone, None)
    assert recipe.loss["name"] == "topk"
    assert note.startswith("training from random weights, as there are none of ImageNet: weights='imagenet'")
    assert default_recipe(photographs(*[6] * 100), GPU, ["model.weights=own.safetensors"])[1] == []


def test_what_the_user_sets_is_left_alone():
    catalog = photographs(*[6] * 100)
    changes = [
        *("model.backbone=vit_small_14", "model.weights=own.safetensors", "loss.name=topk", "loss.k=3"),
        *("schedule.epochs=7", "optimizer.lr=0.5", "batch.images_per_class=2", "model.pooling=avg"),
    ]
    recipe, _ = default_recipe(catalog, CPU, changes)
    assert recipe.changed(changes) == recipe
    assert (recipe.loss, recipe.schedule.epochs) == ({"name": "topk", "k": 3}, 7)
    assert complete_recipe(recipe, catalog).loss == recipe.loss
    assert default_recipe(catalog, CPU, [*changes[:2], "schedule.head_epochs=0"])[0].optimizer.lr == 1e-5


@pytest.mark.usefixtures("_online")
def test_large_data_is_seen_a_few_times_and_compiled():
    labels = np.arange(500_000) % 20_000
    catalog = Catalog("many", Path(), ["x.jpg"] * 500_000, labels, [str(name) for name in range(20_000)], {})
    recipe, _ = default_recipe(catalog, GPU)
    assert recipe.schedule.epochs == 8
    assert recipe.train.compile
    assert recipe.batch.images_per_class == 4


def test_training_crops_may_be_smaller_than_those_of_tests():
    catalog = photographs(*[4] * 10)
    recipe = Recipe.of({"augment": {"size": 32}, "batch": {"size": 8}})
    model = Embedder.create(backbone="small", dim=4, stored=56, crop=48)
    setup = prepare(recipe, catalog, None, model)
    assert (setup.augment.size, model.preprocess.size) == (32, 48)
    patches = Embedder.create(
        backbone="vit_small_14", stored=56, crop=56, options={"size": 56}, pooling="cls"
    )
    with pytest.raises(UserError, match="14"):
        prepare(recipe, catalog, None, patches)
