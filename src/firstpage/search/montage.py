"""A picture of a search: each query with its results, their scores and labels."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from firstpage.data.decode import Unreadable, decode_image
from firstpage.search.duplicates import Duplicates, Suspect
from firstpage.search.index import Index
from firstpage.search.match import Match, format_same
from firstpage.search.queries import Answer

SIDE, GAP, PAD, LINE = (
    160,
    14,
    24,
    18,
)  # pixels: of an image, between images, of the margin, of a line of text
COLUMNS = 6  # results side by side
PAPER, INK, QUIET, RULE = "#ffffff", "#1a1a1a", "#6b7280", "#e5e7eb"
RIGHT, WRONG = "#168b47", "#cb2f2f"
_FONTS = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}


@dataclass(frozen=True)
class Tile:
    """An image with lines of text below it.

    Args:
        image: The image.
        lines: Texts; the first is bold.
        color: Of a bar below the image; none by default.

    >>> Tile(Image.new("RGB", (8, 8)), ("0.93", "mug")).color
    ''
    """

    image: Image.Image
    lines: tuple[str, ...]
    color: str = ""


def draw_montage(rows: Sequence[tuple[Tile, Sequence[Tile]]]) -> Image.Image:
    """Draw a row for each query: the query at the left, its results beside it.

    Args:
        rows: Queries and their results.

    >>> tile = Tile(Image.new("RGB", (80, 40), "red"), ("0.93", "mug"))
    >>> draw_montage([(tile, [tile] * 8)]).size
    (1280, 484)
    """
    step = SIDE + GAP
    lines = max([len(tile.lines) for query, results in rows for tile in (query, *results)], default=1)
    tall = SIDE + 8 + LINE * lines + GAP
    columns = max([min(COLUMNS, len(results)) for _, results in rows], default=0)
    heights = [max(1, -(-len(results) // COLUMNS)) * tall + GAP for _, results in rows]
    width = 2 * PAD + SIDE + (2 * GAP + columns * step if columns else 0)
    sheet = Image.new("RGB", (width, 2 * PAD + sum(heights) - GAP if rows else 2 * PAD), PAPER)
    canvas = ImageDraw.Draw(sheet)
    top = PAD
    for number, ((query, results), height) in enumerate(zip(rows, heights, strict=True)):
        if number:
            canvas.line((PAD, top - GAP, width - PAD, top - GAP), RULE)
        _draw_tile(sheet, canvas, query, PAD, top)
        if results:
            middle = PAD + step
            canvas.line((middle, top, middle, top + height - 2 * GAP), RULE)
        for place, tile in enumerate(results):
            left = PAD + step + GAP + (place % COLUMNS) * step
            _draw_tile(sheet, canvas, tile, left, top + place // COLUMNS * tall)
        top += height
    return sheet


def draw_results(index: Index, answers: Sequence[Answer]) -> Image.Image:
    """Draw queries and their results, with scores and labels.

    Results of a query that is in the index have a green bar if they carry its label, and a red one otherwise.

    Args:
        index: The index.
        answers: The queries, as `search_many` yields them.

    >>> draw_results.__name__
    'draw_results'
    """
    rows = []
    for answer in answers:
        label = None
        if len(answer.images) == 1 and isinstance(answer.images[0], int):
            label = _describe(index, answer.images[0]).label
        name = Path(answer.name).name if isinstance(answer.images[0], str) else answer.name
        pictures = [_picture(index, image, answer) for image in answer.images[:4]]
        query = Tile(
            _tile_up(pictures), ("query", answer.name if len(answer.images) > 1 else name, label or "")
        )
        rows.append((query, [_result(index, match, label) for match in answer.matches]))
    return draw_montage(rows)


def draw_duplicates(index: Index, found: Duplicates, most: int = 50) -> Image.Image:
    """Draw groups of near-duplicates, then images whose neighbors carry another label, with these neighbors.

    Args:
        index: The index.
        found: What `find_duplicates` returned.
        most: Groups and images to draw, of each kind.

    >>> draw_duplicates.__name__
    'draw_duplicates'
    """
    rows = []
    for group in found.groups[:most]:
        tiles = []
        label = _describe(index, group[0]).label
        for number in group[: 2 * COLUMNS + 1]:
            match = _describe(index, number)
            lines = (f"id {number}", match.label, Path(match.path).name)
            color = WRONG if match.label != label else ""
            tiles.append(Tile(_thumbnail(index, number), lines, color))
        rows.append((tiles[0], tiles[1:]))
    rows += [_suspect_row(index, suspect) for suspect in found.suspects[:most]]
    return draw_montage(rows)


def _suspect_row(index: Index, suspect: Suspect) -> tuple[Tile, list[Tile]]:
    match = _describe(index, suspect.id)
    lines = (f"{match.label}?", f"rather {suspect.suggested}", f"id {suspect.id}")
    neighbors = []
    for number in suspect.neighbors:
        label = _describe(index, number).label
        neighbors.append(Tile(_thumbnail(index, number), (label, f"id {number}")))
    return Tile(_thumbnail(index, suspect.id), lines, WRONG), neighbors


def _describe(index: Index, number: int) -> Match:
    """Return what is known about an image of the index."""
    row = index.row(number)
    return Match(number, 1.0, row["path"], row["label"], row["columns"])


def _result(index: Index, match: Match, label: str | None) -> Tile:
    score = f"{match.score:.3f}"
    if match.probability is not None:
        score += f"   {format_same(match.probability)}"
    color = "" if label is None else RIGHT if match.label == label else WRONG
    return Tile(_thumbnail(index, match.id), (score, match.label, Path(match.path).name), color)


def _thumbnail(index: Index, number: int) -> Image.Image:
    try:
        return Image.open(io.BytesIO(index.thumbnail(number)), formats=["JPEG"]).convert("RGB")
    except Unreadable:  # a file that is gone, of an image that was added as a vector
        return Image.new("RGB", (SIDE, SIDE), RULE)


def _picture(index: Index, image: str | int, answer: Answer) -> Image.Image:
    """Return the picture of a query, with its box drawn in."""
    if isinstance(image, int):
        return _thumbnail(index, image)
    try:
        whole = decode_image(image)
    except Unreadable:  # it has been moved since it was searched for
        return Image.new("RGB", (SIDE, SIDE), RULE)
    scale = SIDE / max(whole.size)
    small = whole.resize([max(1, round(side * scale)) for side in whole.size], Image.Resampling.LANCZOS)
    if answer.box is not None:
        left, top, right, bottom = (value * scale for value in answer.box)
        edges = (max(0, left), max(0, top), min(small.width - 1, right), min(small.height - 1, bottom))
        shade = Image.eval(small, lambda value: 96 + value // 2)
        inside = tuple(round(value) for value in edges)
        shade.paste(small.crop(inside), inside[:2])  # type: ignore[arg-type]
        small = shade
        ImageDraw.Draw(small).rectangle(edges, outline="#0072b2", width=2)
    return small


def _tile_up(pictures: list[Image.Image]) -> Image.Image:
    """Return one picture of up to four."""
    if len(pictures) == 1:
        return pictures[0]
    half, sheet = SIDE // 2 - 2, Image.new("RGB", (SIDE, SIDE), PAPER)
    for number, picture in enumerate(pictures):
        small = _fit(picture, half)
        sheet.paste(small, ((number % 2) * (half + 4), (number // 2) * (half + 4)))
    return sheet


def _fit(image: Image.Image, side: int) -> Image.Image:
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _draw_tile(sheet: Image.Image, canvas: ImageDraw.ImageDraw, tile: Tile, left: int, top: int) -> None:
    image = _fit(tile.image, SIDE)
    sheet.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
    if tile.color:
        canvas.rectangle((left, top + SIDE + 1, left + SIDE - 1, top + SIDE + 4), fill=tile.color)
    for number, text in enumerate(tile.lines):
        font = _font(number == 0)
        place = (left, top + SIDE + 8 + number * LINE)
        canvas.text(place, _shorten(text, font), fill=INK if number < 2 else QUIET, font=font)


@cache
def _font(bold: bool) -> ImageFont.FreeTypeFont:
    """The font of matplotlib, which has more letters than Pillow's."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", _FONTS[bold]), 12)


def _shorten(text: str, font: ImageFont.FreeTypeFont) -> str:
    """Return as much of a text as fits under an image."""
    text = " ".join(text.split())[:200]
    if font.getlength(text) <= SIDE:
        return text
    while text and font.getlength(f"{text}…") > SIDE:
        text = text[:-1]
    return f"{text}…"
