"""The search page: a small server with its API, what guards it, heat maps that show why, and marks.

>>> from firstpage import serve
>>> serve.create_app(["nowhere"])
Traceback (most recent call last):
FileNotFoundError: nowhere: no index there; firstpage index build makes one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstpage._lazy import lazy

if TYPE_CHECKING:
    from firstpage.serve.app import create_app
    from firstpage.serve.heat_map import HeatMaps, compare_images
    from firstpage.serve.marks import Mark, MarkFile
    from firstpage.serve.server import run_server

__all__ = ["HeatMaps", "Mark", "MarkFile", "compare_images", "create_app", "run_server"]

__getattr__ = lazy(
    "firstpage.serve",
    {
        "create_app": "firstpage.serve.app",
        "HeatMaps": "firstpage.serve.heat_map",
        "compare_images": "firstpage.serve.heat_map",
        "Mark": "firstpage.serve.marks",
        "MarkFile": "firstpage.serve.marks",
        "run_server": "firstpage.serve.server",
    },
)
