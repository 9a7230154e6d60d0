"""The shipped model, loaded once."""

from __future__ import annotations

import pytest

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.models import load_embedder


@pytest.fixture(scope="session")
def shipped() -> Embedder:
    """The model that `search.model: builtin` names."""
    return load_embedder("builtin")
