"""One seed for all: the suite is deterministic, and never judges by the clock."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=200, database=None
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
