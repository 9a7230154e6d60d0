from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import RealRedis, real_redis
from tests.support.skipping import unavailable

from .inspector import Inspector
from .install import NPM_PACKAGES, Installation, InstallationError, install_redis
from .servers import everything_over_http, real_servers

A_PACKAGE = "@modelcontextprotocol/server-memory@" + NPM_PACKAGES["@modelcontextprotocol/server-memory"]
LOOK_UP_SECONDS = 60


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


@pytest.fixture(scope="session")
def redis_program() -> Path:
    """The program of a Redis server."""
    try:
        return install_redis()
    except InstallationError as exc:
        unavailable(exc)


@pytest.fixture(scope="module")
def redis(redis_program: Path) -> Iterator[RealRedis]:
    """A Redis server for the tests of one module."""
    with real_redis(redis_program) as server:
        yield server


@pytest.fixture
def inspector(installation: Installation, tmp_path: Path) -> Callable[..., Inspector]:
    """Makes an `Inspector` for a URL or a command."""
    return partial(Inspector, installation, tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with nothing but the address of the registry, where this machine has one of its own."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("npx") is None:
        unavailable(InstallationError("npm and npx are not on PATH"))
    home = tmp_path / "home"
    home.mkdir()
    try:
        subprocess.run(
            [npm, "view", A_PACKAGE, "version"], check=True, capture_output=True, timeout=LOOK_UP_SECONDS, cwd=tmp_path
        )
        registry = subprocess.run(
            [npm, "config", "get", "registry"], check=True, capture_output=True, text=True, timeout=LOOK_UP_SECONDS
        ).stdout.strip()
    except (subprocess.SubprocessError, OSError) as exc:
        unavailable(InstallationError(f"the npm registry does not answer: {exc}"))
    (home / ".npmrc").write_text(f"registry={registry}\n", encoding="utf-8")
    return home
