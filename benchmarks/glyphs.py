"""How long the default dataset takes to draw, and how much room it takes; with a picture, some of it.

Run: PYTHONPATH=src python benchmarks/glyphs.py [sheet.png]
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from firstpage.data.glyphs import draw_glyphs


def main() -> None:
    """Draw it into a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        catalog = draw_glyphs(Path(folder) / "glyphs")
        drawn = time.perf_counter() - begin
        begin = time.perf_counter()
        draw_glyphs(Path(folder) / "glyphs")
        read = time.perf_counter() - begin
        size = sum(catalog.path(row).stat().st_size for row in range(len(catalog)))
        print(
            f"{len(catalog.classes)} classes, {len(catalog):,} images, {size / 1e6:.0f} MB: "
            f"drawn in {drawn:.1f} s, read in {read:.3f} s"
        )
        if len(sys.argv) > 1:
            chosen = np.random.default_rng(0).choice(len(catalog.classes), 24, replace=False)
            rows = [np.flatnonzero(catalog.labels == label) for label in sorted(chosen)]
            lines = [np.hstack([np.asarray(Image.open(catalog.path(row))) for row in line]) for line in rows]
            Image.fromarray(np.vstack(lines)).save(sys.argv[1])


if __name__ == "__main__":
    main()
