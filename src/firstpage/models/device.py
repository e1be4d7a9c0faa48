"""Which device work goes to."""

from __future__ import annotations

import torch

from firstpage.errors import UserError

__all__ = ["choose"]


def choose(name: str | None = None) -> torch.device:
    """The device of that name; a GPU where there is one if left out.

    Raises:
        UserError: it is not there, or neither a CPU nor a CUDA GPU.

    >>> choose("cpu")
    device(type='cpu')
    >>> choose("gpu")
    Traceback (most recent call last):
    firstpage.errors.UserError: device='gpu': no such device; write cuda or cpu, or leave it out
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name!r}: no such device; write cuda or cpu, or leave it out") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(
            f"device={name!r}: firstpage runs on cuda and cpu; write one of them, or leave it out"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"device={name!r}: torch sees no GPU here: leave it out, or install a CUDA build of torch"
        )
    return device
