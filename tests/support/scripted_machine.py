"""The gateway of a machine as far as commands see it: it answers each by what a test wrote down."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.types import JsonObject

STATUS: JsonObject = {
    "pid": 4711,
    "version": "0.1.0",
    "age_seconds": 200.0,
    "memory_bytes": 190_000_000,
    "started_by": "client",
    "url": None,
    "config": "",
    "transport": "machine",
    "is_ending": False,
    "gateways": 0,
    "mode": None,
    "tools": 0,
    "client_count": 0,
    "upstreams": [],
    "http_clients": None,
    "not_listening": None,
    "clients": [],
    "servers": [],
}

Answer = JsonObject | Callable[[], JsonObject]
ENDS = ("down", "restart")
STOP = b"stop\n"


@dataclass
class ScriptedMachine:
    """One that runs, and the commands that it was given."""

    endpoint: Endpoint
    asked: list[JsonObject] = field(default_factory=list)


@contextmanager
def scripted_machine(
    home: Path, answers: Mapping[str, Answer], config: Path | None = None
) -> Iterator[ScriptedMachine]:
    """Answer commands; `down` and `restart` end it, as soon as they are answered."""
    machine = ScriptedMachine(Endpoint.of(home, config or home / "config.yaml"))
    machine.endpoint.prepare()
    life = machine.endpoint.take_life()
    assert life is not None
    listener = machine.endpoint.listen()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            # Whoever only looks whether it is there says nothing; whoever was interrupted reads nothing.
            with connection, connection.makefile("rb") as lines, suppress(ConnectionError):
                line = lines.readline()
                if line == STOP:
                    return
                if line and _answer(connection, json.loads(line)):
                    return

    def _answer(connection: socket.socket, request: JsonObject) -> bool:
        """Whether it has ended."""
        name = request["operation"]["name"]
        machine.asked.append({"command": name, **request["operation"]["arguments"]})
        told = answers.get(name, {"error": f"unknown operation {name!r}"})
        is_end = name in ENDS
        if is_end:
            machine.endpoint.withdraw()
        said = told() if callable(told) else told
        answer = {"error": {"message": said["error"], "hint": ""}} if "error" in said else {"result": said}
        connection.sendall(json.dumps(answer).encode() + b"\n")
        return is_end

    def live() -> None:
        try:
            serve()
        finally:
            listener.close()
            os.close(life)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield machine
    finally:
        if thread.is_alive():
            with machine.endpoint.connect(5) as connection:
                connection.sendall(STOP)
        thread.join(10)
        assert not thread.is_alive()
