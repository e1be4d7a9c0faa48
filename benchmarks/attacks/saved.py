"""What firstpage saved and a stranger changed: configs, models, checkpoints, embeddings, pixel stores."""

import io
import json
import os
import pickle
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from attacks import ESCAPE, Fault, Place, mutate, restructure
from firstpage.data import Catalog, PixelStore, read
from firstpage.figures import read_embeddings
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.runs import open_run
from firstpage.runs.checkpoint import read_state, write_state
from firstpage.runs.embedding_file import embed_to_file
from firstpage.runs.record import Record

DEEP = "[" * 10**5
SETTINGS: list[dict[str, Any]] = [  # of a model, each wrong
    {"crop": 31.5},
    {"unknown": 1},
    {"dim": "16"},
    {"dim": 10**12},
    {"stored": 10**9},
    {"stored": 10**6, "crop": 10**6},
    {"backbone": ["small"]},
    {"backbone": ESCAPE},
    {"options": {"size": 10**9}},
    {"weights": "imagenet"},
    {"weights": "http://203.0.113.1/weights.pth"},
]
TEXTS: list[tuple[str, str]] = [
    *(
        (name, text)
        for name in ("config.json", "run.json", "recipe.toml")
        for text in ("", "\0", DEEP, "null", "[]")
    ),
    *((name, '{"model":' * 10**5) for name in ("config.json", "run.json", "log.jsonl")),
    ("config.json", '{"firstpage": 1}'),
    ("config.json", '{"firstpage": 1, "model": null}'),
    ("run.json", '{"data": null, "result": 7}'),
    ("run.json", '{"data": {"root": 7, "train_classes": 3}, "result": {"test": 1}}'),
    ("log.jsonl", DEEP),
    ("log.jsonl", '{"step": 1e400, "P@1": 1}\n{"step": 3, "P@1": "x"}\n{"step": 10e307, "P@1": null}'),
    ("recipe.toml", "a=" + DEEP),
]
CONFIGS = [*(("config.json", settings) for settings in SETTINGS), *TEXTS]


def copy_run(place: Place) -> Path:
    """Return a run folder of its own whose model is that of the sound one."""
    run = place.folder / "run"
    shutil.copytree(place.base / "run", run, ignore=shutil.ignore_patterns("events", "last", ".lock"))
    return run


def configs(place: Place) -> None:
    """Attack the readers of the small files of a run: refused, or of use."""
    lots, run, crafted = place.lots, copy_run(place), place.crafted(CONFIGS)
    name = crafted[0] if crafted else lots.choice(("config.json", "run.json", "log.jsonl", "recipe.toml"))
    path = run / "best" / name if name == "config.json" else run / name
    sound = path.read_text()
    if crafted and isinstance(crafted[1], dict):
        config = json.loads(sound)
        path.write_text(json.dumps(config | {"model": config["model"] | crafted[1]}))
    elif crafted:
        path.write_text(str(crafted[1]))
    elif lots.random() < 0.4:
        path.write_bytes(mutate(lots, sound.encode()))
    else:
        path.write_text(_restructured(place, name, sound))
    if name == "config.json":
        model = None
        with place.refusable():
            model = Embedder.load(run)
        if model is not None:  # what loads must work, too
            model.embed([Image.new("RGB", (40, 40))], progress=False)
    else:
        _read_run(place, run, empty=not path.read_bytes().strip() and name != "log.jsonl")
    if place.sampled or (crafted and place.index % 4 == 0):
        out = f"--out={place.folder / 'out'}"
        place.command("figures", "training", run, f"{out}.png")
        place.command("evaluate", run, "--no-clustering", "--device=cpu")


def _restructured(place: Place, name: str, sound: str) -> str:
    """Return the text of a file with one part of it changed."""
    if name.endswith("json"):
        return json.dumps(restructure(place.lots, json.loads(sound)))
    if name.endswith("jsonl"):
        lines = [json.loads(line) for line in sound.splitlines()]
        changed = restructure(place.lots, lines)
        return "\n".join(map(json.dumps, changed if isinstance(changed, list) else [changed]))
    try:
        return tomli_w.dumps(restructure(place.lots, tomllib.loads(sound)))
    except (TypeError, AttributeError):  # TOML has no null, and is a table
        return mutate(place.lots, sound.encode()).decode(errors="replace")


def _read_run(place: Place, run: Path, empty: bool) -> None:
    record = None
    with place.refusable():
        Recipe.read(run / "recipe.toml").toml()
    with place.refusable():
        record = Record.read(run)
        record.logged_series(), record.result, record.evaluations
        record.metric_curve("P@1"), record.final_metric("P@1")
    if record is not None and empty:
        raise Fault("an empty file is read as if it were sound")
    with place.refusable():
        opened = open_run(run, device="cpu", progress=False)
        assert opened.model is not None


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def models(place: Place) -> None:
    """Attack the readers of tensors: no pickle runs, no damaged checkpoint is read, no NaN written."""
    lots, turn = place.lots, place.index % 4
    if turn == 0:
        _pickles(place)
    elif turn == 1:
        path, state = (
            place.folder / "state",
            {"weights": {3: torch.arange(9.0)}, "step": 3, "rates": (0.1, None)},
        )
        write_state(path, state)
        path.write_bytes(mutate(lots, path.read_bytes()))
        found = None
        with place.refusable():
            found = read_state(path)
        if found is not None and repr(found) != repr(state):
            raise Fault("a damaged checkpoint is read as if it were sound")
    else:
        run, target = copy_run(place), place.folder / "x.npz"
        path = run / "best" / "model.safetensors"
        if place.index == 2:
            tensors = {
                name: value * float("nan")
                for name, value in load_file(path).items()
                if value.is_floating_point()
            }
            save_file(load_file(path) | tensors, path)
        else:
            path.write_bytes(mutate(lots, path.read_bytes()))
        with place.refusable():
            embed_to_file(
                run, catalog(place), target, device="cpu", cache=place.base / "stores", progress=False
            )
        if place.sampled or place.index == 2:
            place.command("embed", run, place.base / "pictures", target, "--device=cpu")
        if target.exists() and not np.isfinite(np.load(target)["embeddings"]).all():
            raise Fault("vectors of NaN are written with exit code 0")


def _pickles(place: Place) -> None:
    run, marker = copy_run(place), place.folder / "marker"
    payload, buffer = pickle.dumps(Payload(marker), place.lots.randrange(5)), io.BytesIO()
    torch.save({"weight": Payload(marker)}, buffer)
    content = place.lots.choice((payload, buffer.getvalue()))
    for name in ("best/model.safetensors", "x.npz", "weights.pth", "step"):
        (run / name).write_bytes(content)
    if place.lots.random() < 0.5:
        objects = np.array([Payload(marker)], object)
        np.savez(run / "x.npz", embeddings=objects, labels=objects, paths=objects)
    for attack in (
        lambda: Embedder.load(run),
        lambda: read_embeddings(run / "x.npz"),
        lambda: read_state(run / "step"),
        lambda: Embedder.create(backbone="small", weights=str(run / "weights.pth")),
    ):
        with place.refusable():
            attack()
    if marker.exists():
        raise Fault("a pickle has run")


ARRAYS: list[dict[str, Any]] = [  # in place of those that `embed` writes
    {"embeddings": np.zeros(3, np.float32)},
    {"embeddings": np.zeros((3, 4, 5), np.float32)},
    {"embeddings": np.zeros((3, 4), np.float32)},
    {"embeddings": np.zeros((0, 0), np.float32)},
    {"embeddings": np.array([["a", "b"]])},
    {"embeddings": np.zeros((160, 16), complex)},
    {"embeddings": np.array([None] * 160)},
    {"labels": np.array(["x"] * 160)},
    {"labels": np.full(160, np.nan)},
    {"labels": np.zeros((160, 2), int)},
    {"labels": np.float64(3)},
    {"paths": np.zeros(7)},
    {"paths": np.array(3)},
]


def npz(place: Place) -> None:
    """Attack the reader of embeddings: refused, or arrays that fit one another."""
    sound, crafted, path = place.base / "x.npz", place.crafted(ARRAYS), place.folder / "x.npz"
    if crafted:
        np.savez(path, **dict(np.load(sound)) | crafted)
    else:
        path.write_bytes(mutate(place.lots, sound.read_bytes()))
    with place.refusable():
        found = read_embeddings(path)
        vectors, labels = found.embeddings, found.labels
        if vectors.ndim != 2 or not vectors.is_floating_point() or labels.shape != (len(vectors),):
            raise Fault(f"embeddings {tuple(vectors.shape)} and labels {tuple(labels.shape)} are accepted")
    if place.sampled or crafted:
        place.command("figures", "roc", path, f"--out={place.folder / 'roc.png'}")


@cache
def _truth(folder: Path) -> np.ndarray:
    pixels = np.fromfile(next(folder.glob("*/pixels.bin")), np.uint8)
    return pixels.reshape(-1, 36, 54, 3)


def catalog(place: Place) -> Catalog:
    """Return the sound images of the samples."""
    return read(place.base / "few")


def stores(place: Place) -> None:
    """Damage a pixel store: it is refused or built again, and never has other pixels."""
    lots, folder = place.lots, place.folder / "stores"
    shutil.copytree(place.base / "stores", folder, ignore=shutil.ignore_patterns("*.lock"))
    (store,) = (path.parent for path in folder.glob("*/store.json"))
    path = lots.choice([*sorted(store.iterdir()), *[store / "pixels.bin"] * 4])
    data = bytearray(path.read_bytes())
    start = lots.randrange(len(data))
    times = os.stat(path)
    if (change := lots.randrange(7)) == 0:
        path.write_bytes(b"")
    elif change == 1:
        path.write_bytes(data[:start])
    elif change == 2:
        path.write_bytes(data[:start] + bytes(len(data) - start))
    elif change == 3:
        data[start] ^= 1 << lots.randrange(8)
        path.write_bytes(data)
    elif change == 4:
        path.unlink()
    elif change == 5:
        path.write_bytes(pickle.dumps(Payload(place.folder / "marker")))
    else:
        path.write_bytes(mutate(lots, bytes(data)))
    if path.exists():
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    truth = _truth(place.base / "stores")
    for build in (False, True):
        opened = None
        with place.refusable():
            opened = (
                PixelStore.build(catalog(place), folder, size=36, workers=0, progress=False)
                if build
                else PixelStore(store)
            )
            pixels = opened.batch(np.arange(len(truth))[opened.ok]).pixels.numpy()
        if opened is not None and not (opened.ok.all() and np.array_equal(pixels, truth)):
            how = "PixelStore.build" if build else "PixelStore"
            raise Fault(
                f"{path.name}, change {change} at {start} of {len(data)}: {how} has other pixels in silence"
            )
    if (place.folder / "marker").exists():
        raise Fault("a pickle has run")
