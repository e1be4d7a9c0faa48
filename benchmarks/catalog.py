"""Seconds and peak memory of reading a csv of a million rows, in a process of its own.

python benchmarks/catalog.py           the images are not there, and each folder is found missing
python benchmarks/catalog.py --files   a million empty images are made first, and looked up
"""

import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROWS, CLASSES = 1_000_000, 20_000


def write(root: Path, files: bool) -> Path:
    """A csv with every column that is read."""
    table = root / "images.csv"
    with table.open("w", encoding="utf-8") as out:
        out.write("path,label,split,x0,y0,x1,y1,group\n")
        for row in range(ROWS):
            label, split = row % CLASSES, "train" if row % 2 else "test"
            path = f"images/{row % 1000:03d}/photograph_{row:08d}.jpg"
            out.write(
                f"{path},class_{label:05d},{split},{row % 7},{row % 5},200.5,100.25,group_{label % 12}\n"
            )
            if files:
                if row < 1000:
                    (root / path).parent.mkdir(parents=True)
                (root / path).touch()
    return table


def measure(table: Path) -> None:
    """Reads it, and says what that took; importing the package counts for memory, not for time."""
    from firstpage.data import read

    warnings.simplefilter("ignore")
    start = time.perf_counter()
    catalog = read(table)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{catalog.summary()}\n{seconds:.2f} s, peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = write(Path(folder), files="--files" in sys.argv)
            subprocess.run([sys.executable, __file__, "--measure", str(made)], check=True)
