"""The embedder: unit vectors, the same from files, images and stored pixels, the same after saving."""

import io
import json
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli
from firstpage.data import Catalog, PixelStore
from firstpage.models import Embedder, combine
from firstpage.models.pooling import Pooling


def small(**settings):
    return Embedder.create(**({"backbone": "small", "dim": 8, "stored": 40, "crop": 32} | settings))


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(random.integers(0, 256, (60, 50, 3), np.uint8)).save(tmp_path / f"{number}.png")
    return Catalog("x", tmp_path, [f"{n}.png" for n in range(5)], np.zeros(5, int), ["x"], {})


@pytest.mark.parametrize("head", ["linear", "mlp", "none", "multilevel"])
@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max", "gem"])
def test_unit_vectors_of_every_head_and_pooling(head, pooling):
    model = small(head=head, pooling=pooling, layer_norm=True, standardize=True)
    vectors = model(torch.randn(3, 3, 32, 32))
    assert vectors.shape == (3, model.dim)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    assert len(model.raw(torch.randn(2, 3, 32, 32))) == (3 if head == "multilevel" else 1)


def test_levels_are_joined_before_they_are_normalized():
    model = small(head="multilevel").eval()
    images = torch.randn(2, 3, 32, 32)
    joined = torch.cat(model.raw(images), dim=1)
    torch.testing.assert_close(model(images), joined / joined.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("head", ["linear", "mlp", "none", "split"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_head_of_several_stages_sees_the_pooled_features_of_each_side_by_side(head, norm):
    settings = {"learners": (3, 5)} if head == "split" else {}
    model = small(head=head, stages=2, pooling="avg+max", layer_norm=norm, **settings).eval()
    images = torch.randn(2, 3, 32, 32)
    pooled = []
    for stage in model.backbone.stages(images)[1:]:
        features = stage.mean(dim=(2, 3)) + stage.amax(dim=(2, 3))
        if norm:
            shifted = features - features.mean(dim=1, keepdim=True)
            features = shifted / (shifted.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        pooled.append(features)
    expected = torch.cat(pooled, dim=1)
    for layer in list(model.heads[0])[1 + norm :]:
        expected = layer(expected)
    torch.testing.assert_close(torch.cat(model.raw(images), dim=1), expected)
    assert model.feature_width == 96 + 192
    torch.testing.assert_close(model.raw(model.pooled(model.features(images))), model.raw(images))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": 0}, r"^model\.stages=0: must be in 1\.\.3"),
        ({"stages": 4}, r"^model\.stages=4: must be in 1\.\.3"),
        ({"stages": 3, "head": "multilevel"}, "'multilevel' has its own stages: set model.stages=1"),
        ({"stages": 2, "head": "attention", "learners": (4, 4)}, "'attention' has its own stages"),
    ],
)
def test_stages_that_a_head_cannot_have(settings, message):
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_an_image_and_its_mirror_image_have_one_embedding_if_both_are_averaged(photos):
    model = small()
    images = [Image.open(photos.path(row)).resize((32, 32)) for row in range(5)]
    mirrored = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in images]
    plain, other = (model.embed(some, progress=False) for some in (images, mirrored))
    average, same = (model.embed(some, flip=True, progress=False) for some in (images, mirrored))
    torch.testing.assert_close(average, torch.nn.functional.normalize(plain + other))
    torch.testing.assert_close(average, same)
    assert not torch.allclose(plain, average)


def test_pooling_of_tokens_leaves_the_class_token_out():
    tokens = torch.tensor([[[9.0], [1.0], [3.0]]])
    assert Pooling("avg")(tokens).item() == 2
    assert Pooling("max")(tokens).item() == 3
    assert Pooling("cls")(tokens).item() == 9
    with pytest.raises(ValueError, match="no class token"):
        Pooling("cls")(torch.zeros(1, 2, 3, 3))
    with pytest.raises(ValueError, match="choose one of"):
        Pooling("mean")


def test_a_head_has_no_more_components_than_there_are_features():
    assert small(head="pca", dim=192).dim == 192
    with pytest.raises(ValueError, match=r"^model\.dim=193: small has only 192 features, .*use at most 192"):
        small(head="pca", dim=193)


def test_files_images_arrays_and_stored_pixels_embed_alike(photos, tmp_path):
    model = small()
    paths = [photos.path(row) for row in range(5)]
    from_files = model.embed(paths, progress=False)
    images = [Image.open(path) for path in paths]
    store = PixelStore.build(photos, tmp_path / "stores", size=40, progress=False, workers=0)
    torch.testing.assert_close(model.embed(images, progress=False, batch_size=2), from_files)
    torch.testing.assert_close(model.embed([np.asarray(i) for i in images], progress=False), from_files)
    torch.testing.assert_close(model.embed(store, progress=False), from_files)
    torch.testing.assert_close(model.embed(store, rows=[4, 1], progress=False), from_files[[4, 1]])
    assert model.training  # as it was before


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken\.jpg"):
        small().embed([tmp_path / "broken.jpg"], progress=False)
    with pytest.raises(ValueError, match="got int"):
        small().embed([3], progress=False)
    with pytest.raises(ValueError, match="uint8"):
        small().embed([np.zeros((4, 4))], progress=False)


@pytest.mark.parametrize(
    ("mode", "name", "orientation"),
    [
        ("RGBA", "a.png", 1),
        ("LA", "a.png", 1),
        ("P", "a.gif", 1),
        ("I;16", "a.png", 1),
        ("CMYK", "a.jpg", 1),
        ("RGB", "a.jpg", 6),
        ("RGB", "a.tif", 6),
    ],
)
def test_an_opened_image_is_embedded_as_its_file_is(tmp_path, mode, name, orientation):
    values = np.random.default_rng(0).integers(0, 255, (40, 40, 4), np.uint8)  # the fourth is transparency
    image = Image.fromarray(values).convert("RGBA" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / name, **({"transparency": 3} if mode == "P" else {"exif": exif}))
    model, path = small().eval(), tmp_path / name
    with Image.open(path) as opened:
        by_image = model.embed([opened], progress=False)
    torch.testing.assert_close(by_image, model.embed([path], progress=False))


def test_what_is_no_list_of_images_is_said(photos):
    for one in ("a.png", photos.path(0), Image.new("RGB", (40, 40))):
        with pytest.raises(ValueError, match="is one image; give a list of them"):
            small().embed(one, progress=False)
    with pytest.raises(ValueError, match=r"got a Catalog; give a PixelStore of it, or \[catalog.path\(row\)"):
        small().embed(photos, progress=False)


@pytest.mark.parametrize(
    "settings", [{}, {"head": "multilevel", "pooling": "gem"}, {"freeze_batch_norm": True}]
)
def test_saved_and_loaded_it_is_the_same(tmp_path, settings):
    model = small(**settings).train()
    model(torch.randn(4, 3, 32, 32))  # moves the running statistics, if they may
    again = Embedder.load(model.save(tmp_path / "model"))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), model.eval()(images))
    assert again.settings == model.settings
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_a_folder_without_a_model_is_told_for_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such folder$"):
        Embedder.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json and model\.safetensors are missing$"):
        Embedder.load(tmp_path)
    small().save(tmp_path / "fold-0" / "best")
    with pytest.raises(FileNotFoundError, match=r"folds of a run; name one, such as .*fold-0$") as caught:
        Embedder.load(tmp_path)
    assert Embedder.load(str(caught.value).split("such as ")[1]).dim == 8


def test_a_broken_model_folder_is_one_line(tmp_path):
    folder = small().save(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged, or not a safetensors file") as caught:
        Embedder.load(folder)
    assert "\n" not in str(caught.value)
    (folder / "config.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(ValueError, match="not a firstpage model"):
        Embedder.load(folder)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"head": "cubic"}, "head='cubic'"),
        ({"dim": 0}, "dim=0"),
        ({"crop": 99}, "crop=99"),
        ({"backbone": "resnet52"}, "did you mean 'resnet50'"),
        ({"pooling": "cls+avg"}, "pooling='cls\\+avg'"),
    ],
)
def test_wrong_settings_are_named(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        small(**settings)


@pytest.fixture(
    scope="module",
    params=[
        {"head": "attention", "learners": (4, 4)},
        {"head": "pca", "stages": 3, "layer_norm": True, "pooling": "avg+max"},
    ],
    ids=["attention", "stages"],
)
def exported(request, tmp_path_factory):
    """An ensemble of what is hard to export: masks, several stages; its session; what the command said."""
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    members = [small(**request.param, standardize=True) for _ in range(2)]
    model, said = combine(members), io.StringIO()
    command = ["export", str(model.save(folder / "model")), str(folder / "model.onnx")]
    with redirect_stdout(said), pytest.raises(SystemExit) as end:
        cli.main(command)
    lines = said.getvalue().splitlines()
    assert (end.value.code, lines[0]) == (0, f"wrote {folder / 'model.onnx'}")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return model, session, lines


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_says_how_to_serve_it(exported, photos):
    """By what is in the file alone a photo gets the vector that `embed` gives it."""
    model, session, said = exported
    assert said[1].startswith(
        "input: RGB, shorter side scaled to 40, central 32 × 32, values 0 to 1, minus mean 0.485,"
    )
    about = session.get_modelmeta()
    assert about.description == said[1]
    known = {key: json.loads(value) for key, value in about.custom_metadata_map.items()}
    assert known["resize"] == "shorter"
    photo, crop = Image.open(photos.path(0)), known["crop"]
    size = [round(side * known["stored"] / min(photo.size)) for side in photo.size]
    left, top = (round((side - crop) / 2) for side in size)
    scaled = np.asarray(photo.resize(size, Image.Resampling.BILINEAR), np.float32)
    center = scaled[top : top + crop, left : left + crop] / 255
    image = ((center - known["mean"]) / known["std"]).transpose(2, 0, 1)[None].astype(np.float32)
    found = torch.from_numpy(session.run(None, {"images": image})[0])
    assert found.shape == (1, known["dim"])
    torch.testing.assert_close(found, model.embed([photos.path(0)], progress=False), rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_onnx_gives_the_same_vectors_for_any_batch(exported):
    model, session, _ = exported
    for count in (1, 5):
        images = torch.randn(count, 3, 32, 32)
        found = session.run(None, {"images": images.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), model(images).detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("crop", "images"), [(32, 256), (224, 10), (320, 5), (1024, 4), ([112, 96], 48)])
def test_large_images_are_embedded_in_small_batches_on_a_cpu(crop, images, monkeypatch):
    model, sizes = Embedder.create(backbone="small", dim=4, stored=crop, crop=crop, resize="squash"), []
    monkeypatch.setattr(model, "_pixels", lambda given, rows, size: sizes.append(size) or [])
    model.embed([Image.new("RGB", (8, 8))], progress=False)
    model.embed([Image.new("RGB", (8, 8))], progress=False, batch_size=7)
    assert sizes == [images, 7]
