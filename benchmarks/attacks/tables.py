"""Tables and folders of a stranger."""

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from attacks import ESCAPE, Fault, Place, mutate, restructure
from firstpage.data import read
from firstpage.data.near_duplicates import link_near_duplicates

LISTS = {  # the file that is attacked, of a sound dataset
    "pairs.txt": {
        "pairs.txt": "1\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\n",
        "Ann/Ann_0001.jpg": "",
        "Bob/Bob_0001.jpg": "",
    },
    "images.txt": {"images.txt": "1 001.Auk/a.jpg\n2 002.Emu/b.jpg\n"},
    "image_class_labels.txt": {"image_class_labels.txt": "1 1\n2 2\n"},
    "classes.txt": {"classes.txt": "1 001.Auk\n2 002.Emu\n"},
    "bounding_boxes.txt": {"bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1 1 9 9\n"},
    "Ebay_train.txt": {
        "Ebay_train.txt": "image_id class_id super_class_id path\n1 1 1 a/1.jpg\n",
        "Ebay_test.txt": "image_id class_id super_class_id path\n1 2 1 a/2.jpg\n",
    },
    "list_eval_partition.txt": {
        "list_eval_partition.txt": "2\nimage_name item_id status\na/1.jpg id_1 train\na/2.jpg id_2 query\n"
    },
    "glyphs.json": {"glyphs.json": json.dumps({"version": 1, "images": 8, "seed": 0})},
}
CUB = {name: LISTS[name][name] for name in list(LISTS)[1:5]}
CSV = b"path,label,split,box\n1.jpg,wren,train,0 0 20 10\n2.jpg,auk,test,\n3.jpg,emu,test,1 2 3 4\n"


def parquet(**columns: object) -> bytes:
    """Return a parquet file of these columns."""
    buffer = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def doubled() -> bytes:
    """Return a parquet file with two columns of one name."""
    buffer, column = io.BytesIO(), pa.array(["1.jpg"])
    pa.parquet.write_table(pa.Table.from_arrays([column] * 3, ["path", "label", "label"]), buffer)
    return buffer.getvalue()


# Its name, its content or what makes it, and whether it must be refused.
CRAFTED: list[tuple[str, bytes | Callable[[Path], object], bool]] = [
    ("nan.parquet", parquet(path=["1.jpg", "2.jpg"], label=[1.0, float("nan")]), True),
    ("none.parquet", parquet(path=["1.jpg", None], label=["a", "b"]), True),
    ("twice.csv", b"path,label,label\n1.jpg,wren,auk\n", True),
    ("twice.parquet", doubled(), True),
    ("columns.csv", (",".join(f"column{i}" for i in range(10**5)) + "\n" + "," * 99_999).encode(), True),
    ("escapes.csv", f"path,{ESCAPE},label2\n1.jpg,wren,auk\n".encode(), True),
    ("classes.csv", f"path,label,split\n1.jpg,{ESCAPE},{ESCAPE}\n{ESCAPE}.jpg,auk,train\n".encode(), False),
    ("nul.csv", b"path,label\n1\0.jpg,wr\0en\n", False),
    ("binary.csv", bytes(range(256)) * 40, True),
    ("quote.csv", b'path,label\n"1.jpg,' + b"x" * 200_000, True),
    ("empty.csv", b"", True),
    (
        "splits.csv",
        b"path,label,split\n" + b"".join(b"%d.jpg,a,s%d\n" % (i, i) for i in range(60_000)),
        False,
    ),
    ("huge.csv", b"path,label,box\n1.jpg,a,1e999 0 2e999 1\n", False),
    ("fifo.csv", os.mkfifo, True),
    ("zero.csv", lambda path: os.symlink("/dev/zero", path), True),
    ("fifo.parquet", os.mkfifo, True),
    ("zero.parquet", lambda path: os.symlink("/dev/zero", path), True),
    *((name, make, True) for name in ("pairs.txt", "glyphs.json", "images.txt") for make in (os.mkfifo,)),
    *((name, lambda path: os.symlink("/dev/zero", path), True) for name in ("pairs.txt", "glyphs.json")),
    *(
        (name, content, True)
        for name in LISTS
        for content in (b"", b"\0" * 99, ESCAPE.encode(), b"[" * 10**5)
    ),
]


def tables(place: Place) -> None:
    """Attack the readers with one table."""
    crafted, lots = place.crafted(CRAFTED), place.lots
    if place.index == 1:
        near_equal_hashes()
    if crafted:
        name, content, refused = crafted
    else:
        sound = {
            "t.csv": CSV,
            "t.parquet": parquet(path=["1.jpg", "2.jpg"], label=["a", "b"], box=[[0, 0, 1, 1]] * 2),
        }
        sound |= {name: files[name].encode() for name, files in LISTS.items()}
        name, refused = lots.choice([*sound] + ["t.csv", "t.parquet"] * 3), False
        content = mutate(lots, sound[name])
        if name == "glyphs.json" and lots.random() < 0.5:
            content = json.dumps(restructure(lots, json.loads(sound[name]))).encode()
    for other, text in (LISTS.get(name, {}) | (CUB if name in CUB else {})).items():
        (place.folder / other).parent.mkdir(exist_ok=True)
        (place.folder / other).write_text(text)
    path = place.folder / name
    path.unlink(missing_ok=True)
    content(path) if callable(content) else path.write_bytes(content)
    subject, accepted = place.folder if name in LISTS else path, False
    with place.refusable():
        read(subject)
        accepted = True
    if accepted and refused:
        raise Fault(f"{name} is accepted in silence")
    if place.sampled or crafted:
        place.command("data", "check", subject)


def near_equal_hashes() -> None:
    """Look for near duplicates among 8,000 hashes that are almost one."""
    lots = np.random.default_rng(0)
    hashes = np.bitwise_xor(
        np.uint64(2**63 + 5), np.uint64(1) << lots.integers(0, 64, 8000).astype(np.uint64)
    )
    link_near_duplicates(hashes, lots.integers(0, 256, (8000, 192), dtype=np.uint8))


def folders(place: Place) -> None:
    """Attack the check and the embedding of a folder with odd names, links, loops and what is no file."""
    lots, root = place.lots, place.folder / "data"
    sound = sorted((place.base / "pictures").rglob("*.png"))
    odd = [
        ESCAPE,
        "two\nlines",
        "tab\there",
        "-rf",
        " ",
        "x" * 250,
        "\u202egpj.exe",
        "a\rb",
        "train",
        "\x9b2J",
        "CON",
        "~",
    ]
    odd += [
        os.fsdecode(b"\xff\xfe"),
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "%s%n",
        "{}",
    ]
    for _ in range(lots.randint(2, 6)):
        folder = root / lots.choice(odd)
        folder = folder / lots.choice(odd) if lots.random() < 0.3 else folder
        with suppress(FileExistsError, NotADirectoryError):  # a file has that name
            folder.mkdir(parents=True, exist_ok=True)
        for _ in range(lots.randint(0, 3) if folder.is_dir() else 0):
            name = f"{lots.choice(odd)[:200]}{lots.choice(('.png', '.JPG', '.heic', '.txt', ''))}"
            (folder / name).write_bytes(mutate(lots, lots.choice(sound).read_bytes()))
    what = lots.choice(("loop", "parent", "fifo", "device", "closed", "deep", "dangling", "json"))
    if what == "deep":
        (root / "/".join(["d"] * 300)).mkdir(parents=True)
    elif what == "fifo":
        os.mkfifo(root / lots.choice(("pairs.txt", "glyphs.json", "images.txt", "x.csv", "x.jpg")))
    elif what == "closed":
        (root / "closed").mkdir(mode=0)
    elif what == "json":
        (root / "glyphs.json").write_text(ESCAPE)
    else:
        links = {"loop": "link", "parent": "..", "device": "/dev/zero", "dangling": "nowhere"}
        (root / lots.choice(("link", "link.jpg"))).symlink_to(links[what])
    place.command("data", "check", root, *(["--json"] if lots.random() < 0.3 else []))
    if lots.random() < 0.3:
        place.command("embed", place.base / "run", root, place.folder / "x.npz", "--device=cpu")
