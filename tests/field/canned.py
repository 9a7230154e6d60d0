"""MCP servers that answer with prepared JSON or bytes, as a process over stdio or over HTTP."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.field import canned_server
from tests.field.canned_server import Answers
from tests.support.threaded_http import PlainHandler, threaded

SESSION = "canned-session"

Transport = Literal["stdio", "http"]


@dataclass(frozen=True)
class Canned:
    """One server: its tools and what it answers.

    Keys of `answers` are methods, or `METHOD:NAME` for a tool or prompt of that name, a resource of that URI or a
    page with that cursor as JSON. A value is the
    `result` of the response; an object with the one key `message` replaces the whole response but for
    its `id`; bytes are written as they are, with `%ID%` replaced by the id of the request as JSON.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=lambda: {"tools": {}})
    transport: Transport = "stdio"

    def specification(self) -> str:
        """Return the server as JSON."""
        answers = {
            key: {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"value": value}
            for key, value in self.answers.items()
        }
        return json.dumps({"tools": [*self.tools], "answers": answers, "capabilities": {**self.capabilities}})


@contextmanager
def entries(servers: Mapping[str, Canned], folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the entries of the configuration for servers, which end with this context."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(_entry(name, server, folder)) for name, server in servers.items()}


@contextmanager
def _entry(name: str, server: Canned, folder: Path) -> Iterator[dict[str, Any]]:
    if server.transport == "http":
        with threaded(_handler(Answers(server.specification()))) as url:
            yield {"url": url}
        return
    path = folder / f"{name}.json"
    path.write_text(server.specification(), encoding="utf-8")
    yield {"command": sys.executable, "args": [str(Path(canned_server.__file__).resolve()), str(path)]}


def _handler(answers: Answers) -> type[PlainHandler]:
    class Handler(PlainHandler):
        def post(self) -> None:
            body = answers.to(self.received())
            self.respond(202 if body is None else 200, body or b"", headers={"mcp-session-id": SESSION})

    return Handler
