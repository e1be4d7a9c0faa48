"""HTML, built so that text cannot become markup: what is not `Html` already is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

__all__ = ["Html", "join", "named", "tag", "text"]

_VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "source", "wbr"))
# Control characters have no place in HTML, nor half a surrogate pair (a file name of odd bytes) in UTF-8.
_DROPPED = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, *range(0xD800, 0xE000)), "\ufffd")


class Html(str):
    """Markup, as opposed to text.

    >>> tag("b", Html("<i>x</i>"), "<i>")
    '<b><i>x</i>&lt;i&gt;</b>'
    """


def text(content: object) -> Html:
    """Any text, escaped.

    >>> text('wren & "auk" <b>')
    'wren &amp; &quot;auk&quot; &lt;b&gt;'
    """
    if isinstance(content, Html):
        return content
    return Html(html.escape(str(content).translate(_DROPPED), quote=True))


def tag(kind: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes that Python reserves end in `_`; `_` stands for `-`; None leaves one out.

    >>> tag("td", "P@1", class_="name", data_k=1, hidden=True, title=None)
    '<td class="name" data-k="1" hidden>P@1</td>'
    >>> tag("img", alt='a "b"')
    '<img alt="a &quot;b&quot;">'
    """
    written = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {word}")
        elif value is not None and value is not False:
            written.append(f' {word}="{text(value)}"')
    opening = f"<{kind}{''.join(written)}>"
    return Html(opening if kind in _VOID else f"{opening}{join(children)}</{kind}>")


def join(parts: Iterable[object]) -> Html:
    """Parts one after another, each escaped unless it is markup; None is nothing.

    >>> join(["a<b", None, tag("br")])
    'a&lt;b<br>'
    """
    return Html("".join(text(part) for part in parts if part is not None))


def named(content: object, **attributes: object) -> Html:
    """A name of the user's: in its own direction of writing, and with places to break a long one.

    >>> named("140.Summer_Tanager")
    '<bdi>140.Summer_<wbr>Tanager</bdi>'
    """
    return tag("bdi", Html(re.sub(r"(?<=[_/])", "<wbr>", text(content))), **attributes)
