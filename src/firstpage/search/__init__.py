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
    from firstpage.search.duplicates import Duplicates, find_duplicates
    from firstpage.search.index import Index
    from firstpage.search.match import Match
    from firstpage.search.montage import draw_duplicates, draw_results
    from firstpage.search.queries import Answer, crop_image, search_many

__all__ = [
    "Answer",
    "Duplicates",
    "Index",
    "Match",
    "crop_image",
    "draw_duplicates",
    "draw_results",
    "find_duplicates",
    "search_many",
]

__getattr__ = lazy(
    "firstpage.search",
    {
        "Answer": "firstpage.search.queries",
        "Duplicates": "firstpage.search.duplicates",
        "Index": "firstpage.search.index",
        "Match": "firstpage.search.match",
        "crop_image": "firstpage.search.queries",
        "draw_duplicates": "firstpage.search.montage",
        "draw_results": "firstpage.search.montage",
        "find_duplicates": "firstpage.search.duplicates",
        "search_many": "firstpage.search.queries",
    },
)
