"""Glyphs, the built-in default dataset: characters of nine scripts, drawn with matplotlib's fonts."""

import json
import shutil
import time
import unicodedata
import uuid
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from firstpage._reading import read_json
from firstpage.data.cache import cache_folder
from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.errors import UserError

# Code points of each script, in hexadecimal. Fixed, so that the classes are the same everywhere: the letters
# and digits that cannot be decomposed and that at least four of the fonts have, without those that look like
# an earlier one (A and Α and А, S and s); tests/data/test_glyphs.py verifies this.
_TRAIN = {
    "latin": (
        "41-5A 61-62 64-68 6B 6D-6E 70-72 74 79 C6 D0 D8 DE-DF E6 F0 FE 111 126-127 141 14A 152-153 180-184 "
        "186-187 18A-18C 18E-18F 191-196 19B-19D 19F 1A2-1A4 1A6-1A7 1A9-1AB 1AE 1B1-1B4 1B6-1BB 1BE 1C1-1C2 "
        "1F6-1F7 21C 221-224 234-235 238-239 23B 23D-244 246-247 249-24D 250-252 255-258 25A-25E 260 265 "
        "267-268 26A 26C 26E-273 277-27B 27D-27F 281-282 284 286-287 289 28C-28E 290-291 293-295 29A-29B "
        "29D-29E 2A0 2A3-2A4 2A6-2AF 1D12-1D14 1D16-1D17 1D1A 1D1D-1D1F 1D85 1E9E 1EFA-1EFB 2C63-2C66 2C68 "
        "2C6A-2C6B 2C6E 2C71-2C72 2C74 2C77 2C7A A722 A724 A728-A729 A72B A732 A734 A736-A739 A73C-A73D "
        "A746-A748 A74A A750 A752-A753 A764-A765 A780 A782 A78E A790 A7A0 A7A2-A7A8 A7AA A7FB-A7FD A7FF"
    ),
    "cyrillic": (
        "402 409-40B 40F 414 416 41B 426-427 429-42C 42E-42F 44B 452 45B 462-464 466 468 46A 46C 46E 470-471 "
        "475 478-47A 47C 47E 48A 48D 490 492 494 496 498 49A 49E-4A0 4A2 4A4 4A6 4A8 4B2 4B4-4B6 4BA 4BC 4BE "
        "4C3 4C5 4C7 4CA-4CB 4CD 4F6 4FA 4FD-4FE 500 502 504 506 508 50D-50F 512 514 516-519 520 522 524 "
        "A64C A650 A654 A656-A657 A662 A664 A666 A66A A66E A68B"
    ),
}
_TEST = {
    "greek": (
        "370 372-373 376 37C-37D 394 39E 3A0 3A6 3A8-3A9 3B1-3B2 3B4 3B6 3B8 3BA 3BC-3BE 3C0 3C2-3C3 3C6-3C7 "
        "3C9 3CF 3D7-3D8 3DA 3DE-3E1 3FA-3FC"
    ),
    "coptic": "3E2 3E6-3E8 3EA 3EC 3EE",
    "armenian": (
        "532-53B 53E-541 543-544 546-547 549-54C 54E-550 552 554 556 565 567-569 56D-56E 571 573-574 576 579 "
        "57B-57C 57E-580 583 586"
    ),
    "hebrew": "5D0-5D4 5D6 5D8 5DA 5DC 5DE 5E0 5E2-5EA 5F1-5F2",
    "arabic": "621 628-62C 62E-634 637 639-63A 641-64A 679 680 691 6A4 6A9 6AF 6BE",
    "lao": (
        "E81-E82 E84 E87-E88 E8A E8D E94-E97 E99 E9B-E9E EA1-EA3 EA5 EA7 EAA-EAB EAD-EB0 EB2 EBD EC0-EC4 "
        "ED1-ED8"
    ),
    "georgian": (
        "10A0-10AC 10AE-10B2 10B4-10B6 10B8 10BB-10BC 10BE-10C5 10D0-10D1 10D3-10D4 10D6-10DD 10DF-10E2 "
        "10E4-10E7 10EA-10EB 10ED 10EF-10F0 10F2-10F5 10F7 10F9-10FA 2D00-2D09 2D0B-2D0C 2D0E-2D13 2D15-2D19 "
        "2D1B-2D1D 2D1F 2D21-2D25"
    ),
}
_FACES = [
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
]
INDEX = "glyphs.json"
_MOST_IMAGES = 10_000  # of a class
_VERSION = 1  # of the images: a cache of another version is drawn again
_SIDE = 48  # of an image
_CANVAS = 2 * _SIDE  # glyphs are drawn at twice the size, then averaged
_EM = 96  # font size before the random transformation


def draw_glyphs(folder: str | Path | None = None, *, images: int = 16, seed: int = 0) -> Catalog:
    """Draw the default dataset, 634 characters of nine scripts, or open it if it was drawn before.

    Each image shows one character in one of up to 16 fonts (DejaVu Sans, Mono and Serif, STIX; regular, bold,
    italic), rotated, sheared, scaled, shifted, thickened, blurred, and in a random color on a textured, noisy
    background. The training classes are Latin and Cyrillic; the test classes are Greek, Coptic, Armenian,
    Hebrew, Arabic, Lao and Georgian. Do not flip the images: mirrored characters are different characters.

    The images are PNG files of 48 × 48 pixels, the same for the same `images` and `seed`. Their folder
    appears only when it is complete.

    Args:
        folder: Folder of the images. Defaults to a folder in the user's cache.
        images: Number of images per class.
        seed: Seed of the random transformations.

    Returns:
        A catalog with splits `train` and `test`, and the scripts as groups.

    Raises:
        UserError: The folder contains other files, or glyphs of other settings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     catalog = draw_glyphs(Path(folder) / "glyphs", images=1)
    >>> len(catalog), len(catalog.classes), catalog.classes[0]
    (634, 634, 'latin capital letter a')
    >>> {name: len(rows) for name, rows in catalog.splits.items()}
    {'train': 350, 'test': 284}
    """
    if images < 1:
        raise UserError(f"draw_glyphs(images={images}): images must be at least 1")
    if images > _MOST_IMAGES:
        raise UserError(f"draw_glyphs(images={images}): images must be at most {_MOST_IMAGES}")
    if seed < 0:
        raise UserError(f"draw_glyphs(seed={seed}): seed must not be negative")
    settings = {"version": _VERSION, "images": images, "seed": seed}
    root = Path(folder) if folder is not None else cache_folder() / f"glyphs-{_VERSION}-{images}-{seed}"
    if not (root / INDEX).exists():
        _create(root, settings)
    existing = read_settings(root / INDEX)
    if existing != settings:
        raise UserError(
            f"draw_glyphs(folder={str(root)!r}): it contains {existing}, not {settings}; use another folder"
        )
    points, scripts = _points(), [*_TRAIN, *_TEST]
    labels = np.repeat(np.arange(len(points)), images)
    groups = np.array([scripts.index(script) for script, _ in points])[labels]
    return Catalog(
        name="glyphs",
        root=root,
        paths=[
            f"{script}/{point:04x}/{number:02d}.png" for script, point in points for number in range(images)
        ],
        labels=labels,
        classes=[unicodedata.name(chr(point)).lower() for _, point in points],
        splits={"train": np.flatnonzero(groups < len(_TRAIN)), "test": np.flatnonzero(groups >= len(_TRAIN))},
        groups=groups,
        group_names=scripts,
    )


def read_settings(index: Path) -> dict[str, int]:
    """Return the settings that a folder of glyphs was drawn with: `version`, `images` and `seed`.

    Args:
        index: Its file `glyphs.json`.

    Raises:
        UserError: The file is damaged.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     Path(file.name).write_bytes(b'{"version": 1, "images": 16, "seed": 0}')
    ...     read_settings(Path(file.name))
    39
    {'version': 1, 'images': 16, 'seed': 0}
    """
    try:
        settings = read_json(index)
    except UserError as error:
        raise UserError(f"{error}; remove its folder, and the glyphs are drawn again") from None
    if (
        not isinstance(settings, dict)
        or settings.keys() != {"version", "images", "seed"}
        or any(type(value) is not int for value in settings.values())
        or not 1 <= settings["images"] <= _MOST_IMAGES
    ):
        raise UserError(
            f"{printable(index)}: not the settings of glyphs; remove its folder, and they are drawn again"
        )
    checked: dict[str, int] = settings
    return checked


def _points() -> list[tuple[str, int]]:
    """Return the script and the code point of each class."""
    return [(script, point) for script, ranges in (_TRAIN | _TEST).items() for point in _parse(ranges)]


def _parse(ranges: str) -> list[int]:
    edges = [[int(edge, 16) for edge in part.split("-")] for part in ranges.split()]
    return [point for edge in edges for point in range(edge[0], edge[-1] + 1)]


def _create(root: Path, settings: dict[str, int]) -> None:
    """Draw everything beside `root`, then rename it into place: a killed run never looks complete."""
    if root.exists() and any(root.iterdir()):
        raise UserError(
            f"draw_glyphs(folder={str(root)!r}): it contains other files; use a new or empty folder"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    for leftover in root.parent.glob(f".{root.name}.*.part"):  # of killed runs
        if time.time() - leftover.stat().st_mtime > 3600:
            shutil.rmtree(leftover, ignore_errors=True)
    part = root.with_name(f".{root.name}.{uuid.uuid4().hex}.part")
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    faces = [_load_face(fonts / f"{face}.ttf") for face in _FACES]
    try:
        for script, point in _points():  # not in threads: most of the work holds Python's lock
            _draw(part / script / f"{point:04x}", point, faces, settings["images"], settings["seed"])
        (part / INDEX).write_text(json.dumps(settings))
        part.replace(root)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and error.filename:
            error.filename = str(root)  # users do not know the temporary folder
        if not (isinstance(error, OSError) and (root / INDEX).exists()):  # unless another process was faster
            raise


def _load_face(file: Path) -> tuple[ImageFont.FreeTypeFont, set[int]]:
    """Return a font and the code points it contains."""
    font = ImageFont.truetype(file, _EM, layout_engine=ImageFont.Layout.BASIC)
    return font, set(FT2Font(str(file)).get_charmap())


def _draw(
    folder: Path, point: int, faces: list[tuple[ImageFont.FreeTypeFont, set[int]]], images: int, seed: int
) -> None:
    """Draw and save the images of one character."""
    random = np.random.default_rng([seed, point])
    fonts = [font for font, points in faces if point in points]
    order = np.concatenate([random.permutation(len(fonts)) for _ in range(-(-images // len(fonts)))])
    stroke = random.integers(0, 4, images)
    blur = random.uniform(0.0, 1.6, images)
    fill = random.uniform(0.55, 0.9, images)
    position = random.uniform(-0.7, 0.7, (images, 2))
    maps = _random_maps(images, random)
    ink = np.empty((images, _SIDE, _SIDE), np.float32)
    for number in range(images):
        clean = Image.new("L", (3 * _EM, 3 * _EM))
        pen, middle = ImageDraw.Draw(clean), (clean.width / 2, clean.height / 2)
        pen.text(middle, chr(point), 255, fonts[order[number]], anchor="mm", stroke_width=int(stroke[number]))
        clean = clean.crop(clean.getbbox())
        # The transformed glyph fills part of the canvas, at a random position, but is never cropped.
        size = np.array(clean.size)
        extent = np.abs(maps[number]) @ size
        scale = fill[number] * _CANVAS / extent.max()
        center = _CANVAS / 2 + position[number] * (_CANVAS - scale * extent) / 2
        back = np.linalg.inv(scale * maps[number])
        corner = size / 2 - back @ center
        affine = (*back[0], corner[0], *back[1], corner[1])
        square = (_CANVAS, _CANVAS)
        posed = clean.transform(square, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
        ink[number] = np.asarray(posed.filter(ImageFilter.GaussianBlur(float(blur[number]))).reduce(2))
    folder.mkdir(parents=True)
    for number, pixels in enumerate(_paint(ink / np.float32(255), random)):
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{number:02d}.png", compress_level=1)


def _random_maps(images: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return linear maps `[images, 2, 2]`: random rotations (20 degrees), shears and stretches."""
    angle, shear = random.uniform(-0.35, 0.35, images), random.uniform(-0.25, 0.25, images)
    stretch = np.exp(random.uniform(-0.15, 0.15, images))
    rotate = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    bend = np.array([[stretch, shear], [np.zeros(images), 1 / stretch]])
    maps: NDArray[np.float64] = np.einsum("ijn,jkn->nik", rotate, bend)
    return maps


def _paint(ink: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.uint8]:
    """Draw `ink` `[images, side, side]` in one color on a blotchy, striped background, with noise."""
    images, side, _ = ink.shape

    def uniform(low: float, high: float, channels: int = 1) -> NDArray[np.float32]:
        return random.uniform(low, high, (images, channels, 1, 1)).astype(np.float32)

    def normal(width: int) -> NDArray[np.float32]:
        return random.standard_normal((images, 3, width, width), np.float32)

    dark, light, swapped = uniform(0, 0.4, 3), uniform(0.6, 1, 3), uniform(0, 1) < 0.5
    color, ground = np.where(swapped, light, dark), np.where(swapped, dark, light)
    knots = np.linspace(0, 4, side, dtype=np.float32)
    blend = np.maximum(0, 1 - np.abs(knots[:, None] - np.arange(5, dtype=np.float32)))  # [side, 5], bilinear
    stripes = np.sin(uniform(-10, 10) * knots[:, None] + uniform(-10, 10) * knots + uniform(0, 6.3))
    ground = ground + uniform(0, 0.12) * (blend @ normal(5) @ blend.T) + uniform(0, 0.1) * stripes
    picture = ground + ink[:, None] * (color - ground) + uniform(0, 0.1) * normal(side)
    pixels: NDArray[np.uint8] = (255 * picture.clip(0, 1)).round().astype(np.uint8)
    return pixels.transpose(0, 2, 3, 1)
