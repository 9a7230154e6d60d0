from __future__ import annotations

import gc
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
from httpcore2 import default_ssl_context
from hypothesis import is_hypothesis_test, settings
from typer.main import get_command

from pml_gateway.example_queries.shipped import KnownServers, known_servers
from pml_gateway.index.models import load_embedder
from pml_gateway.secrets.known import KNOWN_SECRETS
from tests.e2e.install import Installation, InstallationError, install
from tests.support.examples import HEAVY, QUICK, profile
from tests.support.skipping import unavailable

if TYPE_CHECKING:
    from redis import Redis

pytest_plugins = ["tests.support.limits", "tests.support.replica_stand"]

SLOW = "slow"

SHUTDOWN_POLL_SECONDS = 0.05
"""How often a server in this process looks whether it was ended."""

MAX_RECEIVED = 64 * 1024
"""Bytes that the Redis server in this process reads at once; it copies the rest for each part of a command."""

PROPERTY_SECONDS = 900
"""In the heavy stage, where the slowest takes some minutes beside two others."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """For runs without end, as `benchmarks.run_fuzz` makes them."""
    parser.addoption("--property-times", type=int, default=0, help="try every property so many times as often")


def pytest_configure(config: pytest.Config) -> None:
    """Properties try the same examples each time, and many more in the heavy stage, unless told how many.

    Modules read the profile when they are imported.
    """
    if times := config.getoption("--property-times"):
        settings.load_profile(profile(times))
    else:
        settings.load_profile(HEAVY if config.getoption("markexpr") == HEAVY else QUICK)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the heavy stage, properties are heavy tests, and take thirty times as long; the slow one has no heavy test."""
    if config.getoption("markexpr") == SLOW:
        heavy = [item for item in items if item.get_closest_marker(HEAVY)]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]
    if config.getoption("markexpr") == HEAVY:
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker(HEAVY)
                item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS))


def pytest_collection() -> None:
    """Look for no garbage while modules are imported and tests are made: nearly all of it stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare what all modules made at their import: each look for garbage would go through it again."""
    gc.freeze()
    gc.enable()


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


@pytest.fixture(scope="module", autouse=True)
def own_secrets_only() -> Iterator[None]:
    """Values that one module calls secret are masked in no other, where they may be words."""
    yield
    KNOWN_SECRETS.forget()


@pytest.fixture(scope="session", autouse=True)
def what_is_costly_is_made_once() -> Iterator[None]:
    """Hundreds of gateways, clients and commands run in a test process, and each would make its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_gateway.gateway.indexing.load_embedder", cache(load_embedder))
        patch.setattr("pml_gateway.example_queries.shipped.known_servers", _known_servers_once())
        patch.setattr("typer.testing._get_command", cache(get_command))
        patch.setattr("httpcore2.default_ssl_context", cache(default_ssl_context))
        yield


def _known_servers_once() -> Callable[[ZipFile], KnownServers]:
    """Known servers by what is read, for some tests write files of their own."""
    made: dict[bytes, KnownServers] = {}

    def known(file: ZipFile) -> KnownServers:
        read = file.read("index.json")
        if read not in made:
            made[read] = known_servers(file)
        return made[read]

    return known


@pytest.fixture(scope="module")
def redis_server() -> Iterator[str]:
    """The URL of a Redis server in this process."""
    fakeredis = pytest.importorskip("fakeredis", reason="an in-process Redis server")
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    server.stopped, stop = socket.socketpair()
    # It writes the answers of a pipeline one by one: each second one would wait 40 ms for an acknowledgement.
    changes = {"handle": _handle_commands, "disable_nagle_algorithm": True}
    server.RequestHandlerClass = type("Handler", (server.RequestHandlerClass,), changes)
    thread = threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            # It is a thread of this process, and the machine may be busy.
            patch.setattr("pml_gateway.storage.redis.OPERATION_SECONDS", 30.0)
            # For each client, it makes a connection of redis-py, which looks up its version for 5 ms.
            patch.setattr("redis.utils.get_lib_version", lambda: None)
            yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    finally:
        stop.close()
        server.shutdown()
        server.server_close()
        server.stopped.close()
        thread.join(10)


def _handle_commands(handler: Any) -> None:
    """Answer the commands of one connection of fakeredis, whose own loop wakes a hundred times a second.

    It does not look for what others publish: our storage follows a stream.
    """
    client = handler.current_client
    redis = import_module("redis")
    with suppress(ConnectionError, redis.ConnectionError):
        while True:
            readable, _, _ = select.select([handler.connection, handler.server.stopped], [], [])
            if handler.server.stopped in readable or not (data := handler.connection.recv(MAX_RECEIVED)):
                return
            try:
                client.get_socket().sendall(data)
            # Where a command meets a value of another type, which Redis refuses.
            except AttributeError as error:
                handler.writer.dump(error)
                return
            while client.can_read():
                try:
                    answer = client.read_response()
                except redis.ResponseError as error:
                    answer = error
                handler.writer.dump(answer)


@pytest.fixture
def empty_redis(redis_server: str) -> Iterator[Redis]:
    """A client of this server, which was emptied."""
    with pytest.importorskip("redis").Redis.from_url(redis_server) as client:
        client.flushall()
        yield client


@pytest.fixture
def redis_url(redis_server: str, empty_redis: Redis) -> str:
    """The URL of this server, which was emptied."""
    return redis_server


def _forget_set_up() -> None:
    """Logging as pytest has it: its own handlers at the root, and nothing at the gateway's logger."""
    root, own = logging.getLogger(), logging.getLogger("pml_gateway")
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__.startswith("_pytest")]
    root.setLevel(logging.WARNING)
    own.handlers.clear()
    own.propagate = True
    own.setLevel(logging.NOTSET)
