"""A gateway as small as can be, a process that bridges start: its arguments are home, configuration file, behaviour.

It writes what it gets into files of its home. A tool's name says what calling it does; what ends the gateway does so
only in the first one that was started, so that the next one answers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from pml_gateway.local.endpoint import Endpoint

NUMBER = 0
HOME = Path()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


NOT_TAKEN = {"code": -32600, "message": "this is not a JSON-RPC message"}


class Served:
    """One bridge."""

    def __init__(self, endpoint: Endpoint, connection: socket.socket, behaviour: str) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._behaviour = behaviour
        self._asked: dict[Any, Any] = {}

    def serve(self) -> None:
        lines = self._connection.makefile("rb")
        hello = json.loads(lines.readline())
        note("hellos", hello)
        match self._behaviour:
            case "refuses":
                return self.notice({"refused": {"message": "no such mode", "hint": "use one", "exit": 78}})
            case "refuses_later" if NUMBER > 1:
                return self.notice({"refused": {"message": "broken since", "hint": "mend it", "exit": 78}})
            case "refuses_without_hint":
                return self.notice({"refused": {"message": "no room", "hint": "", "exit": 1}})
            case "alone":
                return self.notice({"alone": True})
            case "older" if not hello.get("replaced"):
                self.notice({"leaving": "replaced"})
                self._endpoint.withdraw()
                os._exit(0)
        notes = [f"the gateway is older: {NUMBER}"] if hello.get("replaced") else []
        self.notice({"attached": {"pid": os.getpid(), "version": "1", "notes": notes}})
        for line in lines:
            note("received", {"gateway": NUMBER, "line": line.decode()})
            self.take(json.loads(line))
        self._connection.close()
        return None

    def take(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "initialize", "id": number, "params": params}:
                self.answer(number, {"protocolVersion": params["protocolVersion"], "capabilities": {}})
                self.notice({"state": {"of": NUMBER}})
            case {"method": str(), "id": float() | True}:
                self.send({"id": None, "error": NOT_TAKEN})
            case {"id": number, "params": [*_]}:
                self.send({"id": number, "error": NOT_TAKEN})
            case {"id": number, "method": str()} if "jsonrpc" not in message:
                self.send({"id": number, "error": NOT_TAKEN})
            case {"id": number, "params": {"requestState": state, "name": "echo"}} if state != NUMBER:
                fault = {"code": -32602, "message": "Invalid", "data": {"reason": "invalid_request_state"}}
                self.send({"id": number, "error": fault})
            case {"method": "tools/call", "id": number, "params": {"name": name, **rest}}:
                arguments: Any = rest.get("arguments", {})
                self.call(number, name, arguments)
            case {"method": "subscriptions/listen", "id": number}:
                meta = {"io.modelcontextprotocol/subscriptionId": number}
                for name in ("subscriptions/acknowledged", "tools/list_changed"):
                    self.send({"method": f"notifications/{name}", "params": {"notifications": {}, "_meta": meta}})
            case {"method": _, "id": number}:
                self.answer(number, {})
            case {"id": question, "result": result}:
                self.answer(self._asked.pop(question), {"said": result})

    def call(self, number: Any, name: str, arguments: dict[str, Any]) -> None:
        first = NUMBER == 1
        match name:
            case "before_sent" if first:
                die()
            case "after_sent" | "after_sent_repeatable" if first:
                self.notice({"sent": number, "repeatable": name == "after_sent_repeatable"})
                die()
            case "always_fatal":
                die()
            case "in_the_answer" if first:
                self.notice({"sent": number, "repeatable": False})
                self.raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[' % number)
                die()
            case "in_a_question" if first:
                self.ask(number)
                die()
            case "asks_later":
                self.answer(number, {"resultType": "input_required", "requestState": NUMBER})
            case "asks" | "in_a_question":
                self.ask(number)
            case "leaves" if first:
                self.notice({"leaving": arguments["as"]})
                self.answer(number, {"by": NUMBER})
                self._endpoint.withdraw()
                os._exit(0)
            case "never":
                pass
            case "big":
                self.answer(number, {"x": "x" * arguments["size"]})
            case "stuck":
                time.sleep(3600)
            case _:
                self.answer(number, {"by": NUMBER, "echo": arguments})

    def ask(self, number: Any) -> None:
        self._asked[0] = number
        self.send({"id": 0, "method": "elicitation/create", "params": {"message": f"by {NUMBER}"}})

    def notice(self, said: dict[str, Any]) -> None:
        self.raw(b"!" + json.dumps(said).encode() + b"\n")

    def answer(self, number: Any, result: dict[str, Any]) -> None:
        self.send({"id": number, "result": result})

    def send(self, message: dict[str, Any]) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def raw(self, content: bytes) -> None:
        self._connection.sendall(content)


def note(name: str, said: dict[str, Any]) -> None:
    with (HOME / name).open("a") as file:
        file.write(json.dumps(said) + "\n")


def main() -> None:
    global NUMBER, HOME
    home, config, behaviour = sys.argv[1:]
    HOME = Path(home)
    endpoint = Endpoint.of(home, config)
    note("starts", {"pid": os.getpid()})
    NUMBER = len((HOME / "starts").read_text().splitlines())
    if behaviour == "fails" or (behaviour == "fails_later" and NUMBER > 1):
        sys.stderr.write("no such model\n")
        sys.exit(78)
    if behaviour == "is_killed" or (behaviour == "is_killed_once" and NUMBER == 1):
        die()
    life = endpoint.take_life()
    if life is None:
        sys.exit(3)
    if behaviour == "hangs":
        time.sleep(3600)
    listener = endpoint.listen()
    # A bridge that a test leaves behind leaves no gateway.
    signal.alarm(120)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=Served(endpoint, connection, behaviour).serve, daemon=True).start()


if __name__ == "__main__":
    main()
