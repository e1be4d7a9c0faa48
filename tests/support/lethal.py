"""Files that end the worker process that reads them."""

import os

from firstpage.data import worker
from firstpage.data.decode import decode_image, open_regular


def die_reading(path, number):
    """Run by a worker: ends the process while it reads one of the files."""
    with open_regular(path) as file:
        if file.name.endswith("lethal.png") and file.name not in worker.refused:
            os.kill(os.getpid(), number)
        return decode_image(file).size


def spin(path):
    """Run by a worker: takes forever."""
    worker.SECONDS = 0.05
    with open_regular(path) as file:
        while file.name not in worker.refused:
            pass
        return decode_image(file)


def allocate(path, size):
    """Run by a worker: takes much memory."""
    with open_regular(path):
        return len(bytearray(size))
