"""The address a browser is sent back to after a login: who may ask it."""

from __future__ import annotations

from urllib.parse import urlsplit

import anyio
import pytest

from pml_gateway.upstreams.auth.callback import listening

pytestmark = pytest.mark.anyio


async def answered(redirect_uri: str, *hosts: str) -> bytes:
    """The status that a request with these Host headers gets."""
    parts = urlsplit(redirect_uri)
    assert parts.hostname
    assert parts.port
    with anyio.fail_after(30):
        async with await anyio.connect_tcp(parts.hostname, parts.port) as stream:
            lines = [f"GET {parts.path}?code=c&state=s HTTP/1.1", *(f"Host: {host}" for host in hosts), "", ""]
            await stream.send("\r\n".join(lines).encode())
            return (await stream.receive()).split(b" ")[1]


async def test_only_a_browser_that_asks_for_this_machine_ends_a_login() -> None:
    async with listening("up", None) as callback:
        callback.expect("https://as.example/authorize?state=s")
        for foreign in ((), ("evil.example",), ("localhost:evil.example",), ("localhost", "evil.example")):
            assert await answered(callback.redirect_uri, *foreign) == b"421"
        assert await answered(callback.redirect_uri, urlsplit(callback.redirect_uri).netloc) == b"200"
        assert (await callback.result()).code == "c"
