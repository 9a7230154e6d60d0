"""Messages as careless servers write them: what is understood, what is logged as text, and what is refused clearly."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.transport import open_streams
from tests.results.test_repair import parrots
from tests.support import parrot
from tests.support.serving import Serving, serving

pytestmark = [pytest.mark.anyio, pytest.mark.field("B9")]

ANSWER = '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"fine"}]}}'
BOM = "\xef\xbb\xbf"
NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


def answer(text: str) -> str:
    return ANSWER.replace("fine", text)


def whole(**message: Any) -> str:
    """A message with these members, whose id is to be the request's."""
    return json.dumps(message).replace('"ID"', "ID")


RESULT = {"content": [{"type": "text", "text": "fine"}]}

EVERYWHERE: dict[str, tuple[str, str]] = {
    "a byte order mark": (BOM + ANSWER, "fine"),
    "one bad byte": (answer("caf\xe9!"), "caf\ufffd!"),
    "several bad bytes": (answer("\xff\xfe"), "\ufffd\ufffd"),
    "a cut character": (answer("\xe2\x82"), "\ufffd"),
    "a control character": (answer("a\x01\tb"), "a\x01\tb"),
    "spaces around": ("  \t" + ANSWER + " \r", "fine"),
    "no version": (whole(id="ID", result=RESULT), "fine"),
    "version 1.0": (whole(jsonrpc="1.0", id="ID", result=RESULT), "fine"),
    "a number for the version": (whole(jsonrpc=2.0, id="ID", result=RESULT), "fine"),
    "a null error": (whole(jsonrpc="2.0", id="ID", result=RESULT, error=None), "fine"),
    "more members": (whole(jsonrpc="2.0", id="ID", result=RESULT, method=None, params=None), "fine"),
    "a batch of one": (f"[{ANSWER}]", "fine"),
    "a result that is text": (whole(jsonrpc="2.0", id="ID", result="fine"), "fine"),
    "a result that is a list": (whole(jsonrpc="2.0", id="ID", result=["fine"]), "fine"),
}
"""By their fault: the bytes (latin-1) that answer a call, and the text that comes of it."""

ON_STDOUT: dict[str, tuple[str, str]] = {
    "id as a fraction": (ANSWER.replace("ID", "ID.0"), "fine"),
    "id as text": (ANSWER.replace("ID", '"ID"'), "fine"),
    "text before": ("Starting..." + ANSWER, "fine"),
    "text and a space before": ("Loading model: 100% " + ANSWER, "fine"),
    "text with braces before": ("{loaded} [1] {}" + ANSWER, "fine"),
    "text before and a byte order mark": (BOM + "ready>" + ANSWER, "fine"),
    "text behind": (ANSWER + "done", "fine"),
    "a colour before": ("\x1b[32mok\x1b[0m " + ANSWER + "\x1b[0m", "fine"),
    "a colour around": ("\x1b[1;31m" + ANSWER + "\x1b[0m", "fine"),
    "windows lines": ("\r\n\r\nlog\r\n" + ANSWER + "\r", "fine"),
    "zero bytes": ("\0\0" + ANSWER + "\0", "fine"),
    "several messages on a line": (NOTE + ANSWER + NOTE, "fine"),
    "a batch": (f"[{NOTE},{ANSWER}]", "fine"),
    "a log line in JSON": ('{"level":"info","id":ID,"msg":"working"}\n{"id":ID,"a":1}\n' + ANSWER, "fine"),
    "a log line with an error": ('{"level":"error","id":ID,"message":"no error"}\n' + ANSWER, "fine"),
    "a bad byte in text before": ("caf\xe9 " + ANSWER, "fine"),
    "a quoted message": ("sent '" + answer("other") + "'\n" + ANSWER, "fine"),
    "what it was asked": (
        'got {"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"write"}}\n' + ANSWER,
        "fine",
    ),
}


async def texts(served: Serving, name: str, cases: dict[str, tuple[str, str]]) -> None:
    for fault, (raw, expected) in cases.items():
        result = await served.call(f"{name}__write", {"raw": raw + "\n"})
        assert result["content"] == [{"type": "text", "text": expected}], (fault, result)


@pytest.mark.parametrize("name", ["stdio", "http", "events", "sse", "stdio_new", "http_new", "events_new"])
@pytest.mark.slow
async def test_a_faulty_message_is_understood(tmp_path: Path, name: str) -> None:
    async with parrots(tmp_path, [name]) as served:
        await texts(served, name, EVERYWHERE | (ON_STDOUT if name.startswith("stdio") else {}))
        # Its stream goes on.
        assert (await served.call(f"{name}__say", {"result": RESULT}))["content"] == RESULT["content"]


@pytest.mark.parametrize("name", ["http", "events"])
async def test_faulty_answers_of_other_methods_are_understood_over_http(tmp_path: Path, name: str) -> None:
    async with parrots(tmp_path, [name]) as served:
        result = await served.result("resources/read", {"uri": parrot.resource_saying({"contents": "fine"})})
    assert result["contents"][0]["text"] == "fine"


FIRST_WORDS = {
    "a byte order mark": BOM,
    "text": "Starting...",
    "a banner and text": "\x1b[36m== server ==\x1b[0m\n> ",
    "an empty line": "\r\n\0\r\n",
}


@pytest.mark.parametrize("words", FIRST_WORDS)
async def test_a_server_comes_up_whatever_it_prints_first(tmp_path: Path, words: str) -> None:
    code = f"import sys, runpy; sys.stdout.buffer.write({FIRST_WORDS[words].encode('latin-1')!r}); "
    code += f"sys.argv = ['parrot']; runpy.run_path({parrot.__file__!r}, run_name='__main__')"
    entry = {"command": sys.executable, "args": ["-c", code]}
    settings = Settings.model_validate({"servers": {"loud": entry}, "naming": {"prefix": "always"}})
    async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
        await served.gateway.refresh(30)
        assert (await served.call("loud__say", {"result": RESULT}))["content"] == RESULT["content"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
async def test_a_server_that_writes_utf_16_is_told_so(tmp_path: Path, encoding: str) -> None:
    code = (
        "import sys, json\nfor line in sys.stdin:\n m = json.loads(line)\n if 'id' in m:\n  "
        "r = {'jsonrpc': '2.0', 'id': m['id'], 'result': {}}\n  "
        f"sys.stdout.buffer.write((json.dumps(r) + '\\n').encode({encoding!r})); sys.stdout.flush()"
    )
    entry = {"command": sys.executable, "args": ["-c", code]}
    settings = Settings.model_validate({"servers": {"wide": entry}})
    async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
        await served.gateway.refresh(30)
        error = served.gateway.pool.upstreams["wide"].connector.last_error
    assert error is not None
    assert "UTF-16" in error.message
    assert "PYTHONUTF8" in (error.hint or "")


async def test_a_server_that_closes_its_output_is_started_again(tmp_path: Path) -> None:
    flag = tmp_path / "closed"
    code = (
        f"import os, pathlib, runpy, sys; flag = pathlib.Path({str(flag)!r})\n"
        "if not flag.exists():\n flag.touch(); os.close(1); sys.stdin.read()\n"
        f"sys.argv = ['parrot']; runpy.run_path({parrot.__file__!r}, run_name='__main__')"
    )
    entry = {"command": sys.executable, "args": ["-c", code]}
    settings = Settings.model_validate({"servers": {"early": entry}, "naming": {"prefix": "always"}})
    async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
        await served.gateway.refresh(30)
        with anyio.fail_after(60):
            while (result := await served.call("early__say", {"result": RESULT})).get("isError"):
                await served.gateway.refresh(30)
    assert result["content"] == RESULT["content"]
