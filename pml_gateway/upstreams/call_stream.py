"""What a server sends in the answer of one HTTP call before the result: progress, notices, and questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
import anyio
import anyio.abc
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError

from pml_gateway.log import get_logger
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.questions import TOLD, OpenCall, Questions

logger = get_logger(__name__)

OnNotice = Callable[[str, JsonObject], None]
Respond = Callable[[JsonObject], Awaitable[None]]


class CallStream:
    """Takes the messages of one call's stream; while entered, questions are answered beside it."""

    def __init__(
        self,
        respond: Respond,
        questions: Questions,
        on_progress: ProgressFnT | None,
        on_notice: OnNotice,
        call: OpenCall | None,
    ) -> None:
        self._respond = respond
        self._questions = questions
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._call = call
        self._asked: dict[object, anyio.CancelScope] = {}
        self._tasks: list[anyio.abc.TaskGroup] = []

    async def __aenter__(self) -> Self:
        if self._call is not None:
            self._tasks.append(await anyio.create_task_group().__aenter__())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for tasks in self._tasks:
            tasks.cancel_scope.cancel()
            # Without the error, which the group would wrap.
            await tasks.__aexit__(None, None, None)

    async def take(self, message: JsonObject) -> JsonObject | None:
        """The message if it is the answer to the call."""
        match message:
            case {"method": "notifications/progress", "params": dict(progress)}:
                await self._report(progress)
            case {"method": "notifications/cancelled", "params": {"requestId": str() | int() as request_id}}:
                if (scope := self._asked.get(request_id)) is not None:
                    scope.cancel()
            case {"method": "ping", "id": request_id}:
                await self._respond({"id": request_id, "result": {}})
            case {"method": str(method), "id": str() | int() as request_id}:
                params = message.get("params")
                question = (request_id, method, params if isinstance(params, dict) else {})
                if self._tasks:
                    self._tasks[0].start_soon(self._answer, *question)
                else:
                    await self._answer(*question)
            case {"method": str(method), "params": dict(params)} if method in TOLD:
                await self._questions.tell(method, params, self._call)
            case {"method": str(method)}:
                params = message.get("params")
                self._on_notice(method, params if isinstance(params, dict) else {})
            case {"result": _} | {"error": _}:
                return message
        return None

    async def ended_early(self) -> None:
        """The server ended the stream before the answer, which it will be asked for again."""
        if self._call is not None:
            await self._call.audience.let_go()

    async def _report(self, progress: JsonObject) -> None:
        done, total, text = progress.get("progress"), progress.get("total"), progress.get("message")
        if self._on_progress is not None and isinstance(done, int | float):
            known = total if isinstance(total, int | float) else None
            await self._on_progress(done, known, text if isinstance(text, str) else None)

    async def _answer(self, request_id: str | int, method: str, params: JsonObject) -> None:
        with anyio.CancelScope() as scope:
            self._asked[request_id] = scope
            try:
                body: JsonObject = {"result": await self._questions.answer(method, params, self._call)}
            except MCPError as error:
                body = {"error": error.error.model_dump(exclude_none=True)}
            finally:
                del self._asked[request_id]
            try:
                await self._respond({"id": request_id, **body})
            except (aiohttp.ClientError, OSError) as error:
                # The call's own stream ends as well, or its deadline does.
                logger.warning("an answer did not reach its server: %s", type(error).__name__)
