"""The servers behind the replicas: tools that say whose call they answer, and a ledger of every execution.

    python -m benchmarks.cluster.server --era new --ledger FILE

`new` speaks 2026-07-28 and has tasks, `old` speaks 2025-11-25. A line of the ledger is a call's id and an event:
`begun`, `done` or `cancelled`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.mcp.sdk import request_channel
from tests.support.scripted_server import ScriptedServer, text_result, tool

TASKS = "io.modelcontextprotocol/tasks"
BEGUN, DONE, CANCELLED = "begun", "done", "cancelled"
NEW, OLD = "new", "old"

WRITE = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False}
READ = {"readOnlyHint": True}
PROPERTIES = {
    "call": {"type": "string", "description": "id of the call, for the ledger"},
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "seconds": {"type": "number"},
    "polls": {"type": "integer"},
    "rows": {},
}
EFFECTS: dict[str, dict[str, bool]] = {
    "echo": WRITE,
    "look": READ,
    "rows": READ,
    "total": READ,
    "ask": WRITE,
    "slow": WRITE,
    "wipe": {"readOnlyHint": False, "destructiveHint": True},
}
JOB = "job"
FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def question(text: str) -> dict[str, Any]:
    """Return the request with which `ask` asks."""
    params = {"mode": "form", "message": f"which {text}", "requestedSchema": FORM}
    return {"method": "elicitation/create", "params": params}


@dataclass
class Job:
    """A task of the server, which ends after so many requests for its state."""

    arguments: dict[str, Any]
    left: int
    status: str = "working"


@dataclass
class CountingServer:
    """A server of one era that writes down every execution."""

    era: str
    ledger: Path
    jobs: dict[str, Job] = field(default_factory=dict)
    _file: int = -1

    def scripted(self) -> ScriptedServer:
        """Return the MCP server."""
        self._file = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        names = {**EFFECTS, **({JOB: WRITE} if self.era == NEW else {})}
        return ScriptedServer(
            [tool(name, properties=PROPERTIES, annotations=hints) for name, hints in names.items()],
            self._call,
            modern=self.era == NEW,
            declares={"extensions": {TASKS: {}}} if self.era == NEW else {},
            past=self._tasks if self.era == NEW else None,
            name=self.era,
        )

    def _note(self, arguments: dict[str, Any], event: str) -> None:
        os.write(self._file, f"{arguments.get('call', '-')} {event}\n".encode())

    async def _call(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        given = call["arguments"]
        if call["name"] == "ask":
            return await self._ask(ctx, given)
        self._note(given, BEGUN)
        try:
            result = await self._result(call["name"], given)
        except anyio.get_cancelled_exc_class():
            self._note(given, CANCELLED)
            raise
        self._note(given, DONE)
        return result

    async def _result(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        text = str(given.get("text", ""))
        match name:
            case "rows":
                rows = [{"number": at, "text": f"{text} row {at}"} for at in range(given["count"])]
                return {**text_result(json.dumps({"rows": rows})), "structuredContent": {"rows": rows}}
            case "total":
                owner = given["rows"][0]["text"].rpartition(" row ")[0]
                return text_result(f"{text} {owner} {sum(row['number'] for row in given['rows'])}")
            case "slow":
                await anyio.sleep(given.get("seconds", 0.1))
        return text_result(f"{name} {text}")

    async def _ask(self, ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        text = str(given.get("text", ""))
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            answers = (ctx.params or {}).get("inputResponses")
            if not answers:
                return {
                    "resultType": "input_required",
                    "inputRequests": {"which": question(text)},
                    "requestState": str(given.get("call", "")),
                }
            if ctx.params.get("requestState") != str(given.get("call", "")):
                return {**text_result("the state is of another call"), "isError": True}
            answer = answers["which"]
        else:
            asked = question(text)
            channel = request_channel(ctx)
            answer = await channel.send_raw_request(asked["method"], asked["params"], {"timeout": 120})
        self._note(given, BEGUN)
        self._note(given, DONE)
        return text_result(f"ask {text} {(answer.get('content') or {}).get('answer')}")

    async def _tasks(self, ctx: Any) -> dict[str, Any] | None:
        """Answer what the SDK does not know: a call that becomes a task, and requests about tasks."""
        params = dict(ctx.params or {})
        if ctx.method == "tools/call" and params.get("name") == JOB:
            given = params.get("arguments") or {}
            self._note(given, BEGUN)
            task_id = f"job-{len(self.jobs)}-{given['call']}"
            self.jobs[task_id] = Job(given, given.get("polls", 2))
            return {"resultType": "task", **self._shown(task_id)}
        if not ctx.method.startswith("tasks/"):
            return None
        job = self.jobs[params["taskId"]]
        if ctx.method == "tasks/cancel":
            if job.status == "working":
                job.status = "cancelled"
                self._note(job.arguments, CANCELLED)
            return {}
        job.left -= 1
        if job.left <= 0 and job.status == "working":
            job.status = "completed"
            self._note(job.arguments, DONE)
        return self._shown(params["taskId"])

    def _shown(self, task_id: str) -> dict[str, Any]:
        job = self.jobs[task_id]
        time = "2026-11-30T10:00:00Z"
        form: dict[str, Any] = {"taskId": task_id, "status": job.status, "createdAt": time, "lastUpdatedAt": time}
        form |= {"ttlMs": 600_000, "pollIntervalMs": 50}
        if job.status == "completed":
            form["result"] = {"resultType": "complete", **text_result(f"{JOB} {job.arguments.get('text', '')}")}
        return form


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description="A server that writes down every execution.")
    parser.add_argument("--era", choices=(NEW, OLD), required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stderr.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stderr.flush()
    app = CountingServer(arguments.era, arguments.ledger).scripted().http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[listener])


if __name__ == "__main__":
    main()
