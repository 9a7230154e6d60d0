from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from tests.e2e.install import Installation, InstallationError, install
from tests.support.footprint import Footprint
from tests.support.skipping import unavailable


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The installed real servers and clients, and the conformance suite."""
    try:
        return install()
    except InstallationError as exc:
        unavailable(exc)


@pytest.fixture(autouse=True)
def own_logging_only() -> Iterator[None]:
    """Commands that run in this process, also for fixtures of a module, set up logging, which would keep records."""
    _forget_set_up()
    yield
    _forget_set_up()


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """An empty Redis server of this process."""
    fakeredis = pytest.importorskip("fakeredis", reason="an in-process Redis server")
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="session")
def footprint() -> Footprint:
    return Footprint()


@pytest.fixture(autouse=True)
def no_more_memory_than_needed(footprint: Footprint) -> Iterator[None]:
    yield
    footprint.reduce()


def _forget_set_up() -> None:
    """Logging as pytest has it: its own handlers at the root, and nothing at the gateway's logger."""
    root, own = logging.getLogger(), logging.getLogger("pml_gateway")
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__.startswith("_pytest")]
    root.setLevel(logging.WARNING)
    own.handlers.clear()
    own.propagate = True
    own.setLevel(logging.NOTSET)
