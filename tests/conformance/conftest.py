from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.e2e.install import InstallationError, install_balancer, install_redis
from tests.support.balancers import balanced
from tests.support.process import listening, over_stdio, running_gateway, write_settings
from tests.support.raw import decoded, post_modern
from tests.support.redis_server import real_redis
from tests.support.skipping import unavailable
from tests.support.waiting import wait_for

SERVER = [sys.executable, "-m", "tests.conformance.server"]
EVERYTHING = [sys.executable, "-m", "tests.conformance.everything"]
ROOT = Path(__file__).parents[2]
EVERYTHING_FOLDER = Path(os.environ.get("PML_DATA", ROOT.parent / "shared" / "data")) / "everything-server"

REPLICAS = 3


CAN_BE_ASKED: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}


class Stand(Protocol):
    """Starts the servers of one path and returns the URL at its front."""

    def __call__(self, path: str) -> str: ...


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Paths to the conformance server, each with processes of its own that run until the module's end."""
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def start(path: str) -> str:
            if path not in started:
                started[path] = stack.enter_context(_path(path, tmp_path_factory.mktemp(path)))
            return started[path]

        yield start


@contextmanager
def _path(path: str, folder: Path) -> Iterator[str]:
    server = partial(listening, env={**os.environ, "PYTHONPATH": str(ROOT)})
    with ExitStack() as stack:

        def front(entry: dict[str, Any], name: str = "gateway") -> str:
            return stack.enter_context(running_gateway(folder / name, settings(entry))).url

        match path:
            case "direct":
                yield stack.enter_context(server([*SERVER, "--http"]))[1]
            case "http":
                yield front({"url": stack.enter_context(server([*SERVER, "--http"]))[1]})
            case "sse":
                yield front({"url": stack.enter_context(server([*SERVER, "--sse"]))[1], "type": "sse"})
            case "stdio":
                yield speaking_2026(front(stdio_entry()))
            case "everything":
                yield stack.enter_context(server([*EVERYTHING, str(EVERYTHING_FOLDER)]))[1]
            case "through to everything":
                yield front({"url": stack.enter_context(server([*EVERYTHING, str(EVERYTHING_FOLDER)]))[1]})
            case "stdio gateway" | "bridge":
                # The suite speaks HTTP only, so that a gateway over HTTP stands in front of the one over stdio.
                home = folder / "behind"
                write_settings(home, settings({"url": stack.enter_context(server([*SERVER, "--http"]))[1]}))
                entry = stack.enter_context(over_stdio("bridge" if path == "bridge" else "stdio", home))
                yield speaking_2026(front(entry))
            case "chained":
                behind = front({"url": stack.enter_context(server([*SERVER, "--http"]))[1]}, "behind")
                yield front({"url": behind})
            case "replicas":
                entry = {"url": stack.enter_context(server([*SERVER, "--http"]))[1]}
                yield stack.enter_context(replicas(entry, folder))
            case _:
                raise ValueError(path)


@contextmanager
def replicas(entry: dict[str, Any], folder: Path) -> Iterator[str]:
    """Three replicas behind haproxy, which sends each request to the next one, those of a session as well."""
    try:
        redis, haproxy = install_redis(), install_balancer("haproxy")
    except InstallationError as exc:
        unavailable(exc)
    extra = {"PML_STORAGE_KEY": "a random text of three replicas, long enough"}
    with ExitStack() as stack:
        given = {**settings(entry), "storage": stack.enter_context(real_redis(redis)).url}
        homes = [folder / f"replica-{number}" for number in range(REPLICAS)]
        urls = [stack.enter_context(running_gateway(home, given, extra=extra)).url for home in homes]
        yield stack.enter_context(balanced("haproxy", haproxy, urls, folder, is_sticky=False))


def speaking_2026(url: str) -> str:
    """The URL, once the gateway there knows which eras its child speaks.

    It finds out for the first client that can be asked something. That takes two starts of the child, and some checks
    of the suite wait for half a second.
    """
    asking = {"name": "test_input_required_result_elicitation", "_meta": CAN_BE_ASKED}

    def asks() -> bool:
        answer = decoded(post_modern(url, "tools/call", asking))
        return bool(answer.get("result", {}).get("resultType") == "input_required")

    wait_for(asks, "a question of the child's in the client's era", 180)
    return url


def stdio_entry() -> dict[str, Any]:
    """The conformance server as a child of the gateway."""
    return {"command": SERVER[0], "args": SERVER[1:], "env": {"PYTHONPATH": str(ROOT)}}


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    """A gateway that changes as little as it can: everything listed, names kept."""
    return {
        "gateway": {"tools_exposure": "full_proxy"},
        "naming": {"prefix": "never"},
        "servers": {"conformance": entry},
    }
