"""Download: get a dataset from its publisher, or say where he gives it out."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from firstpage.errors import UserError

_ATTEMPTS = 5  # in a row without a single new byte, before a download is given up
_PAUSE = 1.0  # seconds before another attempt
_TIMEOUT = 60.0


@dataclass(frozen=True)
class _File:
    url: str
    name: str
    size: int | None  # as published, or None
    sha256: str | None


@dataclass(frozen=True)
class _Source:
    page: str
    layout: str
    files: tuple[_File, ...] = ()
    makes: str = ""  # what the files make in the folder: there when, and only when, all is done


# Sizes and checksums: CUB, Online Products and LFW from url_checksums/ of tensorflow/datasets, pairs.txt from
# sklearn/datasets/_lfw.py of scikit-learn. LFW's own server is gone: these are scikit-learn's copies, of the
# same checksum. Stanford's page of Cars is gone as well (pytorch/vision issue 7545).
_SOURCES = {
    "cub": _Source(
        page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        layout="CUB_200_2011/images.txt, image_class_labels.txt, classes.txt, bounding_boxes.txt, images/",
        files=(
            _File(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "CUB_200_2011.tgz",
                1_150_585_339,
                "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
            ),
        ),
        makes="CUB_200_2011",
    ),
    "sop": _Source(
        page="https://cvgl.stanford.edu/projects/lifted_struct/",
        layout="Stanford_Online_Products/Ebay_train.txt, Ebay_test.txt, bicycle_final/, ...",
        files=(
            _File(
                "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                "Stanford_Online_Products.zip",
                3_083_860_082,
                "b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
            ),
        ),
        makes="Stanford_Online_Products",
    ),
    "lfw": _Source(
        page="http://vis-www.cs.umass.edu/lfw/",
        layout="pairs.txt, lfw/Abel_Pacheco/Abel_Pacheco_0001.jpg, ...",
        files=(
            _File(
                "https://ndownloader.figshare.com/files/5976006",
                "pairs.txt",
                None,
                "ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592",
            ),
            _File(
                "https://ndownloader.figshare.com/files/5976018",
                "lfw.tgz",
                180_566_744,
                "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
            ),
        ),
        makes="lfw",
    ),
    "cars": _Source(
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        layout="cars_annos.mat, car_ims/000001.jpg; or devkit/, cars_train/, cars_test/; or class folders",
    ),
    "inshop": _Source(
        page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        layout="Eval/list_eval_partition.txt, Img/img/WOMEN/... (img.zip, opened)",
    ),
    "hotels50k": _Source(
        page="https://github.com/GWUvision/Hotels-50K",
        layout="input/dataset/train_set.csv, test_set.csv, hotel_info.csv, chain_info.csv, "
        "images/train/, images/test/unoccluded/",
    ),
    "casia": _Source(
        page="http://www.cbsr.ia.ac.cn/english/CASIA-WebFace-Database.html",
        layout="CASIA-WebFace/0000045/001.jpg, ...: a folder an identity",
    ),
}


def get(name: str, path: str | Path, *, progress: bool = True) -> str:
    """Download a dataset into a folder, or say where and how its publisher gives it out.

    A download that was cut goes on where it stopped, now or in a later call. What arrived is compared with
    the known checksum before it is opened, and what is opened appears in the folder all at once, or not.

    Args:
        name: `glyphs` (drawn, not downloaded), `cub`, `sop`, `lfw`; `cars`, `inshop`, `hotels50k` and `casia`
            cannot be downloaded without asking.
        path: The folder that shall hold it.
        progress: Show how far it is.

    Returns:
        What was done, or what to do.

    Raises:
        UserError: The name is unknown, or a checksum is wrong (the file is removed then).
        OSError: The server cannot be reached or does not have the file.

    Example:
        >>> print(get("casia", "faces"))
        casia: its publisher gives it out at http://www.cbsr.ia.ac.cn/english/CASIA-WebFace-Database.html
        Put into faces: CASIA-WebFace/0000045/001.jpg, ...: a folder an identity
    """
    folder = Path(path).expanduser()
    if name == "glyphs":
        from firstpage.data.glyphs import glyphs

        return f"glyphs: {len(glyphs(folder)):,} images in {folder}"
    if name not in _SOURCES:
        raise UserError(f"get({name!r}): no such dataset; use one of glyphs, {', '.join(_SOURCES)}")
    source = _SOURCES[name]
    if not source.files:
        return f"{name}: its publisher gives it out at {source.page}\nPut into {folder}: {source.layout}"
    if (folder / source.makes).exists():
        return f"{name}: {folder / source.makes} is there already"
    lines = []
    for file in source.files:
        try:
            digest = _fetch(file, folder / file.name, progress)
        except OSError as error:
            raise OSError(f"{error}; the publisher's page is {source.page}") from None
        if file.sha256 is None:
            lines.append(f"{file.name}: no checksum of it is known; its sha256 is {digest}")
    for file in source.files:
        if file.name.endswith((".tgz", ".zip")):
            _extract(folder / file.name, folder, last=source.makes)
            (folder / file.name).unlink()
    return "\n".join([*lines, f"{name}: {folder} holds {source.layout}"])


def _fetch(file: _File, target: Path, progress: bool) -> str:
    """Download one file, as often as it takes; its sha256."""
    if target.exists() and file.sha256 in (None, _sha256(target)):
        return _sha256(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task(target.name, total=file.size)
        failures, whole = 0, False
        while not whole:
            before = _length(part)
            try:
                whole = _continue(
                    file, part, lambda done, total: bar.update(task, completed=done, total=total)
                )
                problem = "the connection was cut"
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in (408, 429):  # asking again will not help
                    raise OSError(f"{file.url}: {problem}") from None
            except (OSError, http.client.HTTPException) as error:
                problem = str(error)
            failures = 0 if whole or _length(part) > before else failures + 1
            if failures == _ATTEMPTS:
                raise OSError(
                    f"{file.url}: {problem}; {_length(part):,} bytes are kept, run it again to go on"
                )
            if not whole:
                time.sleep(_PAUSE)
    digest = _sha256(part)
    _mark(part).unlink(missing_ok=True)
    if file.sha256 not in (None, digest):
        part.unlink()
        raise UserError(f"{file.url}: sha256 is {digest}, not {file.sha256}; it was removed, run it again")
    part.replace(target)
    return digest


def _continue(file: _File, part: Path, report: Callable[[int, int | None], None]) -> bool:
    """One request for what is missing of a file; whether it is whole now."""
    start, mark = _length(part), _mark(part)
    version = mark.read_text() if mark.exists() else ""
    headers = {"User-Agent": "firstpage"}
    if start and (version or file.sha256):  # else nothing would tell that the file has changed meanwhile
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    request = urllib.request.Request(file.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":  # there is no more to come
            return True
        part.unlink()
        return False
    with response:
        if str(response.headers.get("Content-Range")).startswith(f"bytes {start}-"):
            mode = "ab"
        else:  # the server has another version now, or sends whole files only
            part.unlink(missing_ok=True)
            start, mode = 0, "wb"
        tag = response.headers.get("ETag") or ""
        mark.write_text(
            tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""
        )
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else file.size
        with part.open(mode) as sink:
            while block := response.read(1 << 18):
                sink.write(block)
                start += len(block)
                report(start, total)
    return total in (None, start)


def _mark(part: Path) -> Path:
    """Where the version of a partial file is kept, as its server names it."""
    return part.with_name(f"{part.name}.version")


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _extract(archive: Path, folder: Path, last: str) -> None:
    """Open an archive beside its place, then move what it holds into place, `last` at last."""
    scratch = folder / f".{archive.name}.extracting"
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed run
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
                        raise UserError(f"{name!r} would lie outside of the folder")
                opened.extractall(scratch)
        elif not hasattr(tarfile, "data_filter"):  # Python 3.11.0 to 3.11.3
            raise UserError("extracting it safely needs Python 3.11.4 or newer: run it again with that")
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(scratch, filter="data")
        entries = sorted(scratch.iterdir(), key=lambda entry: entry.name == last)
        for entry in entries:
            if (folder / entry.name).is_dir():
                raise UserError(f"{folder / entry.name} is in the way, move it")
        for entry in entries:
            entry.replace(folder / entry.name)
    except (ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{archive}: {reason}; nothing was extracted") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
