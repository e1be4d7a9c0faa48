"""Text for a terminal: from files, such as the names of folders and columns, and from docstrings."""

import inspect
import re

# What makes a terminal do anything but show a character: the control characters, but not a tab or a new line;
# marks that change the direction of text; halves of characters, which no terminal can be sent.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
MOST = 2000  # characters of a message


def escape(text: str) -> str:
    r"""Return a text with its control characters written as JSON and TOML write them.

    >>> print(escape("a\tred \x1b[31mwren"))
    a   red \u001b[31mwren
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shorten(text: str, most: int = MOST) -> str:
    """Return a text of at most `most` characters, without its middle if it is longer.

    >>> shorten("no column 'path'; its columns are a, b, c, d, e, f, g: add one", 40)
    "no column 'path'; its columns … add one"
    """
    if len(text) <= most:
        return text
    end = most // 5
    return f"{text[: most - end - 3].rstrip()} … {text[-end:].lstrip()}"


def summary(documented: object) -> str:
    """Return the first line of a docstring.

    >>> summary(shorten)
    'Return a text of at most `most` characters, without its middle if it is longer.'
    """
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def argument_descriptions(documented: object) -> dict[str, str]:
    """Return what the `Args` section of a docstring says about each argument, in one line each.

    >>> argument_descriptions(lambda x: x)
    {}
    """
    section = re.search(r"^Args:\n((?: +.*\n?|\n(?= ))+)", inspect.getdoc(documented) or "", re.MULTILINE)
    lines = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}


def format_size(size: float) -> str:
    """Return a number of bytes with the unit that suits it.

    >>> [format_size(size) for size in (900, 51_200, 3_000_000, 2.6e9)]
    ['900 bytes', '51 kB', '3.0 MB', '2.6 GB']
    """
    for unit, name, decimals in ((1e9, "GB", 1), (1e6, "MB", 1), (1e3, "kB", 0)):
        if size >= unit:
            return f"{size / unit:.{decimals}f} {name}"
    return f"{size:.0f} bytes"
