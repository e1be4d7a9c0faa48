"""What a device is good at: bfloat16 or not, and memory that is not given back only to get it again."""

import resource

import numpy as np
import pytest
import torch

from firstpage.models import Embedder
from firstpage.models.device import keep_freed_memory, use_half


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


@pytest.mark.parametrize(
    ("instructions", "fast"),
    [({}, False), ({"_is_avx512_bf16_supported"}, True), ({"_is_amx_tile_supported"}, True)],
)
def test_a_cpu_runs_networks_in_bfloat16_where_it_is_fast_at_it(monkeypatch, instructions, fast):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in instructions, raising=False)
    assert not use_half(torch.device("cpu"))  # as tests run without AVX-512
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert use_half(torch.device("cpu")) == fast
    assert use_half(torch.device("cuda"))
    assert not use_half(torch.device("meta"))
    model = Embedder.create(backbone="small", dim=8, stored=32)
    images = [np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)]
    exact, rounded = (model.embed(images, half=half, progress=False) for half in (False, True))
    assert not torch.equal(exact, rounded)
    assert torch.equal(model.embed(images, progress=False), rounded if fast else exact)


def test_an_unknown_cpu_runs_networks_in_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not use_half(torch.device("cpu"))
