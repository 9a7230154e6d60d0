"""A stdio server that misbehaves as its arguments say; its first argument names how, the rest set sizes."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "sound"
SIZE = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def raw(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request: dict[str, Any], result: Any) -> None:
    send({"id": request["id"], "result": result})


def text(content: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}]}


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def tools() -> list[Any]:
    plain = {"name": "t", "inputSchema": {"type": "object"}}
    match MODE:
        case "huge_schema":
            many = {f"p{number}": {"type": "string", "description": "x" * 1000} for number in range(10_000)}
            return [plain, {"name": "huge", "inputSchema": {"type": "object", "properties": many}}]
        case "many_tools":
            return [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(SIZE)]
        case "wrong_tools":
            return [plain, 7, None, "t", {"name": 5}, {"inputSchema": {}}, {"name": "u", "inputSchema": []}]
        case "lone_surrogate":
            return [{**plain, "description": "cut \ud83d"}]
        case "deep_schema":
            schema: Any = {"type": "string"}
            for _ in range(60):
                schema = {"type": "object", "properties": {"a": schema}}
            return [plain, {"name": "deep", "inputSchema": schema}]
        case "remote_ref":
            refs = {"a": {"$ref": f"http://127.0.0.1:{SIZE}/schema.json"}, "b": {"$ref": "#/properties/b"}}
            return [{"name": "t", "inputSchema": {"type": "object", "properties": refs}}]
        case "slow_pattern":
            slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
            return [{"name": "t", "inputSchema": slow}]
        case _:
            return [plain]


def on_initialize(request: dict[str, Any]) -> None:
    if MODE == "silent":
        time.sleep(3600)
    if MODE == "closes":
        sys.stderr.write("missing API key\n")
        sys.exit(3)
    version = "1066-10-14" if MODE == "wrong_version" else request["params"]["protocolVersion"]
    info = {"name": "scripted", "version": "1"}
    answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    if MODE == "flood":
        note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}\n' * 500
        if os.fork() == 0:
            while True:
                raw(note)


def on_list(request: dict[str, Any]) -> None:
    if MODE == "no_list":
        answer(request, {"tools": "none"})
    elif MODE == "endless_pages":
        cursor = int(request.get("params", {}).get("cursor") or 0)
        answer(request, {"tools": [{"name": f"t{cursor}", "inputSchema": {}}], "nextCursor": str(cursor + 1)})
    elif MODE == "deep_list":
        raw(f'{{"jsonrpc":"2.0","id":{request["id"]},"result":{nested(10_000)}}}\n'.encode())
    else:
        answer(request, {"tools": tools()})


def on_call(request: dict[str, Any]) -> None:
    number = request["id"]
    match MODE:
        case "big_result" | "big_result_first":
            before = f'{{"jsonrpc":"2.0","id":{number},"result":' if MODE == "big_result" else '{"result":'
            after = "}\n" if MODE == "big_result" else f',"jsonrpc":"2.0","id":{number}}}\n'
            raw(before.encode() + b'{"content":[{"type":"text","text":"')
            for _ in range(SIZE):
                raw(b"x" * 1024 * 1024)
            raw(b'"}]}' + after.encode())
        case "lone_surrogate":
            answer(request, text("cut \ud83d"))
        case "bad_utf8":
            raw(f'{{"jsonrpc":"2.0","id":{number},"result":{{"content":[{{"type":"text","text":"'.encode())
            raw(b'\xff\xfe"}]}}\n')
        case "bad_json":
            raw(f'{{"jsonrpc":"2.0","id":{number},"result":{{,}}}}\n'.encode())
        case "deep_result":
            raw(f'{{"jsonrpc":"2.0","id":{number},"result":{nested(10_000)}}}\n'.encode())
        case "wrong_ids":
            send({"id": 999_999, "result": text("to nobody")})
            send({"id": str(number) + "x", "result": text("to nobody")})
            raw(b'{"jsonrpc":"2.0","id":null,"result":{}}\n{"jsonrpc":"2.0","id":[1],"result":{}}\n')
            answer(request, text("first"))
            answer(request, text("second"))
        case "garbage":
            raw(b"Server listening on stdio!\n\n\x00\x01\x02\n{}\n[]\n123\n" + b"x" * 100_000 + b"\n")
            answer(request, text("fine"))
        case "tells":
            answer(request, text(json.dumps({"env": dict(os.environ), "cwd": str(Path.cwd()), "args": sys.argv[3:]})))
        case "asks":
            send({"id": "q1", "method": "nobody/knows", "params": {}})
            reply = json.loads(sys.stdin.readline())
            answer(request, text(json.dumps(reply)))
        case "crash":
            sys.stderr.write("fatal: out of cheese\n")
            sys.stderr.flush()
            os._exit(9)
        case _:
            answer(request, text("fine"))


def main() -> None:
    if MODE == "noisy_stderr":
        for number in range(SIZE):
            sys.stderr.write(f"line {number} of {os.environ.get('API_TOKEN')} {'x' * 200}\n")
        sys.stderr.flush()
    for line in sys.stdin:
        request = json.loads(line)
        match request.get("method"):
            case "initialize":
                on_initialize(request)
            case "tools/list":
                on_list(request)
            case "tools/call":
                on_call(request)
            case _ if "id" in request and "method" in request:
                answer(request, {})
    if MODE == "last_words":
        sys.stderr.write("saved everything\n")


if __name__ == "__main__":
    main()
