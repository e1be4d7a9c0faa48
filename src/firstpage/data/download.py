"""Downloading datasets, or explaining where their publishers offer them."""

import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from firstpage._spelling import suggest
from firstpage.data.file_download import download_file
from firstpage.errors import UserError


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
    result: str = ""  # what the files become in the folder: it exists if and only if all is done


# Sizes and checksums: CUB, Online Products and LFW from url_checksums/ of tensorflow/datasets, pairs.txt from
# sklearn/datasets/_lfw.py of scikit-learn. LFW's own server is gone: these are scikit-learn's copies, of the
# same checksums. Stanford's page of Cars is gone as well (pytorch/vision issue 7545).
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
        result="CUB_200_2011",
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
        result="Stanford_Online_Products",
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
        result="lfw",
    ),
    "cars": _Source(
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        layout="cars_annos.mat, car_ims/000001.jpg; or devkit/, cars_train/, cars_test/; or class folders",
    ),
    "inshop": _Source(
        page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        layout="Eval/list_eval_partition.txt, Img/img/WOMEN/... (the extracted img.zip)",
    ),
    "hotels50k": _Source(
        page="https://github.com/GWUvision/Hotels-50K",
        layout="input/dataset/train_set.csv, test_set.csv, hotel_info.csv, chain_info.csv, "
        "images/train/, images/test/unoccluded/",
    ),
    "casia": _Source(
        page="http://www.cbsr.ia.ac.cn/english/CASIA-WebFace-Database.html",
        layout="CASIA-WebFace/0000045/001.jpg, ...: one folder per identity",
    ),
}


def download_dataset(name: str, path: str | Path, *, progress: bool = True) -> str:
    """Download a dataset into a folder, or explain where and how its publisher offers it.

    Interrupted downloads resume, in this call or in a later one. Archives are checked against their known
    checksums before they are extracted, and their content appears in the folder all at once.

    Args:
        name: `glyphs` (drawn, not downloaded), `cub`, `sop` or `lfw`. Others (`cars`, `inshop`, `hotels50k`,
            `casia`) cannot be downloaded without their publishers' consent.
        path: The folder to download to.
        progress: Show a progress bar.

    Returns:
        A description of what was done, or of what to do.

    Raises:
        UserError: The name is unknown, or a checksum is wrong (the file is removed then).
        OSError: The server cannot be reached, or does not have the file.

    >>> print(download_dataset("casia", "faces"))
    casia: its publisher offers it at http://www.cbsr.ia.ac.cn/english/CASIA-WebFace-Database.html
    Put into faces: CASIA-WebFace/0000045/001.jpg, ...: one folder per identity
    """
    folder = Path(path).expanduser()
    if name == "glyphs":
        from firstpage.data.glyphs import draw_glyphs

        return f"glyphs: {len(draw_glyphs(folder)):,} images in {folder}"
    if name not in _SOURCES:
        known = ["glyphs", *_SOURCES]
        raise UserError(
            f"dataset {name!r}: no such name; {suggest(name, known)}the names are {', '.join(known)}"
        )
    source = _SOURCES[name]
    if not source.files:
        return f"{name}: its publisher offers it at {source.page}\nPut into {folder}: {source.layout}"
    if (folder / source.result).exists():
        return f"{name}: {folder / source.result} already exists"
    lines = []
    for file in source.files:
        try:
            digest = download_file(
                file.url, folder / file.name, size=file.size, sha256=file.sha256, progress=progress
            )
        except OSError as error:
            raise OSError(f"{error}; the publisher's page is {source.page}") from None
        if file.sha256 is None:
            lines.append(f"{file.name}: its checksum is not known; its sha256 is {digest}")
    for file in source.files:
        if file.name.endswith((".tgz", ".zip")):
            _extract(folder / file.name, folder, last=source.result)
            (folder / file.name).unlink()
    return "\n".join([*lines, f"{name}: {folder} contains {source.layout}"])


def _extract(archive: Path, folder: Path, last: str) -> None:
    """Extract an archive into a temporary folder, then move its content into place, `last` at the end."""
    scratch = folder / f".{archive.name}.extracting"
    if (
        scratch.is_symlink() or not scratch.is_dir()
    ):  # a planted link: the archive would be extracted elsewhere
        scratch.unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed run
    scratch.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
                        raise UserError(f"{name!r} would be extracted outside the folder")
                opened.extractall(scratch)
        elif not hasattr(tarfile, "data_filter"):  # Python 3.11.0 to 3.11.3
            raise UserError("extracting it safely needs Python 3.11.4 or newer")
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(scratch, filter="data")
        entries = sorted(scratch.iterdir(), key=lambda entry: entry.name == last)
        for entry in entries:
            if (folder / entry.name).is_dir():
                raise UserError(f"{folder / entry.name} exists already, move or remove it")
        for entry in entries:
            entry.replace(folder / entry.name)
    except (ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{archive}: {reason}; nothing was extracted") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
