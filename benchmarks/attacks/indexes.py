"""An index that is changed while its process is killed or its disk is full, and one that is damaged."""

import os
import shutil
import time
import warnings
from functools import partial
from pathlib import Path

from attacks import Fault, Place, forked
from firstpage import cli
from firstpage.search import Index
from firstpage.search.index_folder import find_damage, read_manifest

LONG = 90.0  # seconds that a sound command may take on a busy machine
ESTIMATES: dict[str, float] = {}  # seconds of each change, as measured


def prepare(base: Path) -> None:
    """Build an index of few images and one of all, both with a file of FAISS."""
    os.environ["FIRSTPAGE_CACHE"] = str(base / "cache")
    for images in ("few", "pictures"):
        build = ["index", "build", f"{base}/run", f"{base}/{images}", f"--out={base}/index-{images}"]
        forked(partial(cli.main, [*build, "--engine=hnsw", "--device=cpu"]), codes=(0,), limit=LONG)


def change(place: Place) -> tuple[str, Path, list[object]]:
    """Return the name of a change, the index that it changes, a copy, and its command."""
    base, name = place.base, ("add", "remove", "update")[place.index % 3]
    index = place.folder / "index"
    shutil.copytree(base / ("index-few" if name == "add" else "index-pictures"), index)
    if name == "remove":
        return name, index, [f"--id={id}" for id in place.lots.sample(range(160), place.lots.randint(1, 150))]
    return name, index, [base / ("pictures" if name == "add" else "few")]


def content(index: Index) -> set[tuple[object, ...]]:
    """Return which images an index has."""
    return {(row["path"], row["bytes"], row["mtime"], row["label"]) for row in index.rows()}


def look(folder: Path) -> set[tuple[object, ...]]:
    """Open an index and return which images it has; it must be sound, and its engine must answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = Index.open(folder)
        if damage := index.verify():
            raise Fault(f"damaged: {damage[:3]}")
        ids = index.ids[:: max(1, len(index) // 5)].tolist()
        for id, line in zip(ids, index.search(ids=ids, k=3), strict=True):
            if len(line) != min(3, len(index) - 1) or id in {match.id for match in line}:
                raise Fault(f"id {id}: finds {line}")
    return content(index)


def kills(place: Place) -> None:
    """Kill a change at a random moment: the index is the old one or the new one, and can be changed again."""
    lots = place.lots
    name, folder, arguments = change(place)
    os.environ["FIRSTPAGE_CACHE"] = str(place.base / "cache")
    saved, old = place.folder / "saved", content(Index.open(folder))
    shutil.copytree(folder, saved)

    def call() -> None:
        cli.main(["index", name, str(folder), *map(str, arguments)])

    place.beat(LONG)
    forked(call, codes=(0,), limit=LONG)
    new = look(folder)
    for attempt in range(8):  # it may be done before
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        begin, delay = time.monotonic(), lots.uniform(0, ESTIMATES.get(name, 1.0))
        changes, seen = lots.randint(1, 12), [listing(folder)]

        def writing(seconds: float) -> bool:
            if (now := listing(folder)) != seen[-1]:  # noqa: B023
                seen.append(now)  # noqa: B023
            return len(seen) > changes  # noqa: B023

        timed = attempt > 0 or lots.random() < 0.3
        place.beat(LONG)
        code, _ = forked(call, codes=(0,), limit=LONG, stop=(lambda s: s >= delay) if timed else writing)  # noqa: B023
        if look(folder) not in (old, new):
            raise Fault(f"{name}: neither the old index nor the new one")
        if code is None:
            break
        ESTIMATES[name] = time.monotonic() - begin
    if look(folder) == old:
        place.beat(LONG)
        forked(call, codes=(0,), limit=LONG)
        if look(folder) != new:
            raise Fault(f"{name}: again, it is not the new index")
        tidy(folder, name)


def listing(folder: Path) -> list[str]:
    """Return the names of all files."""
    return sorted(str(path) for path in folder.rglob("*"))


def tidy(folder: Path, name: str) -> None:
    """Look for files that belong to nothing."""
    manifest = read_manifest(folder)
    named = {f"segments/{part.name}/{file}" for part in manifest.segments for file in part.files}
    named |= {"index.json", manifest.neighbors.name, *(f"model/{file}" for file in manifest.model_files)}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    if litter := [file for file in found - named if not file.endswith(".lock")]:
        raise Fault(f"{name}: litter is left: {litter[:3]}")


def damage(place: Place) -> None:
    """Flip one bit, or cut a file, of an index: verify names it, and no search uses it in silence."""
    _, folder, _ = change(place)
    index = Index.open(folder)
    [right] = [[match.path for match in line] for line in index.search(ids=[int(index.ids[0])], k=10)]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    path = files[place.index // 3 % len(files)]
    data = bytearray(path.read_bytes())
    at = place.lots.randrange(len(data))
    data[at] ^= 1 << place.lots.randrange(8)
    path.write_bytes(data if place.lots.random() < 0.8 else data[:at])
    with place.refusable():
        if not find_damage(folder, read_manifest(folder)):
            raise Fault(f"{path.name}: byte {at} changed, and verify does not find it")
    if path.suffix in (".faiss", ".json"):
        with place.refusable():
            again = Index.open(folder).search(ids=[int(index.ids[0])], k=10)
            if [match.path for match in again[0]] != right:
                raise Fault(f"{path.name}: byte {at} changed, and other images are found")


def full_disk(place: Place) -> None:
    """Let no file grow beyond a few bytes during a change: the old index stays, and with space it works."""
    name, folder, arguments = change(place)
    os.environ["FIRSTPAGE_CACHE"] = str(place.base / "cache")
    old = content(Index.open(folder))

    def call() -> None:
        cli.main(["index", name, str(folder), *map(str, arguments)])

    place.beat(LONG)
    code, output = forked(call, limit=LONG, file_limit=place.lots.randrange(30_000))
    if code and look(folder) != old:
        raise Fault(f"{name}: the index is not the old one: {output[-200:]}")
    place.beat(LONG)
    forked(call, codes=(0, 2) if code == 0 else (0,), limit=LONG)
    look(folder)
    tidy(folder, name)
