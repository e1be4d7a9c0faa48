"""The style of all figures, for light and dark pages, and how figures are saved.

Nothing here uses pyplot or matplotlib's settings, which all threads of a process share: the style is set on
each figure.
"""

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from firstpage import durable
from firstpage.errors import UserError

SUFFIXES = (".png", ".svg", ".pdf")
_DATES = {".svg": "Date", ".pdf": "CreationDate"}  # metadata omitted to make files reproducible
DPI = 300
TEXT, SMALL = 8.0, 7.0  # font sizes in points, for a figure 8 cm wide
MANY, BESIDE = 5, 4.5  # entries of a legend above which it is beside the panel; what it is wide there, in cm
LINE = 44  # characters of a name in one line
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
    """Colors of a figure. Curves differ in color and in line style, so that color is not needed.

    Attributes:
        background: Color of the background.
        foreground: Color of text and axes.
        grid: Color of grid lines.
        colors: Colors of curves, in order: Okabe and Ito's, which are safe for color-blind readers.
        right: Color of right results.
        wrong: Color of wrong results.

    >>> make_style().curve(1)["color"], make_style().curve(7)["color"]
    ('#d55e00', '#d55e00')
    """

    background: str
    foreground: str
    grid: str
    colors: tuple[str, ...]
    right: str
    wrong: str

    def curve(self, number: int) -> dict[str, Any]:
        """Return color, line style and width of the n-th curve, for `Axes.plot`."""
        cycle, color = divmod(number, len(self.colors))
        return {
            "color": self.colors[color],
            "linestyle": _LINES[(color + cycle) % len(_LINES)],  # another line style when colors repeat
            "linewidth": 1.4,
        }

    def panels(
        self, rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 6.0
    ) -> tuple[Figure, list[Axes]]:
        """Create a figure of `rows` × `columns` axes, `width` × `height` cm in total."""
        figure = Figure(figsize=(width / 2.54, height / 2.54), dpi=DPI, layout="constrained")
        figure.set_facecolor(self.background)
        axes = [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]
        for panel in axes:
            panel.set_facecolor(self.background)
            panel.spines[["top", "right"]].set_visible(False)
            panel.spines[["left", "bottom"]].set_color(self.foreground)
            panel.spines[["left", "bottom"]].set_linewidth(0.6)
            panel.tick_params(colors=self.foreground, labelsize=SMALL, width=0.6, length=2.5)
            panel.grid(color=self.grid, linewidth=0.4)
            panel.set_axisbelow(True)
            panel.locator_params(nbins=6 if columns == 1 else 4)
        return figure, axes

    def label(self, axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
        """Label the axes, and title the panel if it is one of several."""
        axes.set_xlabel(x, fontsize=TEXT, color=self.foreground)
        axes.set_ylabel(y, fontsize=TEXT, color=self.foreground)
        if title:
            axes.set_title(title, fontsize=TEXT, color=self.foreground)

    def legend(self, axes: Axes, *, beside: bool = False, **settings: Any) -> None:  # noqa: ANN401
        """Add a translucent legend without a border, by default where it covers least.

        One of many entries is beside the panel, for which the figure gets wider; `beside` puts any there, in
        a figure that has room for it.
        """
        figure, (entries, names) = axes.figure, axes.get_legend_handles_labels()
        if not beside and len(entries) > MANY and isinstance(figure, Figure):
            figure.set_figwidth(figure.get_figwidth() + BESIDE / 2.54)
            beside = True
        if beside:
            settings = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(
            entries,
            [wrap_label(name) for name in names],
            fontsize=SMALL,
            labelcolor=self.foreground,
            facecolor=self.background,
            edgecolor="none",
            framealpha=0.8,
            handlelength=2.6,
            **settings,
        )


_LIGHT = Style(
    background="#ffffff",
    foreground="#1a1a1a",
    grid="#dddddd",
    colors=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#444444"),
    right="#0072b2",
    wrong="#d55e00",
)
_DARK = Style(
    background="#14171a",
    foreground="#e8e8e8",
    grid="#363b40",
    colors=("#56b4e9", "#f5793a", "#2cc79c", "#e39cc4", "#f0e442", "#bbbbbb"),
    right="#56b4e9",
    wrong="#f5793a",
)


def escape_label(name: str) -> str:
    r"""Escape a name for matplotlib, where "$" starts a formula and a leading "_" hides a legend entry.

    >>> escape_label("_price in $")
    ' _price in \\$'
    """
    return f" {name}".replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")


def wrap_label(name: str) -> str:
    r"""Break a long name into lines, so that it leaves room for what it stands beside.

    >>> wrap_label("Top-k precision, three levels of the network, neighboring classes")
    'Top-k precision, three levels of the\nnetwork, neighboring classes'
    """
    return "\n".join(wrap(name, LINE)) if len(name) > LINE else name


def plot_curves(
    curves: Mapping[str, tuple[Any, Any]],
    labels: tuple[str, str],
    style: Style | None = None,
    *,
    legend: str = "best",
    **limits: tuple[float, float | None],
) -> Figure:
    """Plot named curves (x, y), or histograms (edges, density), in one panel.

    >>> figure = plot_curves({"a": ([0, 1], [2, 3])}, ("step", "loss"), xlim=(0, 1))
    >>> figure.axes[0].get_ylabel()
    'loss'
    """
    style = style or make_style()
    figure, (axes,) = style.panels()
    for number, (name, (x, y)) in enumerate(curves.items()):
        settings = {"label": escape_label(name)} | style.curve(number)
        if len(x) > len(y):  # edges of bins
            axes.stairs(y, x, **settings)
        else:
            axes.plot(x, y, **settings)
    axes.set(**limits)
    style.label(axes, *labels)
    style.legend(axes, loc=legend)
    return figure


def distinct_names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the names of folders, with as many parents as needed to distinguish them.

    >>> distinct_names(["runs/a", "runs/b"]), distinct_names(["runs/a/0", "runs/b/0"])
    (['a', 'b'], ['a/0', 'b/0'])
    """
    parts = [Path(path).resolve().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len({*names}) == len(names):
            break
    return names


def make_style(dark: bool = False) -> Style:
    """Return the style of figures for print and light pages, or for dark pages.

    >>> make_style().background, make_style(dark=True).background
    ('#ffffff', '#14171a')
    """
    return _DARK if dark else _LIGHT


def save(figure: Figure | Image.Image, path: str | os.PathLike[str]) -> Path:
    """Write a figure as .png, .svg or .pdf, or an image as .png, atomically and reproducibly.

    >>> save(make_style().panels()[0], "figure.bmp")
    Traceback (most recent call last):
    firstpage.errors.UserError: figure.bmp: cannot write '.bmp': choose .png, .svg or .pdf
    """
    target = Path(path)
    suffixes = SUFFIXES if isinstance(figure, Figure) else SUFFIXES[:1]
    kind = target.suffix.lower()
    if kind not in suffixes:
        names = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise UserError(f"{target}: cannot write {target.suffix!r}: choose {names}")
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    if isinstance(figure, Figure):
        metadata = {_DATES[kind]: None} if kind in _DATES else None
        figure.savefig(buffer, format=kind[1:], metadata=metadata)
    else:
        figure.save(buffer, format="PNG")
    content = buffer.getvalue()
    durable.write(target, _number_ids(content) if kind == ".svg" else content)
    return target


def _number_ids(svg: bytes) -> bytes:
    """Number the ids of an SVG: matplotlib's are random, or depend on a setting that all threads share."""
    ids = dict.fromkeys(re.findall(rb'\bid="([^"]*[0-9a-f]{10})"', svg))
    numbers = {name: b"part%d" % number for number, name in enumerate(ids)}
    return re.sub(
        rb'(\bid="|href="#|url\(#)([^")]*)', lambda match: match[1] + numbers.get(match[2], match[2]), svg
    )
