"""Random draws that depend on what they are for, not on what was drawn before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["draws"]


@contextmanager
def draws(device: torch.device, *key: int | str) -> Iterator[None]:
    """A context whose random numbers are a function of `key` alone; torch's own state is put back after it.

    So all ranks draw the same negatives though each drew other dropout masks before, a chunk that is embedded
    a second time meets the masks of the first, and a resumed run goes on as if it had not stopped.

    Args:
        device: where the numbers are drawn; the CPU's are a function of `key` too.
        key: what the draws are for, such as `("loss", seed, step)`.

    >>> with draws(torch.device("cpu"), "loss", 0, 17):
    ...     first = torch.rand(2)
    >>> with draws(torch.device("cpu"), "loss", 0, 17):
    ...     torch.equal(torch.rand(2), first)
    True
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    # Generators live on the host, so neither seeding nor putting back waits for the device.
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(int.from_bytes(digest) >> 1)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
