"""Backbones of the user's own, named `module:Class`: created, given weights, saved, loaded, and refused."""

import sys
import tomllib

import pytest
import torch
from safetensors.torch import save_file

from firstpage.errors import UserError
from firstpage.models import Embedder
from firstpage.models.backbones import create
from firstpage.recipes import Recipe

MODULE = '''
import torch
from firstpage.models.backbones import Backbone


class Net(Backbone):
    """One convolution."""

    input_size = 16
    ignored_prefixes = ("classifier.",)

    def __init__(self, width=4, checkpointing=False):
        super().__init__(checkpointing)
        self.widths = (width, width, width)
        self.conv = torch.nn.Conv2d(3, width, 3)

    def stages(self, images):
        features = self.run_block(self.conv, images)
        return features, features, features


class Required(Net):
    def __init__(self, width):
        super().__init__(width)


class Open(Net):
    def __init__(self, **options):
        super().__init__(**options)


class Abstract(Backbone):
    widths = (1, 1, 1)


class Module(torch.nn.Module):
    pass


def function():
    raise RuntimeError("must not be called")
'''


@pytest.fixture(autouse=True)
def own_package(tmp_path, monkeypatch):
    package = tmp_path / "modules" / "own_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(MODULE)
    (package / "needy.py").write_text("import nowhere_to_be_found\n")
    (package / "broken.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(package.parent)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_package"]:
        del sys.modules[name]


def message(error):
    assert error.type is UserError
    text = str(error.value)
    assert text.isprintable()
    return text


def test_options_and_checkpointing_arrive():
    network = create("own_package.nets:Net", width=6, checkpointing=True)
    assert type(network).__name__ == "Net"
    assert (network.widths, network.checkpointing) == ((6, 6, 6), True)
    assert create("own_package.nets:Open", width=6).widths == (6, 6, 6)
    assert create("own_package.nets:Open", checkpointing=True).checkpointing
    assert create("own_package.nets:Required", width=2).widths == (2, 2, 2)


def test_a_weights_file_is_loaded_and_one_that_does_not_fit_is_named(tmp_path):
    state = {
        "conv.weight": torch.rand(4, 3, 3, 3),
        "conv.bias": torch.rand(4),
        "classifier.bias": torch.ones(2),
    }
    save_file(state, tmp_path / "own.safetensors")
    network = create("own_package.nets:Net", weights=tmp_path / "own.safetensors")
    torch.testing.assert_close(network.conv.weight.detach(), state["conv.weight"], rtol=0, atol=0)
    with pytest.raises(
        ValueError, match=r"another network than own_package.nets:Net; conv.bias is \[4\], not \[5\]"
    ) as error:
        create("own_package.nets:Net", width=5, weights=tmp_path / "own.safetensors")
    message(error)
    with pytest.raises(ValueError, match=r"none are published for own_package\.nets:Net") as error:
        create("own_package.nets:Net", weights="imagenet")
    message(error)


def test_a_recipe_names_one():
    recipe = Recipe().changed(
        [
            "model.backbone=own_package.nets:Net",
            "model.options.width=6",
            "model.dim=3",
            "model.head=multilevel",
        ]
    )
    model = Embedder(Recipe.of(tomllib.loads(recipe.toml())).model)
    assert (model.settings.crop, model.dim, model.backbone.widths) == (16, 9, (6, 6, 6))
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 9)


def test_saved_it_loads_where_its_module_can_be_imported(tmp_path, monkeypatch):
    model = Embedder.create(backbone="own_package.nets:Net", options={"width": 6}, dim=3, stored=16).eval()
    folder = model.save(tmp_path / "model")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(Embedder.load(folder)(images), model(images))
    for name in ("own_package.nets", "own_package"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not entry.startswith(str(tmp_path))])
    with pytest.raises(
        ValueError, match=r"config\.json: model\.backbone='own_package\.nets:Net': no module"
    ) as error:
        Embedder.load(folder)
    assert message(error).endswith("'own_package'; install it, or add its folder to PYTHONPATH")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        (
            "own_package.net:Net",
            {},
            "no module 'own_package.net'; install it, or add its folder to PYTHONPATH",
        ),
        ("nowhere.net:Net", {}, "no module 'nowhere'; install it"),
        ("own_package.nets:Nett", {}, "module own_package.nets has no 'Nett'; did you mean 'Net'?"),
        (
            "own_package.nets:zzz",
            {},
            "module own_package.nets has no 'zzz'; correct the name after the colon",
        ),
        ("own_package.nets:", {}, "write package.module:Name"),
        (":Net", {}, "write package.module:Name"),
        (".nets:Net", {}, "write package.module:Name"),
        ("own_package\n.nets:Net", {}, "write package.module:Name"),
        ("own_package/nets.py:Net", {}, "write package.module:Name"),
        ("own_package.needy:Net", {}, "failed (ModuleNotFoundError: No module named 'nowhere_to_be_found')"),
        ("own_package.broken:Net", {}, "importing own_package.broken failed (RuntimeError: two); correct"),
        (
            "own_package.nets:Module",
            {},
            "not a backbone; write a subclass of firstpage.models.backbones.Backbone",
        ),
        ("own_package.nets:function", {}, "not a backbone; write a subclass"),
        ("own_package.nets:Abstract", {}, "that sets widths and implements stages"),
        ("own_package.nets:Net", {"widht": 3}, "no option 'widht'; did you mean 'width'? it takes width"),
        ("own_package.nets:Required", {}, "missing a required argument: 'width'; it takes width"),
        (
            "own_package.nets:Required",
            {"width": 2, "checkpointing": True},
            "keyword argument 'checkpointing'",
        ),
    ],
)
def test_what_cannot_be_a_backbone_is_one_line(name, options, complaint):
    with pytest.raises(ValueError, match="backbone") as error:
        create(name, **options)
    assert complaint in message(error)
