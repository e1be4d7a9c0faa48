"""Looking at image files: what a worker finds out about each for `firstpage.data.check`."""

import os
import warnings
from typing import NamedTuple

from PIL import Image

from firstpage.data.decode import Unreadable, decode_file, fingerprint, open_regular

THUMBNAIL = 16


class Look(NamedTuple):
    """What one file is like.

    Args:
        reason: why it is unreadable; "" if it is not.
        fingerprint: its content; "" if it could not be read at all.
        length: its size in bytes.
        width: in pixels, as stored.
        height: in pixels, as stored.
        format: Pillow's name of its format.
        thumbnail: 16 × 16 grey levels, upright, row by row.

    >>> Look("empty file").length
    0
    """

    reason: str
    fingerprint: str = ""
    length: int = 0
    width: int = 0
    height: int = 0
    format: str = ""
    thumbnail: bytes = bytes(THUMBNAIL**2)


def look_at(root: str, paths: list[str]) -> list[Look]:
    """Look at some files, decoding each.

    >>> look_at("", ["nowhere.jpg"])[0].reason
    'no such file'
    """
    return [_look(os.path.join(root, path)) for path in paths]


def _look(path: str) -> Look:
    content = ""
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            content = fingerprint(file)
            # A large JPEG is decoded at an eighth of its size: fast, and still a cut one is found.
            image = decode_file(file, enough=4 * THUMBNAIL)
            grey = image.convert("L").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
            warnings.simplefilter("ignore")
            header = Image.open(file)
            return Look("", content, os.fstat(file.fileno()).st_size, *header.size, header.format or "", grey)
    except Unreadable as error:
        return Look(error.reason, content)
