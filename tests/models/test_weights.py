"""Weights files: which are read, which are refused and in what words, and how published ones are fetched."""

import copy
import hashlib
import os
import pickle
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from firstpage.errors import UserError
from firstpage.models import weights
from firstpage.models.backbones import (
    DenseNet,
    GoogLeNet,
    InceptionBN,
    ResNet,
    Small,
    VisionTransformer,
    create,
    names,
    timm_adapter,
)
from firstpage.models.backbones.vit import resample_positions
from firstpage.models.embedder import Embedder
from firstpage.models.weights import load, read

CHECKOUT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("FIRSTPAGE_WEIGHTS", CHECKOUT.parent / "shared/weights"))


def tiny_resnet():
    return ResNet((1, 1, 1, 1), channels=(8, 16, 16, 32, 32))


def tiny_densenet():
    return DenseNet((2, 2, 2, 2), growth=4)


def tiny_vit(size=56):
    return VisionTransformer(width=24, heads=3, depth=3, size=size)


def published(network, **extras):
    """What a public file of `network` may hold: another number for each tensor, and more than it needs.

    There is one number behind all of a tensor, for the files to stay small.
    """
    state = network.state_dict()
    numbers = torch.rand(len(state)) * 2
    return {
        key: number.to(value.dtype).expand(value.shape)
        for number, (key, value) in zip(numbers, state.items(), strict=True)
    } | extras


def written(state, path):
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def same(network, state, **tolerance):
    got = network.state_dict()
    expected = {key: state[key].to(got[key].dtype) for key in got if key in state}
    torch.testing.assert_close({key: got[key] for key in expected}, expected, **tolerance)


def message(error):
    text = str(error.value)
    assert "\n" not in text
    return text


# What is read


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_formats(tmp_path, suffix, dtype):
    network = Small()
    state = {key: torch.rand(value.shape).to(dtype) for key, value in network.state_dict().items()}
    load(network, written(state, tmp_path / f"weights{suffix}"), "small")
    same(network, state, rtol=0, atol=0)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_create_loads_from_a_path_or_its_text(tmp_path):
    state = published(Small())
    path = written(state, tmp_path / "weights.safetensors")
    same(create("small", weights=path), state)
    same(create("small", weights=str(path)), state)


@pytest.mark.parametrize(
    ("network", "extras"),
    [
        (tiny_resnet, ["fc.weight", "fc.bias"]),
        (tiny_densenet, ["classifier.weight", "classifier.bias"]),
        (GoogLeNet, ["fc.weight", "aux1.conv.conv.weight", "aux2.fc2.bias"]),
        (tiny_vit, ["head.weight", "mask_token"]),
    ],
)
def test_a_classifier_is_left_out(tmp_path, network, extras):
    network = network()
    state = published(network, **{key: torch.ones(3) for key in extras})
    load(network, written(state, tmp_path / "weights.pth"), "it")
    same(network, state)


def test_counters_of_batches_may_be_missing(tmp_path):
    network = tiny_resnet()
    state = {key: value for key, value in published(network).items() if "num_batches" not in key}
    load(network, written(state, tmp_path / "weights.pth"), "it")
    same(network, state)


def test_the_first_densenet_files_have_other_names(tmp_path):
    network = tiny_densenet()
    state = published(network)
    old = {}
    for key, value in state.items():
        for part in ("norm", "conv"):
            if "denselayer" in key:
                key = key.replace(f".{part}1.", f".{part}.1.").replace(f".{part}2.", f".{part}.2.")
        old[key] = value
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    assert "features.transition1.norm.weight" in old
    load(network, written(old, tmp_path / "weights.pth"), "it")
    same(network, state)


def test_the_first_inception_files_have_other_shapes(tmp_path):
    network = InceptionBN()
    state = published(network)
    old = {key: value[None] if "_bn." in key and value.ndim == 1 else value for key, value in state.items()}
    assert old["conv1_7x7_s2_bn.weight"].shape == (1, 64)
    old |= {"last_linear.weight": torch.ones(1000, 1024), "last_linear.bias": torch.ones(1000)}
    load(network, written(old, tmp_path / "weights.pth"), "it")
    same(network, state)


def test_positions_of_another_size_are_resampled(tmp_path):
    large, network = tiny_vit(size=98), tiny_vit(size=56)
    state = published(large)
    state["pos_embed"] = torch.rand(1, 1 + 7 * 7, 24).half()
    load(network, written(state, tmp_path / "weights.safetensors"), "it")
    expected = resample_positions(state["pos_embed"].float(), (4, 4))  # not rounded to float16 again
    torch.testing.assert_close(network.pos_embed.detach(), expected, rtol=0, atol=0)


@pytest.mark.skipif(not SHARED.exists(), reason="no weights here; FIRSTPAGE_WEIGHTS may name their folder")
def test_a_real_file_of_another_network():
    with pytest.raises(ValueError, match="another network than resnet18; it looks like resnet50: use that"):
        create("resnet18", weights=SHARED / "resnet50_v1_imagenet.safetensors")


# What is refused


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "inception_bn", "vit_small_14", "small"])
def test_another_network_is_recognized(tmp_path, name):
    with torch.device("meta"):
        shapes = create(name)
    path = written(published(shapes), tmp_path / "weights.pth")
    network = Small() if name != "small" else tiny_resnet()
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match="weights=") as error:
        load(network, path, "it", {known: partial(create, known) for known in names()})
    assert (
        f"a weights file of another network than it; it looks like {name}: use that (in a recipe "
        in message(error)
    )
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


def changed(state):
    state.pop("conv.weight")
    state["bn.bias"] = torch.ones(7)
    state["novelty"] = torch.ones(1)
    state["novelty2"] = torch.ones(1)
    return state


def test_what_does_not_fit_is_named(tmp_path):
    path = written(changed(published(Small())), tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="another network than small") as error:
        create("small", weights=path)
    assert message(error).endswith(
        "; bn.bias is [7], not [32], conv.weight is missing, novelty has no place and 1 more"
    )


def test_no_such_file():
    with pytest.raises(
        FileNotFoundError, match=r"weights='none.pth': no such file; give a path or 'imagenet'"
    ):
        create("small", weights="none.pth")


@pytest.mark.parametrize("name", ["imagnet", "weights.bin"])
def test_no_such_format(name):
    with pytest.raises(
        ValueError, match=rf"weights='{name}': give a .safetensors, .pth or .pt file, or 'imagenet'"
    ):
        create("small", weights=name)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"PK\x03\x04 cut short"])
def test_a_damaged_file(tmp_path, suffix, content):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a readable file of tensors") as error:
        create("small", weights=path)
    assert str(path) in message(error)


class Malice:
    def __reduce__(self):
        return os.mkdir, ("malice",)


def test_code_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights.pth").write_bytes(pickle.dumps(Malice(), protocol=2))
    with pytest.raises(ValueError, match="not a readable file of tensors") as error:
        read("weights.pth")
    assert message(error)
    assert not Path("malice").exists()


def test_a_whole_checkpoint_is_no_weights_file(tmp_path):
    path = written({"epoch": 3, "state_dict": published(Small())}, tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"holds more than tensors by name; torch.save its state dict alone"):
        create("small", weights=path)


# Published files


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A folder in the place of download.pytorch.org, with one file; and an empty cache."""
    folder = tmp_path / "published"
    folder.mkdir()
    state = published(Small())
    torch.save(state, folder / "new.pth")
    digest = hashlib.sha256((folder / "new.pth").read_bytes()).hexdigest()
    file = (folder / "new.pth").rename(folder / f"small-{digest[:8]}.pth")
    monkeypatch.setitem(weights._PUBLISHED, "small", file.name)
    monkeypatch.setattr(weights, "_HOST", folder.as_uri())
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    return types.SimpleNamespace(file=file, state=state, cached=tmp_path / "cache/weights" / file.name)


def test_a_published_file_is_fetched_once(publisher, capsys):
    same(create("small", weights="imagenet"), publisher.state)
    assert publisher.cached.read_bytes() == publisher.file.read_bytes()
    publisher.file.unlink()
    same(create("small", weights="imagenet"), publisher.state)
    assert [file.name for file in publisher.cached.parent.iterdir()] == [publisher.cached.name]
    assert capsys.readouterr().out == ""


def test_offline_it_says_which_file_to_put_where(publisher):
    publisher.file.unlink()
    with pytest.raises(FileNotFoundError, match="could not download") as error:
        create("small", weights="imagenet")
    text = message(error)
    assert f"{weights._HOST}/{publisher.file.name}" in text
    assert text.endswith(f"; put {publisher.file.name} into {publisher.cached.parent}")
    assert list(publisher.cached.parent.iterdir()) == []


def test_a_file_put_there_by_hand_is_taken(publisher):
    publisher.cached.parent.mkdir(parents=True)
    publisher.file.rename(publisher.cached)
    same(create("small", weights="imagenet"), publisher.state)


def test_a_file_cut_short_on_the_way_is_not_kept(publisher):
    publisher.file.write_bytes(publisher.file.read_bytes()[:-1])
    with pytest.raises(
        FileNotFoundError, match=r"damaged download of .* sha256 is .* try again; put"
    ) as error:
        create("small", weights="imagenet")
    assert message(error)
    assert list(publisher.cached.parent.iterdir()) == []


def test_a_damaged_file_in_the_cache_is_named(publisher):
    create("small", weights="imagenet")
    publisher.cached.write_bytes(b"half a file")
    with pytest.raises(ValueError, match="delete it, and it is fetched again") as error:
        create("small", weights="imagenet")
    assert str(publisher.cached) in message(error)


def test_the_names_of_published_files():
    assert set(weights._PUBLISHED) | set(weights._ELSEWHERE) | {"resnet50-slim", "small"} == set(names())
    for name, file in weights._PUBLISHED.items():
        stem, _, digest = file.removesuffix(".pth").partition("-")
        assert stem == name
        assert len(bytes.fromhex(digest)) == 4


def test_published_weights_are_for_other_strides():
    with pytest.raises(ValueError, match=r"torchvision's file of resnet50 is for strides='v1.5'"):
        create("resnet50", strides="v1", weights="imagenet")


@pytest.mark.parametrize(("name", "where"), [("inception_bn", "bn_inception"), ("vit_small_14", "dinov2")])
def test_weights_published_elsewhere(name, where):
    with pytest.raises(
        ValueError, match=f"none are published for {name}; leave weights out, or give the path of .*{where}"
    ):
        create(name, weights="imagenet")


# timm


class Standin(torch.nn.Module):
    """What a transformer of timm's offers, as far as it is used."""

    def __init__(self, prefix, dynamic_img_size=False):
        super().__init__()
        self.pretrained_cfg = {
            "input_size": (3, 28, 28),
            "mean": (0.5,) * 3,
            "std": (0.5,) * 3,
            "classifier": "head",
        }
        self.num_features, self.num_prefix_tokens = 8, prefix
        self.dynamic_img_size = dynamic_img_size
        self.patch_embed = torch.nn.Module()
        self.patch_embed.img_size, self.patch_embed.patch_size = (28, 28), (14, 14)
        self.patch_embed.strict_img_size = not dynamic_img_size
        self.embed = torch.nn.Conv2d(3, 8, 14, stride=14)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

    def forward_features(self, images):
        return self.forward_intermediates(images, [])[0]

    def forward_intermediates(self, images, indices, output_fmt="NLC", return_prefix_tokens=False):
        patches = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([patches.new_ones(len(patches), self.num_prefix_tokens, 8), patches], dim=1)
        kept = []
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            if number in indices:
                prefix, rest = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
                kept.append((rest, prefix) if return_prefix_tokens else rest)
        return tokens, kept


@pytest.fixture
def timm(monkeypatch):
    """A timm with two networks, for machines without one."""

    def create_model(name, pretrained, num_classes, prefix=1, **options):
        if pretrained:
            raise OSError("no connection\nand a long story")
        return Standin(prefix, **options)

    module = types.SimpleNamespace(
        create_model=create_model, is_model=lambda name: name == "vit_tiny", list_models=lambda: ["vit_tiny"]
    )
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_a_network_timm_adapter(tmp_path, prefix):
    network = create("timm:vit_tiny", prefix=prefix)
    assert (network.input_size, network.widths) == (28, (8, 8, 8))
    batch = torch.randn(2, 3, 28, 28)
    stages = network.stages(batch)
    assert [features.shape for features in stages] == [(2, prefix + 4, 8)] * 3
    torch.testing.assert_close(network(batch), stages[2])
    tokens = stages[0]
    for block in network.network.blocks[2:4]:
        tokens = block(tokens)
    torch.testing.assert_close(tokens, stages[1])
    pooled = Embedder.create(backbone="timm:vit_tiny", options={"prefix": prefix}, head="none", pooling="avg")
    expected = pooled.backbone(batch)[:, prefix:].mean(dim=1)
    torch.testing.assert_close(pooled.raw(batch), (expected,))
    state = published(Standin(prefix), **{"head.weight": torch.ones(2)})
    loaded = create("timm:vit_tiny", prefix=prefix, weights=written(state, tmp_path / "weights.pth"))
    same(loaded.network, state)


@pytest.mark.usefixtures("timm")
def test_a_size_that_a_network_of_timm_does_not_take_is_refused_with_one_that_works():
    model = {"backbone": "timm:vit_tiny", "dim": 4, "stored": 64}
    assert Embedder.create(**model)(torch.zeros(1, 3, 28, 28)).shape == (1, 4)
    remedy = (
        "set model.options.dynamic_img_size=true and model.crop=56, or model.crop=28 and model.stored alike"
    )
    with pytest.raises(UserError, match=f"model.crop=64: it takes images of 28 pixels: {remedy}$"):
        Embedder.create(**model, crop=64)
    model["options"] = {"dynamic_img_size": True}
    assert Embedder.create(**model, crop=56)(torch.zeros(1, 3, 56, 56)).shape == (1, 4)
    with pytest.raises(
        UserError, match=r"crop=64: it takes images of whole patches of 14 pixels: set model.crop=56$"
    ):
        Embedder.create(**model, crop=64)


@pytest.mark.usefixtures("timm")
def test_timm_errors():
    without = Embedder.create(backbone="timm:vit_tiny", options={"prefix": 0}, pooling="cls")
    with pytest.raises(ValueError, match="this backbone has no class token"):
        without(torch.zeros(1, 3, 28, 28))
    with pytest.raises(ValueError, match=r"'timm:vit_tyni': no such name; did you mean 'timm:vit_tiny'\?"):
        create("timm:vit_tyni")
    with pytest.raises(ValueError, match=r"'timm:vit_tiny': .*unexpected keyword argument 'depth'"):
        create("timm:vit_tiny", depth=3)
    with pytest.raises(
        ValueError, match=r"could not get its weights \(no connection\): give weights=PATH"
    ) as error:
        create("timm:vit_tiny", weights="imagenet")
    assert message(error)
    for key in ("pretrained", "checkpoint_path", "num_classes"):
        with pytest.raises(ValueError, match=f"'timm:vit_tiny': option '{key}' is not allowed"):
            create("timm:vit_tiny", **{key: 1})
    with pytest.raises(ValueError, match="checkpointing=True: timm's vit_tiny does not support it"):
        create("timm:vit_tiny", checkpointing=True)


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ValueError, match=r"^backbone 'timm:vit_tiny' needs timm: pip install firstpage\[timm\]$"
    ):
        create("timm:vit_tiny")


def test_with_a_timm_that_cannot_be_imported(monkeypatch):
    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist\nand a long story")

    monkeypatch.setattr(timm_adapter, "import_module", broken)
    with pytest.raises(
        ValueError, match=r"needs timm \(operator torchvision::nms does not exist\): pip"
    ) as error:
        create("timm:vit_tiny")
    assert message(error)


@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet_lite0", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_networks_of_the_real_timm(name):
    # A torchvision built for another torch stops timm with a RuntimeError.
    pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    network = create(f"timm:{name}", checkpointing=True).eval()
    batch = torch.randn(1, 3, network.input_size, network.input_size)
    with torch.no_grad():
        stages = network.stages(batch)
        torch.testing.assert_close(network(batch), stages[2])
    assert network.widths == tuple(features.shape[1 if features.ndim == 4 else 2] for features in stages)
