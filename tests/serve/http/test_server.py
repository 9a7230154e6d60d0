"""The end of the server that listens."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from pml_gateway.config.settings import HttpSettings
from pml_gateway.serve.http.server import HttpServer
from pml_gateway.serve.limits.connections import ConnectionLimits
from tests.support.listening import bound

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def test_what_clients_have_sent_before_the_end_is_answered() -> None:
    limits = ConnectionLimits(HttpSettings(), 1000)
    config = uvicorn.Config(PlainTextResponse("answered"), http=limits.protocol(), log_config=None, lifespan="off")
    server = HttpServer(config)
    with bound() as listener:
        address = listener.getsockname()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            await server.listening.wait()
            # The event loop has no turn in which to accept them.
            clients = [_connected(address) for _ in range(100)]
            await server.end_listening()
            with pytest.raises(ConnectionRefusedError):
                _connected(address)
            for client in clients:
                assert (await _received(client)).endswith(b"answered")
            server.should_exit = True


def _connected(address: Any) -> socket.socket:
    client = socket.create_connection(address, timeout=60)
    client.sendall(REQUEST)
    client.setblocking(False)
    return client


async def _received(client: socket.socket) -> bytes:
    content = b""
    with client, anyio.fail_after(60):
        while part := await asyncio.get_running_loop().sock_recv(client, 65536):
            content += part
    return content
