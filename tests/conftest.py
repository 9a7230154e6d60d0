from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.e2e.install import Installation, InstallationError, install
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
def logging_as_before() -> Iterator[None]:
    """Commands that run in this process set up logging, which would keep records from later tests."""
    loggers = (logging.getLogger(), logging.getLogger("pml_gateway"))
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
