"""Random numbers seeded by a key (purpose, seed, step), independent of what was drawn before."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(device: torch.device, *key: int | str) -> Iterator[None]:
    """Seed torch's generators from `key` within the context, and restore their state after it.

    So all ranks sample the same negatives although each drew other dropout masks before, a chunk that is
    embedded a second time gets the masks of the first, and a resumed run continues as if it had not stopped.

    Args:
        device: The device whose generator is seeded. The CPU's generator is seeded too.
        key: What the random numbers are for, such as `("loss", seed, step)`.

    >>> with seeded(torch.device("cpu"), "loss", 0, 17):
    ...     first = torch.rand(2)
    >>> with seeded(torch.device("cpu"), "loss", 0, 17):
    ...     torch.equal(torch.rand(2), first)
    True
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    # Generators live on the host, so neither seeding nor restoring waits for the device.
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
