"""Each backbone: shapes, key names, values, gradients, and what real weights make of real images."""

import copy
import functools
import io
import math
import os
import pickle
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from firstpage.models import backbones
from firstpage.models.backbones import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    DenseNet,
    GoogLeNet,
    InceptionBN,
    ResNet,
    Small,
    VisionTransformer,
    create,
    freeze_batch_norm,
)
from firstpage.models.backbones.base import initialize
from firstpage.models.backbones.batch_norm import keep_statistics
from firstpage.models.backbones.vit import resample_positions

CHECKOUT = Path(__file__).parents[2]
SHARED = CHECKOUT.parent / "shared"
WEIGHTS = Path(os.environ.get("FIRSTPAGE_WEIGHTS", SHARED / "weights"))
CUB = Path(os.environ.get("FIRSTPAGE_CUB", SHARED / "data/cub200"))
RESNET50_V1 = WEIGHTS / "resnet50_v1_imagenet.safetensors"
VIT_SMALL = WEIGHTS / "vit_small_14_dinov2_focus.safetensors"
BROKEN = (ImportError, RuntimeError)  # the latter from a torchvision built for another torch

# One network of each family, as small as its class allows.
FAMILIES = {
    "resnet": lambda **options: ResNet((1, 2, 1, 1), channels=(8, 16, 16, 32, 32), **options),
    "resnet basic": lambda **options: ResNet((1, 1, 1, 1), False, (8, 8, 16, 16, 32), **options),
    "densenet": lambda **options: DenseNet((2, 2, 2, 2), growth=4, **options),
    "googlenet": GoogLeNet,
    "inception_bn": InceptionBN,
    "vit": lambda **options: VisionTransformer(width=24, heads=3, depth=3, size=56, **options),
    "small": Small,
}
SIDE = 42  # pixels a side that all of them take
families = pytest.mark.parametrize("family", FAMILIES)


def images(*shape):
    return torch.randn(*shape).to(memory_format=torch.channels_last)


@functools.cache
def on_meta(name, **options):
    """The network without its memory: enough for shapes and names, and reading a value would fail."""
    with torch.device("meta"):
        return create(name, **options).eval()  # training statistics take twice the time there, too


# Shapes

EXPECTED = {
    "resnet18": [(128, 28), (256, 14), (512, 7)],
    "resnet34": [(128, 28), (256, 14), (512, 7)],
    "resnet50": [(512, 28), (1024, 14), (2048, 7)],
    "resnet101": [(512, 28), (1024, 14), (2048, 7)],
    "resnet50-slim": [(192, 28), (384, 14), (768, 7)],
    "densenet121": [(512, 28), (1024, 14), (1024, 7)],
    "densenet201": [(512, 28), (1792, 14), (1920, 7)],
    "googlenet": [(480, 28), (832, 14), (1024, 7)],
    "inception_bn": [(576, 14), (1056, 7), (1024, 7)],
    "small": [(48, 56), (96, 28), (192, 14)],
}


def test_every_name_is_expected_here():
    assert {*EXPECTED, "vit_small_14", "vit_base_14"} == set(backbones.names())


@pytest.mark.parametrize("name", EXPECTED)
def test_maps_of_224_pixels(name):
    network = on_meta(name)
    stages = network.stages(torch.empty(2, 3, 224, 224, device="meta"))
    assert [(features.shape[1], features.shape[2]) for features in stages] == EXPECTED[name]
    assert all(features.shape[0] == 2 and features.shape[2] == features.shape[3] for features in stages)
    assert network.widths == tuple(features.shape[1] for features in stages)


@pytest.mark.parametrize(("name", "width"), [("vit_small_14", 384), ("vit_base_14", 768)])
def test_tokens_of_224_pixels(name, width):
    network = on_meta(name)
    stages = network.stages(torch.empty(2, 3, 224, 224, device="meta"))
    assert [features.shape for features in stages] == [(2, 257, width)] * 3
    assert network.widths == (width, width, width)


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "googlenet", "inception_bn", "small"])
@pytest.mark.parametrize("size", [(227, 227), (256, 256), (240, 208), (97, 64)])
def test_maps_of_other_sizes(name, size):
    features = on_meta(name)(torch.empty(1, 3, *size, device="meta"))
    stride = 16 if name == "small" else 32
    assert all(abs(got - side / stride) < 1 for got, side in zip(features.shape[2:], size, strict=True))


@families
def test_forward_is_the_high_stage(family):
    network = FAMILIES[family]().eval()
    batch = images(2, 3, SIDE, SIDE)
    with torch.no_grad():
        low, middle, high = network.stages(batch)
        torch.testing.assert_close(network(batch), high, rtol=0, atol=0)
    axis = 2 if family == "vit" else 1
    assert network.widths == (low.shape[axis], middle.shape[axis], high.shape[axis])
    assert high.isfinite().all()
    assert high.std() > 0


# Parameters and key names: what is published of each, less its classifier of 1000 classes

PARAMETERS = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
    "resnet101": 44_549_160 - 2_049_000,
    "densenet121": 7_978_856 - 1_025_000,
    "densenet201": 20_013_928 - 1_921_000,
    "googlenet": 6_624_904 - 1_025_000,
    "inception_bn": 11_295_240 - 1_025_000,
    "vit_small_14": 22_056_576 - 384,  # less the token that pre-training masks with
    "vit_base_14": 86_580_480 - 768,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    options = {"size": 518} if name.startswith("vit") else {}
    assert sum(parameter.numel() for parameter in on_meta(name, **options).parameters()) == PARAMETERS[name]


def test_small_is_small():
    assert 0.3e6 < sum(parameter.numel() for parameter in on_meta("small").parameters()) < 1e6


@pytest.mark.parametrize(
    ("name", "tensors", "some"),
    [
        ("resnet18", 120, ["bn1.running_var", "layer2.0.downsample.1.bias", "layer4.1.conv2.weight"]),
        ("resnet50", 318, ["conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.bn3.weight"]),
        ("densenet121", 725, ["features.conv0.weight", "features.denseblock3.denselayer24.norm2.bias"]),
        ("densenet201", 1205, ["features.transition3.conv.weight", "features.norm5.running_mean"]),
        ("googlenet", 342, ["conv1.conv.weight", "inception4e.branch3.1.bn.bias"]),
        ("inception_bn", 483, ["conv1_7x7_s2.bias", "inception_3c_double_3x3_2_bn.weight"]),
        ("vit_small_14", 174, ["cls_token", "pos_embed", "patch_embed.proj.bias", "blocks.11.ls2.gamma"]),
    ],
)
def test_key_names(name, tensors, some):
    keys = on_meta(name).state_dict()
    assert len(keys) == tensors
    assert set(some) <= set(keys)


@pytest.mark.skipif(not WEIGHTS.exists(), reason="no weights here; FIRSTPAGE_WEIGHTS may name their folder")
@pytest.mark.parametrize(
    ("name", "options", "file"), [("resnet50", {}, RESNET50_V1), ("vit_small_14", {"size": 518}, VIT_SMALL)]
)
def test_keys_and_shapes_are_those_of_a_public_file(name, options, file):
    ours = {key: list(value.shape) for key, value in on_meta(name, **options).state_dict().items()}
    with safe_open(file, "pt") as tensors:
        theirs = {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118
    assert {key: shape for key, shape in ours.items() if not key.endswith("num_batches_tracked")} == theirs


# Values


def fill(network):
    """Weights that are a formula of their key and place, so that another implementation has the same."""
    for key, value in network.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue
        # Tables of tokens vary slowly, for resampling not to level them.
        places = torch.arange(value.numel()).reshape(value.shape) * (0.0005 if value.ndim == 3 else 1.618)
        wave = torch.sin(places + zlib.crc32(key.encode()) % 1000)
        if value.ndim in (2, 4):
            wave *= math.sqrt(4 / value[0].numel())
        elif value.ndim == 1:
            wave = 0.3 * wave + key.endswith(("running_var", "weight", "gamma"))
        value.copy_(wave)
    return network.double().eval()


def pattern(size):
    return torch.sin(torch.arange(2 * 3 * size * size) * 0.37).reshape(2, 3, size, size).double()


def summary(features):
    """Two numbers that move when a channel, a pixel or a value does."""
    spread = features.std().item()
    place = torch.cos(torch.arange(features.numel()) * 0.011).reshape(features.shape)
    return spread, (features * place).mean().item() / spread


# Made once with torchvision 0.28 (with its strides moved for v1), pretrained-models 0.7.4 and timm 1.0.30,
# filled with the same formula.
THEIRS = {
    "resnet18": [(2.2417902, -0.0093184771), (3.7375384, -0.012258218), (4.7934148, 0.015849294)],
    "resnet50": [(4.6036348, 0.0048466673), (113.20271, 0.0021394218), (365.82764, -0.0046345198)],
    "resnet50 v1": [(4.6067427, 0.0048257051), (107.12245, 0.0019760095), (405.71716, -0.0057983661)],
    "densenet121": [(1.7413982, -0.007206414), (2.3843985, 0.0016759664), (4.7534438, -0.02963512)],
    "googlenet": [(0.70462532, -0.016917196), (2.2562434, -0.021397113), (3.9315198, -0.062350275)],
    "inception_bn": [(5.1982863, -0.0052871067), (1.0618621, -0.014014744), (1.8145906, -0.014024324)],
    "vit_small_14": [(11.382867, 0.00076097054), (17.612613, 0.0005051783), (1.0860419, 2.9110862e-06)],
}
OPTIONS = {"resnet50 v1": {"strides": "v1"}, "vit_small_14": {"size": 518}}


@pytest.mark.parametrize("name", THEIRS)
def test_values_are_those_of_the_public_implementations(name, monkeypatch):
    for draw in ("kaiming_uniform_", "kaiming_normal_", "trunc_normal_", "uniform_"):
        monkeypatch.setattr(torch.nn.init, draw, lambda tensor, *_, **__: tensor)  # all weights are filled in
    network = fill(create(name.split()[0], **OPTIONS.get(name, {})))
    with torch.no_grad():
        stages = network.stages(pattern(112 if "vit" in name else 64))
    for features, expected in zip(stages, THEIRS[name], strict=True):
        assert summary(features) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121", "googlenet"])
def test_values_against_torchvision(name):
    models = pytest.importorskip("torchvision", exc_type=BROKEN).models
    extras = (
        {"transform_input": True, "init_weights": True, "aux_logits": False} if name == "googlenet" else {}
    )
    theirs = fill(getattr(models, name)(**extras))
    ours = fill(create(name))
    seen = []
    layer = {"densenet121": "features.norm5", "googlenet": "inception5b"}.get(name, "layer4")
    theirs.get_submodule(layer).register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        theirs(pattern(64))
        torch.testing.assert_close(ours(pattern(64)), seen[0].relu())


def test_values_against_timm():
    timm = pytest.importorskip("timm", exc_type=BROKEN)
    theirs = fill(timm.create_model("vit_small_patch14_dinov2", dynamic_img_size=True))
    with torch.no_grad():
        expected = theirs.forward_features(pattern(112))
        torch.testing.assert_close(fill(create("vit_small_14", size=518))(pattern(112)), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("googlenet", [0.6, 0.0, -0.8]), ("inception_bn", [25.5 - 104, 127.5 - 117, 204 - 128])],
)
def test_pixels_arrive_as_the_published_weights_expect(name, expected):
    network = create(name).eval()
    seen = []
    first = network.conv1 if name == "googlenet" else network.conv1_7x7_s2
    first.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    color = (torch.tensor([0.8, 0.5, 0.1]) - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    with torch.no_grad():
        network(color.reshape(1, 3, 1, 1).expand(1, 3, 32, 32))
    torch.testing.assert_close(seen[0][0, :, 0, 0], torch.tensor(expected), rtol=1e-5, atol=1e-4)
    assert not any(key.startswith("renormalize") for key in network.state_dict())


def test_strides_change_the_values_not_the_shapes():
    late, early = (
        ResNet((1, 1, 1, 1), channels=(8, 16, 16, 32, 32), strides=strides) for strides in ("v1.5", "v1")
    )
    early.load_state_dict(late.state_dict())
    batch = images(2, 3, 64, 64)
    with torch.no_grad():
        one, other = late.eval()(batch), early.eval()(batch)
    assert one.shape == other.shape
    assert not torch.allclose(one, other, rtol=0.1)


def test_strides_that_do_not_exist():
    with pytest.raises(ValueError, match=r"strides='v2': choose 'v1.5' \(torchvision's\) or 'v1'"):
        create("resnet50", strides="v2")


def test_initial_weights():
    torch.manual_seed(1)
    convolution = torch.nn.Conv2d(16, 64, 3)
    initialize(convolution)
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)
    transformer = FAMILIES["vit"]()
    assert transformer.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert transformer.pos_embed.std().item() == pytest.approx(0.02, rel=0.2)
    assert transformer.blocks[0].ls1.gamma.unique().tolist() == pytest.approx([1e-5])
    assert transformer.blocks[0].attn.qkv.bias.count_nonzero() == 0
    # timm's, too small a difference for values to show.
    assert {layer.eps for layer in transformer.modules() if isinstance(layer, torch.nn.LayerNorm)} == {1e-6}


def test_nothing_is_drawn_for_networks_without_memory(monkeypatch):
    """Torch imports its compiler for that, which took most of the time that loading a model took."""
    monkeypatch.setattr(torch.nn.init, "kaiming_normal_", lambda *_, **__: pytest.fail("drawn"))
    with torch.device("meta"):
        create("resnet18")


# The transformer's positions


@pytest.mark.parametrize("size", [(56, 57), (100, 56), (13, 14)])
def test_a_side_that_holds_no_whole_number_of_patches(size):
    network = FAMILIES["vit"]()
    with pytest.raises(
        ValueError, match=rf"images of {size[0]}×{size[1]} pixels: each side must be a multiple of 14"
    ):
        network(torch.zeros(1, 3, *size))
    with pytest.raises(ValueError, match="size=225: must be a multiple of 14, such as 224"):
        create("vit_small_14", size=225)


def test_positions_keep_to_their_place():
    side, grid = 37, (16, 12)
    rows = torch.arange(side).repeat_interleave(side).float()
    columns = torch.arange(side).repeat(side).float()
    table = torch.cat([torch.full((1, 1, 2), 99.0), torch.stack([rows, columns], dim=1)[None]], dim=1)
    moved = resample_positions(table, grid)
    assert moved[0, 0].tolist() == [99, 99]
    inner = moved[0, 1:].reshape(*grid, 2)[1:-1, 1:-1]  # at the border the kernel is cut
    for axis, count in enumerate(grid):
        expected = (torch.arange(count) + 0.5) * side / count - 0.5
        got = inner[..., axis].mean(dim=1 - axis)
        torch.testing.assert_close(got, expected[1:-1], rtol=0, atol=0.1)
    assert resample_positions(table, (side, side)) is table


def test_positions_resampled_at_load_and_in_the_forward_pass_are_the_same():
    large = VisionTransformer(width=24, heads=3, depth=3, size=98).eval()
    torch.nn.init.normal_(large.pos_embed)
    small = VisionTransformer(width=24, heads=3, depth=3, size=42).eval()
    small.load_state_dict(small.adapt(large.state_dict()))
    batch = images(2, 3, 42, 42)
    with torch.no_grad():
        torch.testing.assert_close(small(batch), large(batch))


# Training


def step(network, batch):
    """Gradients and buffers after one backward pass from all stages."""
    network.train()
    sum(features.square().mean() for features in network.stages(batch)).backward()
    return {key: parameter.grad for key, parameter in network.named_parameters()}, dict(
        network.named_buffers()
    )


def test_layers_that_learn_nothing_count_nothing_and_still_have_a_count():
    layers = torch.nn.ModuleList(
        [torch.nn.SyncBatchNorm(2), torch.nn.BatchNorm1d(2, track_running_stats=False)]
    )
    with keep_statistics(layers):
        layers[0].num_batches_tracked.add_(1)  # torch's own insists on one
        assert layers[1].num_batches_tracked is None
    assert layers[0].num_batches_tracked == 0


@families
def test_checkpointing_changes_neither_gradients_nor_statistics(family):
    plain = FAMILIES[family]()
    saving = FAMILIES[family](checkpointing=True)
    saving.load_state_dict(plain.state_dict())
    batch = images(4, 3, SIDE, SIDE)
    (gradients, buffers), (gradients_again, buffers_again) = step(plain, batch), step(saving, batch)
    assert all(gradient is not None for gradient in gradients.values())
    torch.testing.assert_close(gradients_again, gradients)
    torch.testing.assert_close(buffers_again, buffers, rtol=0, atol=0)


@families
def test_checkpointing_keeps_less(family):
    def kept(network):
        sizes = []
        pack = lambda tensor: sizes.append(tensor.untyped_storage().nbytes()) or tensor  # noqa: E731
        weights = sum(parameter.untyped_storage().nbytes() for parameter in network.parameters())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            network.train()(images(4, 3, SIDE, SIDE))
        return sum(sizes) - weights

    assert kept(FAMILIES[family](checkpointing=True)) < 0.7 * kept(FAMILIES[family]())


def test_compiles_as_one_graph():
    torch._dynamo.reset()
    network = FAMILIES["inception_bn"]().eval()  # built of the kinds of layers that googlenet has
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    batch = images(2, 3, SIDE, SIDE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(batch), network(batch))


@pytest.mark.parametrize(("family", "checkpointing"), [("densenet", True), ("vit", False), ("small", False)])
def test_training_compiles_as_one_graph(family, checkpointing):
    torch._dynamo.reset()
    # Further blocks of a DenseNet have the kinds of layers that its first has.
    build = functools.partial(DenseNet, (2, 1, 1, 1), growth=4) if family == "densenet" else FAMILIES[family]
    network = build(checkpointing=checkpointing)
    eager = copy.deepcopy(network)
    compiled = torch.compile(network.train(), fullgraph=True, backend="aot_eager")
    batch = images(2, 3, SIDE, SIDE)
    compiled(batch).sum().backward()
    eager.train()(batch).sum().backward()
    for ours, theirs in zip(network.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(dict(network.named_buffers()), dict(eager.named_buffers()))


@families
def test_channels_last_stays(family):
    network = FAMILIES[family]().eval()
    batch = images(2, 3, SIDE, SIDE)
    with torch.no_grad():
        expected = network(batch.contiguous())
        stages = network.to(memory_format=torch.channels_last).stages(batch)
    if family != "vit":
        assert all(features.is_contiguous(memory_format=torch.channels_last) for features in stages)
    torch.testing.assert_close(stages[-1], expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@families
def test_autocast(family):
    network = FAMILIES[family]().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = network(images(4, 3, SIDE, SIDE))
    features.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def copied(network):
    return copy.deepcopy(network)


def pickled(network):
    return pickle.loads(pickle.dumps(network))


@pytest.mark.parametrize("again", [lambda network: network, copied, pickled])
def test_frozen_batch_norm_stays_frozen(again):
    network = Small()
    freeze_batch_norm(network)
    network = again(network)
    before = copy.deepcopy(network.state_dict())
    network.eval().train()
    batch = images(4, 3, 32, 32)
    alone, together = network(batch[:1]), network(batch)[:1]
    torch.testing.assert_close(alone, together)  # no statistics of the batch
    together.sum().backward()
    norms = {key for key in before if ".bn" in key or key.startswith("bn.") or "downsample.1" in key}
    assert norms
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    for key, parameter in network.named_parameters():
        assert parameter.requires_grad == (key not in norms)
        assert (parameter.grad is not None) == (key not in norms)
    assert network.training
    assert network.blocks.training


def test_frozen_batch_norm_may_be_checkpointed():
    network = Small(checkpointing=True)
    freeze_batch_norm(network)
    before = copy.deepcopy(dict(network.named_buffers()))
    network.train()(images(4, 3, 32, 32)).sum().backward()
    torch.testing.assert_close(dict(network.named_buffers()), before, rtol=0, atol=0)
    assert {layer.momentum for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)} == {0.1}


# Real weights on real images


def birds(count):
    """One picture of each of the first species, 256 × 256 [3, H, W], normalized."""
    pictures = {}
    for part in sorted(CUB.glob("*.tar")):
        with tarfile.open(part) as archive:
            for member in archive:
                species = Path(member.name).parent.name
                if member.name.endswith(".jpg") and species not in pictures:
                    pictures[species] = archive.extractfile(member).read()
                if len(pictures) == count:
                    break
    for file in sorted(CUB.rglob("*.jpg")):
        if len(pictures) < count:
            pictures.setdefault(file.parent.name, file.read_bytes())
    arrays = [
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((256, 256)))
        for data in list(pictures.values())[:count]
    ]
    pixels = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 255
    return (pixels - torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1)) / torch.tensor(IMAGENET_STD).reshape(
        3, 1, 1
    )


@pytest.mark.skipif(
    not (WEIGHTS.exists() and CUB.exists()),
    reason="no weights or no CUB-200-2011 here; FIRSTPAGE_WEIGHTS and FIRSTPAGE_CUB may name their folders",
)
@pytest.mark.parametrize(
    ("name", "options", "file"),
    [("resnet50", {"strides": "v1"}, RESNET50_V1), ("vit_small_14", {}, VIT_SMALL)],
)
def test_two_crops_of_a_bird_are_closer_than_two_birds(name, options, file):
    network = create(name, weights=file, **options).eval()
    pictures = birds(4)
    with torch.inference_mode():
        features = network(torch.cat([pictures[..., :224, :224], pictures[..., 32:, 32:].flip(-1)]))
    vectors = features[:, 0] if features.ndim == 3 else features.mean(dim=(2, 3))
    left, right = torch.nn.functional.normalize(vectors, dim=1).split(4)
    assert (left @ right.T).argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert (right @ left.T).argmax(dim=1).tolist() == [0, 1, 2, 3]
