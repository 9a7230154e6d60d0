"""Garbage of strangers over HTTP writes next to nothing into the log, and a log that is too large is rotated."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import pytest

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.telemetry.log_file import LINES_OF_ONE_PLACE, MAX_BYTES
from tests.field.stand import gateway_client
from tests.support.process import GatewayProcess, running_gateway
from tests.support.raw import META, MODERN

pytestmark = [pytest.mark.slow, pytest.mark.field("A6")]

REPEATED = LINES_OF_ONE_PLACE + 20
LINES_OF_A_KIND = 2
"""Lines for all repetitions of one kind of garbage: the first, and one more if a minute ends meanwhile."""
ANSWER_SECONDS = 60

SERVERS = {"s": {"command": sys.executable, "args": [str(Path(__file__).parents[1] / "field" / "waiting_server.py")]}}
SETTINGS: dict[str, Any] = {"gateway": {"tools_exposure": "full_proxy"}, "servers": SERVERS}
KEYED = {**SETTINGS, "clients": {"known": {"key": "${env:KNOWN_KEY}"}}}

JSON_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def other() -> str:
    """Return text that was never sent before, so that lines which quote it all differ."""
    return uuid4().hex


def message(method: str, params: dict[str, Any] | None = None) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": META}}
    ).encode()


def modern(method: str, name: str = "") -> dict[str, str]:
    return {"mcp-protocol-version": MODERN, "mcp-method": method, **({"mcp-name": name} if name else {})}


POSTED: dict[str, Callable[[], tuple[bytes, dict[str, str]]]] = {
    "not JSON": lambda: (other().encode(), {}),
    "not UTF-8": lambda: (b"\xff" + other().encode(), {}),
    "half a surrogate": lambda: (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800%s"}' % other().encode(), {}),
    "NaN": lambda: (b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{"x":NaN}}' % other().encode(), {}),
    "no session": lambda: (message(other()), {}),
    "an unknown session": lambda: (message("tools/list"), {"mcp-session-id": other()}),
    "an unknown method": lambda: (message(name := other()), modern(name)),
    "an unknown tool": lambda: (message("tools/call", {"name": (name := other())}), modern("tools/call", name)),
    "an unknown resource": lambda: (
        message("resources/read", {"uri": (uri := f"x://{other()}")}),
        modern("resources/read", uri),
    ),
    "arguments of another type": lambda: (
        message("tools/call", {"name": "s__t", "arguments": other()}),
        modern("tools/call", "s__t"),
    ),
    "headers that contradict": lambda: (message("tools/call", {"name": other()}), modern("tools/list")),
    "an unknown version": lambda: (message("tools/list"), {"mcp-protocol-version": other()}),
    "an unsound handshake": lambda: (message("initialize", {"protocolVersion": other()}), {}),
    "a foreign host": lambda: (message("tools/list"), {"host": f"{other()}.example"}),
    "a foreign origin": lambda: (message("tools/list"), {"origin": f"https://{other()}.example"}),
    "a wrong key": lambda: (message("tools/list"), {"authorization": f"Bearer {other()}"}),
    "another content type": lambda: (b"{}", {"content-type": f"text/{other()}"}),
    "another encoding": lambda: (b"{}", {"content-encoding": other()}),
}
HEAD = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
BYTES: dict[str, Callable[[], bytes]] = {
    "not HTTP": lambda: other().encode() + b"\r\n\r\n",
    "TLS": lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + other().encode(),
    "large headers": lambda: b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n" + f"x: {other()}\r\n".encode() * 4000,
    "two lengths": lambda: HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n" + other().encode(),
    "an unsound chunk": lambda: HEAD + b"transfer-encoding: chunked\r\n\r\nzz" + other().encode() + b"\r\n",
    "an upload that breaks off": lambda: HEAD + b"content-length: 1000\r\n\r\n{" + other().encode(),
    "an upgrade": lambda: HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n" + other().encode(),
    "an unknown path": lambda: b"GET /" + other().encode() + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "a session that is not there": lambda: (
        b"DELETE /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nmcp-session-id: " + other().encode() + b"\r\n\r\n"
    ),
}


@pytest.fixture(scope="module", params=[SETTINGS, KEYED], ids=["no keys", "keys"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    environment = {"KNOWN_KEY": "0123456789abcdef" * 3}
    with running_gateway(tmp_path_factory.mktemp("home"), request.param, extra=environment) as gateway:
        # The lines of the start are not the flood's.
        until(lambda: any("accepted with a new server" in line for line in gateway.log))
        yield gateway


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + ANSWER_SECONDS
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.02)


def lines_after(gateway: GatewayProcess, before: int) -> list[str]:
    """Return what was logged since then, once the gateway has answered a request that comes after all others."""
    health = gateway.url.replace("/mcp", "/healthz")
    assert httpx2.get(health, timeout=ANSWER_SECONDS).status_code == 200
    threading.Event().wait(0.1)  # from the process's stderr to this list
    return [line for line in gateway.log[before:] if "full_proxy lists" not in line]


@pytest.mark.parametrize("kind", POSTED)
def test_requests_that_are_garbage_write_next_to_nothing(gateway: GatewayProcess, kind: str) -> None:
    before = len(gateway.log)
    with httpx2.Client(timeout=ANSWER_SECONDS) as client:
        for _ in range(REPEATED):
            content, headers = POSTED[kind]()
            client.post(gateway.url, content=content, headers={**JSON_HEADERS, **headers})
    assert len(lines_after(gateway, before)) <= LINES_OF_A_KIND


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_that_are_garbage_write_next_to_nothing(gateway: GatewayProcess, kind: str) -> None:
    before, address = len(gateway.log), urlsplit(gateway.url)
    for _ in range(REPEATED):
        connected = socket.create_connection((address.hostname, address.port), ANSWER_SECONDS)
        with connected as stranger, suppress(OSError):
            stranger.sendall(BYTES[kind]())
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(1000)
    assert len(lines_after(gateway, before)) <= LINES_OF_A_KIND


def test_the_log_of_the_shared_gateway_is_rotated_while_it_runs(tmp_path: Path) -> None:
    log = Path(Endpoint.of(tmp_path, tmp_path / "config.yaml").log)
    log.parent.mkdir(parents=True, mode=0o700)
    # Just below the limit, so that the lines of a start go beyond it.
    log.write_bytes(b"x" * (MAX_BYTES - 51) + b"\n")
    with gateway_client("shared", MODERN, tmp_path, {"servers": SERVERS}) as client:
        client.tools("s__t")
        rotated = log.with_name(f"{log.name}.1")
        until(rotated.exists)
        assert MAX_BYTES <= rotated.stat().st_size < MAX_BYTES + 10_000
        until(lambda: 0 < log.stat().st_size < MAX_BYTES / 10)
        assert client.call("s__t", say="on")["content"][0]["text"] == '"on"'
