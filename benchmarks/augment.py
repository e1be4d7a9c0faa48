"""Images augmented a second, on the CPU and on a GPU where there is one, which must agree.

Run: PYTHONPATH=src python benchmarks/augment.py
"""

import time

import torch

from firstpage.data.augment import Augment

SETTINGS = {
    "center": Augment.test(size=227),
    "random crop": Augment.train(size=227),
    "resized crop": Augment.train(size=227, crop="resized"),
    "resized crop, color jitter": Augment.train(size=227, crop="resized", jitter=(0.2, 0.2, 0.2, 0.1)),
}


def rate(augment: Augment, pixels: torch.Tensor, seconds: float = 2.0) -> float:
    """Images a second, over at least `seconds`."""
    augment(pixels, seed=0, step=0)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(10 if pixels.is_cuda else 1):
            augment(pixels, seed=0, step=steps)
            steps += 1
        if pixels.is_cuda:
            torch.cuda.synchronize()
    return steps * len(pixels) / (time.perf_counter() - begin)


def main() -> None:
    """Print a line for each setting and device."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (128, 256, 256, 3), generator=generator, dtype=torch.uint8)
    for name, augment in SETTINGS.items():
        print(f"{name:30} cpu, {torch.get_num_threads()} threads: {rate(augment, pixels):10,.0f} images/s")
        if torch.cuda.is_available():
            moved = pixels.cuda()
            torch.cuda.set_sync_debug_mode("error")  # a call that makes the host wait raises
            images = augment(moved, seed=0, step=0)
            torch.cuda.set_sync_debug_mode("default")
            apart = (images.cpu() - augment(pixels, seed=0, step=0)).abs().max()
            print(f"{name:30} cuda: {rate(augment, moved):10,.0f} images/s, {apart:.1e} from the cpu's")


if __name__ == "__main__":
    main()
