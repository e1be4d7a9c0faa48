"""Aligns the faces of a folder of images: in parallel, safely, and from where it was stopped."""

import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout
from PIL import Image

from firstpage import durable
from firstpage._reading import read_json
from firstpage.data import faces
from firstpage.data.decode import Unreadable, decode_image, open_regular, printable
from firstpage.data.locking import exclusive
from firstpage.data.progress import progress_bar
from firstpage.data.readers.layout import list_image_files, read_lines, suffix
from firstpage.data.workers import Workers
from firstpage.errors import UserError

SETTINGS, LISTED = "alignment.json", "not_aligned.txt"  # in the target
NO_FACE = "no face"
BATCH = 16  # images a worker aligns at a time
MAX_TEXT = 2**26  # bytes of a text file that is copied
SHOWN = 10  # images in the text of a result

JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
Failure = tuple[str, str, bytes]  # image, reason, and its cropped middle if it has no face


@dataclass(frozen=True)
class Alignment:
    """What became of a folder of images.

    Attributes:
        target: Folder of the aligned images.
        images: Number of images in the source.
        before: Number of them that were done before, by a command that was stopped.
        failures: Images that could not be aligned, and the reasons.
        seconds: How long it took.
        skip: Whether images without a face were left out.

    >>> print(Alignment(Path("aligned"), 10, 0, {"a.jpg": NO_FACE}, 0.5).text())
    aligned 9 of 10 images into aligned: 20 images/s
    without a face, cropped in the middle: 1; unreadable: 0; listed in aligned/not_aligned.txt
      a.jpg: no face
    """

    target: Path
    images: int
    before: int
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    skip: bool = False

    def text(self) -> str:
        """Format the result as text."""
        speed = (self.images - self.before) / max(self.seconds, 1e-9)
        rate = f"{self.before:,} of them before, " if self.before else ""
        rate += f"{speed:,.0f} images/s" if self.images > self.before else "nothing was left to do"
        done = f"{self.images - len(self.failures):,} of {self.images:,}"
        lines = [f"aligned {done} images into {self.target}: {rate}"]
        faceless = sum(reason == NO_FACE for reason in self.failures.values())
        if self.failures:
            became = "left out" if self.skip else "cropped in the middle"
            counts = f"without a face, {became}: {faceless:,}; unreadable: {len(self.failures) - faceless:,}"
            lines.append(f"{counts}; listed in {self.target / LISTED}")
            lines += [f"  {name}: {reason}" for name, reason in sorted(self.failures.items())[:SHOWN]]
            lines += [f"  … and {len(self.failures) - SHOWN:,} more"] if len(self.failures) > SHOWN else []
        return "\n".join(lines)


def align_faces(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    size: faces.Size = faces.SIZE,
    min_face: int = 60,
    jobs: int | None = None,
    skip: bool = False,
    progress: bool = True,
) -> Alignment:
    """Align the face of every image in a folder, into the same folders elsewhere.

    An aligned image has the name of its source: JPEG files stay JPEG (of high quality), and all others become
    PNG. Text files, such as LFW's pairs.txt, are copied. `not_aligned.txt` lists the images without a face,
    whose middle is cropped instead, and those that cannot be read, each with the reason. A command that was
    stopped, however it was, goes on where it was when it is run again.

    Args:
        source: Folder of images, at any depth.
        target: Folder for the aligned images, outside of the source.
        size: Their height and width.
        min_face: Height of the smallest face to find, in pixels.
        jobs: Number of processes. Defaults to one per usable core.
        skip: Leave images without a face out, instead of cropping their middle.
        progress: Whether to show progress.

    Raises:
        FileNotFoundError: There is no such folder, or there are no images in it.
        UserError: A setting is not valid, the target was made with others, or mtcnn-runtime is not installed.

    >>> align_faces("nowhere", "aligned")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    source, target = Path(source), Path(target)
    _check(source, target, size, min_face, jobs)
    names = list_image_files(source, "")
    if not names:
        raise FileNotFoundError(f"{source}: no images in this folder")
    _check_names(source, names)
    faces.require_detector()
    target.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(target.resolve() / SETTINGS, wait=False):
            _keep_settings(target, {"size": list(size), "min_face": min_face, "skip": skip})
            _copy_texts(source, target)
            faceless = _read_faceless(target)
            rest = [
                name
                for name in names
                if not (target / _aligned_name(name)).is_file()
                and (printable(name) not in faceless or not skip)
            ]
            start = time.perf_counter()
            failures = dict.fromkeys(
                [printable(name) for name in names if printable(name) in faceless], NO_FACE
            )
            _align_rest(source, target, rest, failures, (size, min_face, skip), jobs, progress)
            seconds = time.perf_counter() - start
    except Timeout:
        raise UserError(f"{target}: another process is aligning into this folder; wait for it") from None
    return Alignment(target, len(names), len(names) - len(rest), failures, seconds, skip)


def _align_rest(
    source: Path,
    target: Path,
    names: Sequence[str],
    failures: dict[str, str],
    settings: tuple[faces.Size, int, bool],
    jobs: int | None,
    progress: bool,
) -> None:
    """Align images in worker processes, and list those that fail in `failures` and in the target."""
    size, min_face, skip = settings
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    waiting: list[Failure] = []

    def keep() -> None:
        """List what failed, and only then write the files that say that these images are done."""
        failures.update((printable(name), reason) for name, reason, _ in waiting)
        _write_list(target, failures)
        for name, _, middle in waiting:
            if middle and not skip:
                _write(target / _aligned_name(name), middle)
        waiting.clear()

    keep()  # also where nothing fails: an old list may name what can now be read
    with Workers(jobs) as workers, progress_bar("aligning", len(names), progress and bool(names)) as advance:
        tasks = ((str(source), str(target), batch, size, min_face) for batch in batches)
        for index, failed in workers.map(_align_batch, tasks):
            waiting += failed
            if len(waiting) > len(failures) // 50:  # the list is written whole: not for each of a million
                keep()
            advance(len(batches[index]))
    keep()


def _align_batch(
    source: str, target: str, names: Sequence[str], size: faces.Size, min_face: int
) -> list[Failure]:
    """Align images, write those that succeed, and return the others; in a worker process."""
    faces.load_detector()  # outside of `open_regular`: if it is missing, no image is to blame
    failed, writes = [], []
    with ThreadPoolExecutor(2) as writers:  # the disk need not be waited for
        for name in names:
            file = Path(target, _aligned_name(name))
            if file.is_file():  # by a worker that was killed later in this batch
                continue
            try:
                with open_regular(os.path.join(source, name)) as opened:
                    image = decode_image(opened)
                    landmarks = faces.find_face(image, min_face)
                    if landmarks is None:
                        failed.append((name, NO_FACE, _encode(faces.crop_middle(image, size), name)))
                        continue
                    content = _encode(faces.align_face(image, landmarks, size), name)
            except Unreadable as error:
                failed.append((name, error.reason, b""))
                continue
            writes.append(writers.submit(_write, file, content))
    for write in writes:
        write.result()
    return failed


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write(file, content)


def _encode(image: Image.Image, name: str) -> bytes:
    file = io.BytesIO()
    if suffix(name) in JPEG_SUFFIXES:
        image.save(file, "JPEG", quality=95, subsampling=0)
    else:
        image.save(file, "PNG")
    return file.getvalue()


def _aligned_name(name: str) -> str:
    """Return the name of an aligned image. Without its suffix it stays: pairs.txt has such names."""
    return name if suffix(name) in (*JPEG_SUFFIXES, ".png") else f"{os.path.splitext(name)[0]}.png"


def _check(source: Path, target: Path, size: faces.Size, min_face: int, jobs: int | None) -> None:
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: no such folder")
    if not 8 <= min(size) <= max(size) <= 2**12:
        raise UserError(f"size={size[0]}x{size[1]}: height and width must be in 8..{2**12}")
    if min_face < faces.WINDOW:
        raise UserError(f"min_face={min_face}: must be at least {faces.WINDOW} pixels")
    if jobs is not None and jobs < 0:
        raise UserError(f"jobs={jobs}: must be at least 0 (0 aligns in this process)")
    inside, outside = source.resolve(), target.resolve()
    if inside.is_relative_to(outside) or outside.is_relative_to(inside):
        raise UserError(f"{target}: must be outside of {source}, and not around it: choose another folder")
    durable.check(target / SETTINGS)


def _check_names(source: Path, names: Sequence[str]) -> None:
    """Refuse two images that would become one, such as a.gif and a.png."""
    taken: dict[str, str] = {}
    for name in names:
        other = taken.setdefault(_aligned_name(name), name)
        if other != name:
            raise UserError(
                f"{source}: {printable(other)} and {printable(name)} would become one file; rename one"
            )


def _keep_settings(target: Path, settings: dict[str, object]) -> None:
    """Write the settings of a new target, or refuse one that was made with others."""
    file = target / SETTINGS
    if not file.exists():
        if any(not name.startswith((".", SETTINGS)) for name in os.listdir(target)):
            raise UserError(f"{target}: holds other files: choose an empty folder, or a new one")
        durable.write(file, f"{json.dumps(settings)}\n".encode())
    elif (others := read_json(file)) != settings:
        raise UserError(
            f"{target}: was aligned with other settings, {json.dumps(others)}: choose another folder"
        )


def _texts(source: Path) -> Iterator[str]:
    for folder, _, files in os.walk(source):
        for name in files:
            if suffix(name) == ".txt" and not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), source)


def _copy_texts(source: Path, target: Path) -> None:
    for name in _texts(source):
        if name == LISTED:  # of this command
            continue
        with durable.open_regular(source / name, MAX_TEXT) as file:
            content = file.read()
        copy = target / name
        if not copy.is_file() or copy.read_bytes() != content:
            _write(copy, content)


def _write_list(target: Path, failures: dict[str, str]) -> None:
    lines = "".join(f"{name}\t{reason}\n" for name, reason in sorted(failures.items()))
    durable.write(target / LISTED, lines.encode("utf-8", "surrogateescape"))


def _read_faceless(target: Path) -> set[str]:
    """Return the images without a face that an earlier command has listed; others are tried again."""
    file = target / LISTED
    lines = [line.rstrip("\n").split("\t") for line in read_lines(file)] if file.is_file() else []
    return {line[0] for line in lines if line[1:] == [NO_FACE]}
