"""Search: an index of embedded images that can be changed at any time, and what is most similar in it.

>>> from firstpage import search
>>> search.Index.open("nowhere")
Traceback (most recent call last):
FileNotFoundError: nowhere: no index there; firstpage index build makes one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.search.index import Index
    from firstpage.search.match import Match

__all__ = ["Index", "Match"]

__getattr__ = lazy("firstpage.search", {"Index": "firstpage.search.index", "Match": "firstpage.search.match"})
