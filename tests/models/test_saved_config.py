"""A saved config that somebody wrote by hand, cut or spoiled: it loads, or is refused in one line."""

import copy
import json
import random

import pytest
import torch

from firstpage.errors import UserError
from firstpage.models import Embedder, weights

NUMBERS = [True, False, 0, -1, 1, 3, 10**4, 10**7, 10**18, 10**400, 0.5, float("nan"), float("inf")]
TEXTS = ["", "small", "resnet18", "vit_small_14", "timm:resnet18", "json:JSONDecoder", "no.such:Module"]
TEXTS += ["two\nlines\x1b[31m", "\ud800", "x" * 10_000]
TABLES = [{}, {"a": 1}, {"size": 28}, {"size": 10**18}, {"size": "28"}, {"weights": "imagenet"}]
TABLES += [{"checkpointing": True}, {"name": "x"}, {"pretrained": True}, {"two\nlines": [1]}]
VALUES = [None, [], [1, 2], *NUMBERS, *TEXTS, *TABLES]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return Embedder.create(backbone="small", dim=4, stored=40).save(tmp_path_factory.mktemp("saved"))


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("fetched")

    monkeypatch.setattr(weights, "fetch", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def mutated(config, draw):
    """The text of `config` with one to three things changed, or spoiled as a text."""
    config = copy.deepcopy(config)
    for _ in range(draw.randint(1, 3)):
        table = draw.choice([config, config["model"], config["model"], config["model"]])
        if not isinstance(table, dict):
            break
        key = draw.choice([*table, "novelty", "two\nlines"])
        action = draw.choice(["replace", "replace", "replace", "delete", "rename", "nest"])
        if action == "replace":
            table[key] = copy.deepcopy(draw.choice(VALUES))
        elif action == "delete":
            table.pop(key, None)
        elif action == "rename":
            table[key[:-1] + draw.choice("xyz\n")] = table.pop(key, 1)
        else:
            for _ in range(draw.choice([1, 50, 300])):
                table[key] = draw.choice([[table.get(key)], {key: table.get(key)}])
        if not isinstance(config.get("model"), dict):
            break
    text = json.dumps(config)
    if draw.random() < 0.2:
        begin = draw.randrange(len(text))
        text = (
            text[:begin] + draw.choice(["", "}", "[", "\x00", '"', text]) + text[begin + draw.randrange(5) :]
        )
    return text


def refusal(folder):
    """The message that refuses a model, or None if it loads and works."""
    try:
        model = Embedder.load(folder)
    except (UserError, FileNotFoundError) as error:
        return str(error)
    assert model.settings.weights is None
    if model.settings.crop < 100:
        assert model(torch.randn(1, 3, model.settings.crop, model.settings.crop)).isfinite().all()
    return None


@pytest.mark.parametrize("part", range(4))
def test_seeded_mutations(saved, tmp_path, part):
    config = json.loads((saved / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    loaded = 0
    for seed in range(60 * part, 60 * (part + 1)):
        text = mutated(config, random.Random(seed))
        (tmp_path / "config.json").write_bytes(text.encode(errors="surrogatepass"))
        message = refusal(tmp_path)
        if message is None:
            loaded += 1
            continue
        assert message.isprintable()
        assert str(tmp_path) in message
        assert len(message) < 600
    assert 0 < loaded < 60


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty: restore it from a copy"),
        ("{", "is not valid JSON (Expecting property name"),
        ('{"firstpage": 1, "firstpage": 1, "model": {}}', "key 'firstpage' is given twice"),
        ('{"firstpage": 1, "model": {"dim": 1e999}}', "holds inf, which is not a finite number"),
        ('{"firstpage": 1, "model": {"dim": 1' + "0" * 30 + "}}", "does not fit into 64 bits"),
        ('{"firstpage": 1, "model": {"dim": 1' + "0" * 5000 + "}}", "is not valid JSON (Exceeds the limit"),
        (
            '{"firstpage": 1, "model": {"options": ' + "[" * 40 + "]" * 40 + "}}",
            "nested deeper than 32 levels",
        ),
        ('{"firstpage": 1, "model": {"two\\nlines": 1}}', "key 'two\\nlines' is too long, or not printable"),
        (" " * 2**24 + "{}", "more than 16,777,216"),
        ('{"firstpage": 1, "model": {"crop": 31.5}}', "model.crop=31.5: must be a whole number"),
        ("[]", "not a firstpage model of version 1"),
        ('{"firstpage": 2, "model": {}}', "not a firstpage model of version 1"),
        ("[" * 100_000, "is nested deeper than 32 levels"),
        ('{"firstpage": 1}', "must hold the version `firstpage`, the table `model`, and nothing else"),
        ('{"firstpage": 1, "model": []}', "must hold the version `firstpage`, the table `model`"),
        ('{"firstpage": 1, "model": {}, "extra": 1}', "and nothing else"),
        ('{"firstpage": 1, "model": {"dims": 4}}', "model.dims: no such setting; did you mean 'model.dim'?"),
        ('{"firstpage": 1, "model": {"dim": "4"}}', "model.dim='4': must be a whole number"),
        ('{"firstpage": 1, "model": {"dim": true}}', "model.dim=True: must be a whole number"),
        ('{"firstpage": 1, "model": {"dim": 100000000000}}', "model.dim=100000000000: must be in 1..65536"),
        ('{"firstpage": 1, "model": {"stored": 0}}', "model.stored=0: must be in 1..8192"),
        ('{"firstpage": 1, "model": {"resize": "up"}}', "resize='up': must be one of shorter, squash, pad"),
        ('{"firstpage": 1, "model": {"head": ["linear"]}}', "model.head=['linear']: must be a string"),
        (
            '{"firstpage": 1, "model": {"options": {"weights": "imagenet"}}}',
            "model.options: 'weights' is not an option of a backbone",
        ),
        (
            '{"firstpage": 1, "model": {"backbone": "timm:resnet18", "options": {"checkpoint_path": "x"}}}',
            "option 'checkpoint_path' is not allowed",
        ),
        (
            '{"firstpage": 1, "model": {"backbone": "vit_small_14", "options": {"size": "28"}}}',
            "size='28': must be a multiple of 14, such as 224",
        ),
        (
            '{"firstpage": 1, "model": {"backbone": "vit_small_14", "options": {"size": 140000000000}}}',
            "must be a multiple of 14, such as 3584, and at most 3584",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_file(saved, tmp_path, text, complaint):
    (tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        Embedder.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert complaint in str(caught.value)
    assert str(caught.value).isprintable()


def test_settings_that_do_not_fit_the_tensors_say_which(saved, tmp_path):
    config = json.loads((saved / "config.json").read_text())
    config["model"]["dim"] = 5
    (tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"does not fit config\.json: .*size mismatch for heads\.0\.1\.weight"
    ):
        Embedder.load(tmp_path)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (
            {"backbone": "firstpage.models.backbones.vit:VisionTransformer", "options": {"depth": 10**9}},
            "has many more layers than model.safetensors has tensors",
        ),
        (
            {"backbone": "firstpage.models.backbones.vit:VisionTransformer", "options": {"width": 6 * 10**6}},
            "does not fit config.json",
        ),
        ({"backbone": "resnet18", "dim": 65_536, "head": "multilevel"}, "does not fit config.json"),
    ],
)
def test_absurd_sizes_take_neither_memory_nor_time(saved, tmp_path, monkeypatch, model, complaint):
    def refuse(*arguments, **options):
        raise AssertionError("took memory")

    (tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"firstpage": 1, "model": model}))
    monkeypatch.setattr(Embedder, "to", refuse)
    with pytest.raises(UserError, match=complaint):
        Embedder.load(tmp_path)


@pytest.mark.parametrize("value", ["imagenet", "nowhere.pth", ["imagenet"], 3])
def test_weights_in_a_saved_config_are_ignored(saved, tmp_path, value):
    config = json.loads((saved / "config.json").read_text())
    config["model"]["weights"] = value
    (tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Embedder.load(tmp_path).settings == Embedder.load(saved).settings
