"""Servers that refuse the latest protocol version, on every way: they come up with an older one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.support.versions import version_server

pytestmark = [pytest.mark.slow, pytest.mark.field("B5")]

ROOT = Path(__file__).parents[2]
LATEST, OLD, OLDEST = "2025-11-25", "2025-06-18", "2024-11-05"

PROCESSES = {
    "stdio_supported": ("supported", OLD),
    "stdio_words": ("words", "2025-03-26"),
    "stdio_bare": ("bare", OLDEST),
    "stdio_exits": ("exits", OLD),
    "stdio_exits_after": ("exits after", OLDEST),
}
LISTENING = {
    "http_supported": ("supported", OLD),
    "http_internal": ("internal", OLDEST),
    "http_400_text": ("400", OLDEST),
    "http_400_supported": ("400 supported", "2025-03-26"),
    "http_400_bare": ("400 bare", OLD),
    "http_closes": ("closes", OLD),
    "sse_supported": ("supported", OLDEST),
    "sse_400_text": ("400", OLD),
}
"""How each refuses the latest version, and the one that it takes."""
SILENT = {"discover_hangs": "hangs", "discover_closes": "closes", "discover_503": "503"}
"""Servers without an answer to `server/discover`."""


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    home = tmp_path_factory.mktemp("home")
    servers: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        for name, (how, takes) in PROCESSES.items():
            given = json.dumps({"how": how, "takes": [takes], "offered": str(home / name)})
            servers[name] = {
                "command": sys.executable,
                "args": ["-m", "tests.support.versions", given],
                "cwd": str(ROOT),
            }
        for name, (how, takes) in LISTENING.items():
            url = stack.enter_context(version_server(how, [takes])).url
            is_sse = name.startswith("sse")
            servers[name] = {"url": url.replace("/mcp", "/sse"), "transport": "sse"} if is_sse else {"url": url}
        for name, discover in SILENT.items():
            url = stack.enter_context(version_server("bare", [LATEST], discover=discover)).url
            servers[name] = {"url": url, "connect_timeout": 8}
        yield stack.enter_context(gateway_client(way, era, home, {"servers": servers}))


@pytest.mark.parametrize("name", [*PROCESSES, *LISTENING, *SILENT])
def test_a_server_of_an_older_version_lists_and_answers(client: FieldClient, name: str) -> None:
    client.tools(f"{name}__t")
    assert client.call(f"{name}__t")["content"] == [{"type": "text", "text": "fine"}]
