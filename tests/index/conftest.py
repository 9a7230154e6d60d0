"""The shipped model, loaded once."""

from __future__ import annotations

import pytest

from pml_gateway.index import Embedder, load_embedder


@pytest.fixture(scope="session")
def shipped() -> Embedder:
    """The model that `search.model: builtin` names."""
    return load_embedder("builtin")
