from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The benchmarks are not part of the installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
