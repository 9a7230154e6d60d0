"""A client that sends bytes instead of messages, on each way to a gateway, and gets every answer as it comes."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.field.stand import ANSWER_SECONDS, Era, Lines, Way, handshake, reached
from tests.support.raw import META, MODERN, HandshakeSession, decoded

SERVERS = {"s": {"command": sys.executable, "args": [str(Path(__file__).with_name("waiting_server.py"))]}}
TOOL = "s__t"


class Messages:
    """One client of one gateway. `answers` are what came, as far as nobody asked for it."""

    def __init__(self, era: Era) -> None:
        self.era = era
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def write(self, content: bytes) -> None:
        """Send one message, and do not wait for its answer."""
        raise NotImplementedError

    def call(self, written_id: str, arguments: str) -> bytes:
        """Return a call of the one tool, its id and arguments as they are to be written."""
        meta = f',"_meta":{json.dumps(META)}' if self.era == MODERN else ""
        params = f'{{"name":"{TOOL}","arguments":{arguments}{meta}}}'
        return f'{{"jsonrpc":"2.0","id":{written_id},"method":"tools/call","params":{params}}}'.encode()

    def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        return self.answers.get(timeout=ANSWER_SECONDS)

    def answer_to(self, content: bytes) -> dict[str, Any]:
        """Send one message and return the answer."""
        self.write(content)
        return self.answer()

    def until_ready(self) -> None:
        """Wait until the tool can be called."""
        end = time.monotonic() + ANSWER_SECONDS
        while "isError" in str(self.answer_to(self.call('"ready"', "{}"))) and time.monotonic() < end:
            threading.Event().wait(0.1)


class _Written(Messages):
    def __init__(self, process: subprocess.Popen[bytes], era: Era) -> None:
        super().__init__(era)
        self._lines = Lines(process, self._take)
        self.close = self._lines.close
        if era != MODERN:
            opening, opened = handshake(era)
            self.answer_to(opening)
            self.write(opened)

    def write(self, content: bytes) -> None:
        self._lines.write(content)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is not None and "method" not in message:
            self.answers.put(message)


class _Posts(Messages):
    def __init__(self, url: str, era: Era, headers: Mapping[str, str]) -> None:
        super().__init__(era)
        self._url = url
        self._headers = headers

    def write(self, content: bytes) -> None:
        threading.Thread(target=self._post, args=(content,), daemon=True).start()

    def _post(self, content: bytes) -> None:
        response = httpx2.post(self._url, content=content, headers=self._headers, timeout=ANSWER_SECONDS)
        self.answers.put(decoded(response) if response.content else {"status": response.status_code})


@contextmanager
def messages(way: Way, era: Era, home: Path) -> Iterator[Messages]:
    """Start a gateway with one server, and a client; both end with this context."""
    settings = {"gateway": {"tools_exposure": "full_proxy"}, "servers": SERVERS}
    with reached(way, home, settings) as end:
        if isinstance(end, str):
            yield from _over_http(end, era)
            return
        client = _Written(end, era)
        try:
            client.until_ready()
            yield client
        finally:
            client.close()


def _over_http(url: str, era: Era) -> Iterator[Messages]:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if era == MODERN:
        named = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": TOOL}
        client = _Posts(url, era, {**headers, **named})
        client.until_ready()
        yield client
        return
    with HandshakeSession(url, era) as session:
        client = _Posts(url, era, session.headers)
        client.until_ready()
        yield client
