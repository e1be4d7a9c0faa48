"""The choice of a device."""

import torch

from firstpage.errors import UserError


def resolve_device(name: str | None = None) -> torch.device:
    """Return the device with that name. Defaults to a GPU if available.

    Raises:
        UserError: The device is not available, or neither a CPU nor a CUDA GPU.

    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("gpu")
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
        raise UserError(f"device={name!r}: torch sees no GPU; leave it out, or install a CUDA build of torch")
    return device
