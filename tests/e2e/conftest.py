from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.skipping import unavailable

from .inspector import Inspector
from .install import Installation, InstallationError
from .servers import everything_over_http, real_servers


@pytest.fixture
def servers(installation: Installation, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Fresh `servers:` entries of the real stdio servers."""
    try:
        return real_servers(installation, tmp_path / "servers")
    except InstallationError as exc:
        unavailable(exc)


@pytest.fixture(scope="session")
def everything_url(installation: Installation) -> Iterator[str]:
    """The URL of server-everything over streamable HTTP."""
    with everything_over_http(installation) as url:
        yield url


@pytest.fixture
def inspector(installation: Installation, tmp_path: Path) -> Callable[..., Inspector]:
    """Makes an `Inspector` for a URL or a command."""
    return partial(Inspector, installation, tmp_path)
