"""The choice of a device, and its memory."""

import ctypes

import torch

from firstpage.errors import UserError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # M_… of glibc's malloc.h


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


def use_half(device: torch.device, asked: bool | None = None) -> bool:
    """Return whether networks run in bfloat16 on a device.

    By default they do on a GPU, and on a CPU that multiplies such numbers (AVX-512 BF16, AMX), which makes a
    ResNet-50 three times as fast.

    Args:
        device: The device.
        asked: What is asked for; None takes the default.

    >>> use_half(torch.device("cuda")), use_half(torch.device("cuda"), False)
    (True, False)
    """
    if asked is not None:
        return asked
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return device.type == "cuda"  # $ATEN_CPU_CAPABILITY tells torch to do without
    checks = (
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return any(is_supported() for is_supported in checks if is_supported is not None)


def keep_freed_memory(device: torch.device) -> bool:
    """On a CPU, keep the memory of freed tensors for the next ones, as torch does on a GPU.

    By default glibc gives large blocks back to the system and gets them again, page by page and filled with
    zeros, in every step: a tenth of the processor time of a small network. The process then stays as large
    as it once was. Blocks above 32 MB are given back as before.

    Returns:
        Whether anything was changed: only glibc can be told.

    >>> keep_freed_memory(torch.device("cuda"))
    False
    """
    if device.type != "cpu":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    settings = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 2**26, _MMAP_THRESHOLD: 2**25}
    return all(set_option(name, value) for name, value in settings.items())
