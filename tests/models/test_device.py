"""The memory of a device: freed tensors are not given back to the system, only to get them again."""

import resource

import pytest
import torch

from firstpage.models.device import keep_freed_memory


def page_faults(times):
    """Pages that the system gives while 16 MB are filled and freed so many times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(2**22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_that_was_freed_is_used_again():
    if not keep_freed_memory(torch.device("cpu")):
        pytest.skip("another C library")
    page_faults(1)
    assert page_faults(10) < 5 * 2**24 // resource.getpagesize()  # else ten times as many as once


def test_the_memory_of_a_gpu_is_torchs_own():
    assert not keep_freed_memory(torch.device("cuda"))
