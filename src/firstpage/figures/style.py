"""How every figure looks: one palette, one type size, on paper and on dark screens; and how it is saved.

Nothing here touches pyplot or matplotlib's settings, which all threads of a process share: a figure carries
its whole look with it.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstpage import durable
from firstpage.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

__all__ = ["Style", "save", "style"]

SUFFIXES = (".png", ".svg", ".pdf")
_DATES = {".svg": "Date", ".pdf": "CreationDate"}  # what files say of when they were made
DPI = 300
TEXT, SMALL = 8.0, 7.0  # points, in a figure printed 8 cm wide
_LINES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)


@dataclass(frozen=True)
class Style:
    """Colors of a figure. Curves differ by color and by line, so that they do without color too.

    Attributes:
        paper: the ground.
        ink: text and axes.
        faint: grid lines, and what is only there to orient.
        colors: for curves, in their order: Okabe and Ito's, which the color-blind tell apart.
        right: what a search got right.
        wrong: what it got wrong.

    >>> style().curve(1)["color"], style().curve(7)["color"]
    ('#d55e00', '#d55e00')
    """

    paper: str
    ink: str
    faint: str
    colors: tuple[str, ...]
    right: str
    wrong: str

    def curve(self, number: int) -> dict[str, Any]:
        """Color, line and width of the curve of that number, for `Axes.plot`."""
        again, color = divmod(number, len(self.colors))
        return {
            "color": self.colors[color],
            "linestyle": _LINES[(color + again) % len(_LINES)],  # another line when colors come again
            "linewidth": 1.4,
        }

    def panels(
        self, rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 6.0
    ) -> tuple[Figure, list[Axes]]:
        """A figure of `rows` × `columns` axes, `width` × `height` cm in all."""
        from matplotlib.figure import Figure  # takes half a second to import

        figure = Figure(figsize=(width / 2.54, height / 2.54), dpi=DPI, layout="constrained")
        figure.set_facecolor(self.paper)
        axes = [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
        for one in axes:
            one.set_facecolor(self.paper)
            one.spines[["top", "right"]].set_visible(False)
            one.spines[["left", "bottom"]].set_color(self.ink)
            one.spines[["left", "bottom"]].set_linewidth(0.6)
            one.tick_params(colors=self.ink, labelsize=SMALL, width=0.6, length=2.5)
            one.grid(color=self.faint, linewidth=0.4)
            one.set_axisbelow(True)
            one.locator_params(nbins=6 if columns == 1 else 4)
        return figure, axes

    def label(self, axes: Axes, across: str = "", up: str = "", title: str = "") -> None:
        """Name the axes, and the panel if it is one of several."""
        axes.set_xlabel(across, fontsize=TEXT, color=self.ink)
        axes.set_ylabel(up, fontsize=TEXT, color=self.ink)
        if title:
            axes.set_title(title, fontsize=TEXT, color=self.ink)

    def legend(self, axes: Axes, **settings: Any) -> None:  # noqa: ANN401
        """A legend without a border, where there is most room for it; what it covers shines through."""
        axes.legend(
            fontsize=SMALL,
            labelcolor=self.ink,
            facecolor=self.paper,
            edgecolor="none",
            framealpha=0.8,
            handlelength=2.6,
            **settings,
        )


_LIGHT = Style(
    paper="#ffffff",
    ink="#1a1a1a",
    faint="#dddddd",
    colors=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#444444"),
    right="#0072b2",
    wrong="#d55e00",
)
_DARK = Style(
    paper="#14171a",
    ink="#e8e8e8",
    faint="#363b40",
    colors=("#56b4e9", "#f5793a", "#2cc79c", "#e39cc4", "#f0e442", "#bbbbbb"),
    right="#56b4e9",
    wrong="#f5793a",
)


def literal(name: str) -> str:
    r"""A name as matplotlib leaves it: "$" would begin mathematics, and "_" hide it from the legend.

    >>> literal("_price in $")
    ' _price in \\$'
    """
    return f" {name}".replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")


def apart(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The names of folders, with as much of their paths as it takes to tell them apart.

    >>> apart(["runs/a", "runs/b"]), apart(["runs/a/0", "runs/b/0"])
    (['a', 'b'], ['a/0', 'b/0'])
    """
    parts = [Path(path).resolve().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len({*names}) == len(names):
            break
    return names


def style(dark: bool = False) -> Style:
    """The look of all figures: for print and bright pages, or for dark ones.

    >>> style().paper, style(dark=True).paper
    ('#ffffff', '#14171a')
    """
    return _DARK if dark else _LIGHT


def save(figure: Figure | Image.Image, path: str | os.PathLike[str]) -> Path:
    """Write a figure as .png, .svg or .pdf, all or nothing; a picture as .png. It has the same bytes again.

    >>> save(style().panels()[0], "figure.bmp")
    Traceback (most recent call last):
    firstpage.errors.UserError: figure.bmp: cannot write '.bmp': choose .png, .svg or .pdf
    """
    target = Path(path)
    drawn = hasattr(figure, "savefig")  # else a picture of pixels
    known = SUFFIXES if drawn else SUFFIXES[:1]
    kind = target.suffix.lower()
    if kind not in known:
        names = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        raise UserError(f"{target}: cannot write {target.suffix!r}: choose {names}")
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    if drawn:
        undated = {_DATES[kind]: None} if kind in _DATES else None
        figure.savefig(buffer, format=kind[1:], metadata=undated)  # type: ignore[union-attr]
    else:
        figure.save(buffer, format="PNG")  # type: ignore[union-attr]
    written = buffer.getvalue()
    durable.write(target, _numbered(written) if kind == ".svg" else written)
    return target


def _numbered(svg: bytes) -> bytes:
    """A drawing whose parts are numbered: matplotlib names them by lot, or by a setting all threads share."""
    lots = dict.fromkeys(re.findall(rb'\bid="([^"]*[0-9a-f]{10})"', svg))
    numbers = {name: b"part%d" % number for number, name in enumerate(lots)}
    return re.sub(
        rb'(\bid="|href="#|url\(#)([^")]*)', lambda found: found[1] + numbers.get(found[2], found[2]), svg
    )
