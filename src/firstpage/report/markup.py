"""HTML elements whose content is escaped unless it is `Html` already."""

import html
import re
from collections.abc import Iterable

_VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "source", "wbr"))
# Control characters are invalid in HTML, and lone surrogates (of undecodable file names) in UTF-8.
_REPLACED = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, *range(0xD800, 0xE000)), "\ufffd")


class Html(str):
    """A string of markup, as opposed to text.

    >>> tag("b", Html("<i>x</i>"), "<i>")
    '<b><i>x</i>&lt;i&gt;</b>'
    """


def escape(content: object) -> Html:
    """Escape text.

    >>> escape('wren & "auk" <b>')
    'wren &amp; &quot;auk&quot; &lt;b&gt;'
    """
    if isinstance(content, Html):
        return content
    return Html(html.escape(str(content).translate(_REPLACED), quote=True))


def tag(kind: str, /, *children: object, **attributes: object) -> Html:
    """Build an element. A trailing `_` of an attribute is dropped, any other becomes `-`; None omits it.

    >>> tag("td", "P@1", class_="name", data_k=1, hidden=True, title=None)
    '<td class="name" data-k="1" hidden>P@1</td>'
    >>> tag("img", alt='a "b"')
    '<img alt="a &quot;b&quot;">'
    """
    pairs = []
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            pairs.append(f" {name}")
        elif value is not None and value is not False:
            pairs.append(f' {name}="{escape(value)}"')
    opening = f"<{kind}{''.join(pairs)}>"
    return Html(opening if kind in _VOID else f"{opening}{join(children)}</{kind}>")


def join(parts: Iterable[object]) -> Html:
    """Concatenate parts, escaping those that are not markup and skipping None.

    >>> join(["a<b", None, tag("br")])
    'a&lt;b<br>'
    """
    return Html("".join(escape(part) for part in parts if part is not None))


def shorten_name(name: str, width: int) -> str:
    """Shorten a name to a number of characters: without its middle, since names mostly differ at the end.

    >>> shorten_name("Fruit/Apple/Golden-Delicious", 16)
    'Frui…n-Delicious'
    """
    if len(name) <= width:
        return name
    return f"{name[: width // 4]}…{name[len(name) - (width - width // 4 - 1) :]}"


def name_tag(content: object, **attributes: object) -> Html:
    """Build an element of a name, with its own text direction and line breaks after `_` and `/`.

    >>> name_tag("140.Summer_Tanager")
    '<bdi>140.Summer_<wbr>Tanager</bdi>'
    """
    return tag("bdi", Html(re.sub(r"(?<=[_/])", "<wbr>", escape(content))), **attributes)
