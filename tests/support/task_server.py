"""A server whose tools run as tasks, in the way of 2025-11-25 or of 2026-07-28.

A task works for as many requests of `tasks/get` as its call says, so that no test depends on time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.mcp.capabilities import APP_TYPE
from pml_gateway.mcp.sdk import connection_of, request_channel
from tests.support.scripted_server import CACHEABLE, ScriptedServer, resource, text_result, tool

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
CREATED = "2026-11-29T10:00:00Z"
NOT_FOUND, INVALID_PARAMS, NO_CAPABILITY = -32601, -32602, -32021

TASK_CAPABILITY: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
QUESTION = {
    "mode": "form",
    "message": "Which?",
    "requestedSchema": {"type": "object", "properties": {"which": {"type": "string"}}},
}

PAGE_META = {"ui": {"csp": {"connectDomains": ["https://a.test"]}, "permissions": {"camera": {}}}}

_PROPERTIES = {"polls": {"type": "integer"}, "message": {"type": "string"}}
SUPPORT = {"work": "optional", "only": "optional", "never": "forbidden", "asks": "optional", "fails": "optional"}
"""The tools, and whether they run as tasks."""

Era = Literal["old", "new"]


@dataclass
class Work:
    """One task of the server."""

    id: str
    tool: str
    left: int
    ttl: int | None
    status: str = "working"
    message: str = "begun"
    token: Any = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    asked: bool = False
    answer: Any = None

    def end(self, status: str) -> None:
        if not self.ended.is_set():
            self.status, self.message = status, status
            self.ended.set()


@dataclass
class TaskServer:
    """The server; `scripted` is what is started, `asked` the requests about tasks that reached it."""

    era: Era = "old"
    interval: int = 20
    polls: int = 2
    declares: bool = True
    """False if it has no tasks, and runs every call at once."""
    notifies: bool = False
    creation: anyio.Event | None = None
    """Awaited before a task is created."""
    page: str = ""
    """The page of its user interface, which shows `work`, and which alone calls `refresh`."""
    note: str = "note://today"
    required: tuple[str, ...] = ("only",)
    """The tools that run as tasks only."""
    tasks: dict[str, Work] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def scripted(self) -> ScriptedServer:
        new = self.era == "new"

        def execution(name: str) -> dict[str, Any]:
            return {} if new or not self.declares else {"execution": {"taskSupport": self._support(name)}}

        tools = [tool(name, properties=_PROPERTIES, **execution(name)) for name in SUPPORT]
        if self.page:
            tools[0]["_meta"] = {"ui": {"resourceUri": self.page}}
            tools.append(tool("refresh", _meta={"ui": {"resourceUri": self.page, "visibility": ["app"]}}))
        pages = [resource(self.page, mimeType=APP_TYPE, _meta=PAGE_META)] if self.page else []
        declared: dict[str, Any] = {"extensions": {TASKS: {}}} if new else {"tasks": TASK_CAPABILITY}
        return ScriptedServer(
            tools,
            methods=frozenset({"resources/list", "resources/read"}),
            resources=[resource(self.note), *pages],
            answer=self._answer,
            modern=new,
            declares=declared if self.declares else {},
            past=self._past,
        )

    def _support(self, name: str) -> str:
        return "required" if name in self.required else SUPPORT.get(name, "forbidden")

    async def _answer(self, _ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "resources/read" or params["uri"] != self.page:
            return None
        content = {"uri": self.page, "mimeType": APP_TYPE, "text": "<p>page</p>", "_meta": PAGE_META}
        return {"contents": [content], **CACHEABLE}

    async def _past(self, ctx: Any) -> dict[str, Any] | None:
        params = dict(ctx.params or {})
        if ctx.method == "tools/call":
            return await self._call(ctx, params)
        if not ctx.method.startswith("tasks/") or not self.declares:
            return None
        self.asked.append(ctx.method)
        is_new = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if ctx.method == "tasks/list" and not is_new:
            return {"tasks": [self._shown(each, ctx) for each in self.tasks.values()]}
        if is_new:
            self.headers.append(ctx.request.headers.get("mcp-name") if ctx.request is not None else params["taskId"])
            if TASKS not in _extensions(ctx):
                raise MCPError(NO_CAPABILITY, "Missing required client capability")
        if (work := self.tasks.get(params.get("taskId", ""))) is None:
            raise MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
        match ctx.method:
            case "tasks/get":
                await self._step(ctx, work)
                return self._shown(work, ctx, detailed=is_new)
            case "tasks/cancel":
                if work.ended.is_set() and not is_new:
                    raise MCPError(INVALID_PARAMS, "Cannot cancel task: already in a terminal status")
                work.end("cancelled")
                return {} if is_new else self._shown(work, ctx)
            case "tasks/update" if is_new:
                work.answer = params["inputResponses"]["which"]
                work.status, work.message = "working", "answered"
                return {}
            case "tasks/result" if not is_new:
                if work.status == "input_required" and not work.asked:
                    work.asked = True
                    meta = {RELATED: {"taskId": work.id}}
                    channel = request_channel(ctx)
                    work.answer = await channel.send_raw_request("elicitation/create", {**QUESTION, "_meta": meta})
                    work.status, work.message = "working", "answered"
                await work.ended.wait()
                return {**self._result(work), "_meta": {RELATED: {"taskId": work.id}}}
        return None

    async def _call(self, ctx: Any, params: dict[str, Any]) -> dict[str, Any] | None:
        name, arguments = params["name"], params.get("arguments") or {}
        self.calls.append(params)
        is_new = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        support = self._support(name) if self.declares else "forbidden"
        wanted = TASKS in _extensions(ctx) if is_new else "task" in params
        if support == "required" and not wanted:
            if is_new:
                data: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
                raise MCPError(NO_CAPABILITY, "Missing required client capability", data)
            raise MCPError(NOT_FOUND, "this tool runs as a task only")
        if support == "forbidden" and wanted and not is_new and self.declares:
            raise MCPError(NOT_FOUND, "this tool does not run as a task")
        if support == "forbidden" or not wanted:
            return self._result(Work("", name, 0, None))
        if self.creation is not None:
            await self.creation.wait()
        work = Work(f"server-{len(self.tasks) + 1}", name, arguments.get("polls", self.polls), None)
        work.ttl = (params.get("task") or {}).get("ttl", 60_000)
        work.token = (params.get("_meta") or {}).get("progressToken")
        self.tasks[work.id] = work
        return {"resultType": "task", **self._shown(work, ctx)} if is_new else {"task": self._shown(work, ctx)}

    async def _step(self, ctx: Any, work: Work) -> None:
        """One more request for the state of a task, which works on between them."""
        if work.ended.is_set() or work.status == "input_required":
            return
        if work.tool == "asks" and work.answer is None:
            work.status, work.message = "input_required", "asking"
            return
        work.left -= 1
        work.message = f"{max(work.left, 0)} left"
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS and work.token is not None:
            progress = {"progressToken": work.token, "progress": 100 - work.left, "message": "really"}
            await connection_of(ctx).notify("notifications/progress", progress)
        if work.left <= 0:
            work.end("failed" if work.tool == "fails" else "completed")
        if self.notifies:
            await connection_of(ctx).notify("notifications/tasks/status", self._shown(work, ctx))

    def _result(self, work: Work) -> dict[str, Any]:
        if work.tool == "fails":
            raise MCPError(-31999, "it failed", {"why": "test"})
        if work.status == "cancelled":
            raise MCPError(-32800, "cancelled")
        return text_result(f"{work.tool} {(work.answer or {}).get('content', '')}".strip())

    def _shown(self, work: Work, ctx: Any, *, detailed: bool = False) -> dict[str, Any]:
        is_new = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        ttl, interval = ("ttlMs", "pollIntervalMs") if is_new else ("ttl", "pollInterval")
        shown: dict[str, Any] = {
            "taskId": work.id,
            "status": work.status,
            "statusMessage": work.message,
            "createdAt": CREATED,
            "lastUpdatedAt": CREATED,
            ttl: work.ttl,
            interval: self.interval,
        }
        if detailed and work.status == "input_required":
            shown["inputRequests"] = {"which": {"method": "elicitation/create", "params": QUESTION}}
        if detailed and work.status == "completed":
            shown["result"] = {"resultType": "complete", **self._result(work)}
        if detailed and work.status == "failed":
            shown["error"] = {"code": -31999, "message": "it failed", "data": {"why": "test"}}
        return shown


def _extensions(ctx: Any) -> dict[str, Any]:
    given = ctx.session.client_capabilities
    return dict((given.extensions if given is not None else None) or {})


if __name__ == "__main__":
    # A real process: `python -m tests.support.task_server old|new`.
    anyio.run(TaskServer("new" if sys.argv[1] == "new" else "old").scripted.serve_stdio)
