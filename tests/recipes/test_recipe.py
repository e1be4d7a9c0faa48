"""Recipes: checked, changed, and written so that they can be read again."""

import tomllib

import pytest

from firstpage import losses, recipes
from firstpage.losses.registry import required_arguments
from firstpage.recipes import Recipe


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_that_ships_is_sound(name):
    recipe = recipes.find(name)
    assert Recipe.of(tomllib.loads(recipe.toml())) == recipe
    settings = dict(recipe.loss)
    given = dict.fromkeys(required_arguments(recipe.loss["name"]), 8)  # by the training
    losses.create(settings.pop("name"), **given, **settings)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"optimiser": {}}, "optimiser: no such setting; did you mean 'optimizer'?"),
        ({"model": {"backbon": "x"}}, "model.backbon: no such setting; did you mean 'model.backbone'?"),
        ({"schedule": {"epochs": "many"}}, "schedule.epochs='many': must be a whole number"),
        ({"schedule": {"epochs": True}}, "schedule.epochs=True: must be a whole number"),
        ({"schedule": {"epochs": -1}}, "schedule.epochs=-1"),
        ({"schedule": {"kind": "linear"}}, "schedule.kind='linear'"),
        ({"augment": {"scale": [0.5]}}, r"augment.scale=\[0.5\]: needs 2 numbers"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr=0"),
        ({"optimizer": {"name": "lion"}}, "optimizer.name='lion'"),
        ({"train": {"protocol": "blind"}}, "train.protocol='blind'"),
        ({"train": {"fold": 7}}, "train.fold=7"),
        ({"train": {"ema": 1.0}}, "train.ema=1.0"),
        ({"train": {"evaluate_every": 0}}, "train.evaluate_every=0"),
        ({"train": {"checkpoint_every": -1}}, "train.checkpoint_every=-1"),
        ({"train": {"patience": -1}}, "train.patience=-1: must not be negative"),
        ({"optimizer": {"clip": -1}}, "optimizer.clip=-1.0: must not be negative"),
        ({"schedule": {"milestones": [8, 20], "epochs": 40}}, "shares of all epochs.* epoch 20 of 40 is 0.5"),
        ({"model": 3}, "model=3: must be a table"),
        ({"model": {"head": "round"}}, "model.head='round'"),
    ],
)
def test_what_is_wrong_is_named(table, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        Recipe.of(table)
    assert "\n" not in str(caught.value)


def test_changes_are_written_as_in_toml():
    recipe = Recipe().changed(
        [
            "schedule.epochs=3",
            "model.pooling=avg+max",
            "augment.scale=[0.2, 1.0]",
            "train.compile=true",
            "loss.k=5",
        ]
    )
    assert (recipe.schedule.epochs, recipe.model.pooling, recipe.loss["k"]) == (3, "avg+max", 5)
    assert (recipe.augment.scale, recipe.train.compile) == ((0.2, 1.0), True)


def test_another_loss_drops_the_settings_of_the_first():
    assert Recipe().changed(["loss.name=epshn"]).loss == {"name": "epshn"}


@pytest.mark.parametrize("spelling", ["topk", " topk", '"topk"'])
def test_the_same_loss_keeps_them(spelling):
    assert Recipe().changed([f"loss.name={spelling}"]) == Recipe()


@pytest.mark.parametrize("change", ["epochs=3", "schedule.epochs", "train.seed.x=1"])
def test_changes_that_are_no_changes(change):
    with pytest.raises(ValueError, match="--set"):
        Recipe().changed([change])


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[model\n")
    with pytest.raises(ValueError, match=r"mine\.toml"):
        Recipe.read(path)
    path.write_text("# nothing yet\n")
    with pytest.raises(ValueError, match=r"mine\.toml: is empty: give it at least one setting"):
        Recipe.read(path)
    path.write_text("[modle]\n")
    with pytest.raises(ValueError, match=r"mine\.toml: modle: no such setting; did you mean 'model'\?"):
        Recipe.read(path)
