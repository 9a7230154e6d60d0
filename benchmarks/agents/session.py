"""Carries out a task: the model's messages go to the gateway as calls until it makes none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.agents.model import Message, Model, ModelError, ToolCall
from benchmarks.agents.transcripts import Transcript
from benchmarks.agents.ways import ModelWay
from benchmarks.client import AnswerError, Client, Era, list_everything, open_client
from benchmarks.conversation import answer_text, compact
from benchmarks.office.expected import changes
from benchmarks.office.servers import fresh_tables, office_servers, other_servers
from benchmarks.office.system import NOW, Office
from benchmarks.office.tasks import OfficeTask
from pml_gateway.exposure.token_count import count_tokens
from tests.support.serving import serving

READY_SECONDS = 60
MAX_REQUESTS = 40
"""A model that has not ended after so many requests will not."""

MAX_ANSWER = 60_000
"""Characters of an answer that the model is shown, as clients cut them."""

SYSTEM = (
    "You work for Mara Lindqvist (mara.lindqvist@larkfield.example, handle mara.lindqvist), head of operations of "
    f"Larkfield Instruments. It is Monday, {NOW.replace('T', ', ')[:-3]}. Do what she asks with the tools, wholly and "
    "nothing beside it; nobody can answer questions. When it is done, say so in one sentence without calling a tool."
)


@dataclass(slots=True)
class Desk:
    """A gateway in front of the office, shown in one way."""

    way: ModelWay
    office: Office
    client: Client
    instructions: str

    async def carry_out(self, task: OfficeTask, model: Model, run: int) -> Transcript:
        """Do one task in an office that begins anew."""
        self.office.reset(fresh_tables())
        tools = await self._tools(task)
        system = f"{SYSTEM}\n\n{self.instructions}".strip()
        messages: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": task.ask}]
        told = Transcript(self.way.name, task.name, run, listed=count_tokens(compact(tools)))
        told.add_given(messages)
        try:
            await self._converse(model, tools, messages, told)
        except ModelError as exc:
            told.error = str(exc)
        before = fresh_tables()
        told.changes = [
            [each.kind, each.table, each.id, dict(each.fields)] for each in changes(before, self.office.tables)
        ]
        told.faults += task.faults(before, self.office.tables)
        told.messages = messages[1:]
        return told

    async def _converse(
        self, model: Model, tools: Sequence[Mapping[str, Any]], messages: list[Message], told: Transcript
    ) -> None:
        for _ in range(MAX_REQUESTS):
            reply = await model.answer(messages, tools)
            told.add_reply(reply)
            messages.append(reply.message)
            if not reply.calls:
                return
            answers = [await self._answer(call) for call in reply.calls]
            told.add_given(answers)
            messages.extend(answers)
        told.faults.append(f"no end after {MAX_REQUESTS} requests")

    async def _answer(self, call: ToolCall) -> Message:
        return {"role": "tool", "tool_call_id": call.id, "content": await self._called(call)}

    async def _called(self, call: ToolCall) -> str:
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError as exc:
            return f"error: the arguments are not JSON: {exc}"
        if not isinstance(arguments, dict):
            return "error: the arguments must be a JSON object"
        try:
            answer = await self.client.request("tools/call", {"name": call.name, "arguments": arguments})
            result = answer.result()
        except AnswerError as exc:
            return f"error: {exc}"
        return answer_text(result)[:MAX_ANSWER]

    async def _tools(self, task: OfficeTask) -> list[dict[str, Any]]:
        """The list as a request of chat completions has it."""
        if self.way.sends_intent:
            answer = await self.client.request("tools/list", {"query": task.ask})
            listed = answer.result()["tools"]
        else:
            _, _, listed = await list_everything(self.client)
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool["inputSchema"],
                },
            }
            for tool in listed
        ]


@asynccontextmanager
async def open_desk(way: ModelWay, others: int) -> AsyncIterator[Desk]:
    """Open the office behind a gateway, with at least so many tools of others."""
    office = Office(fresh_tables())
    upstreams = {**other_servers(others), **office_servers(office)}
    with TemporaryDirectory(prefix="pml-models-") as folder:
        async with serving(Path(folder), upstreams, gateway=way.gateway) as served:
            await served.gateway.refresh(READY_SECONDS)
            async with open_client(served.url, Era.STATELESS) as client:
                found = (await client.request("server/discover")).result()
                yield Desk(way, office, client, found.get("instructions") or "")
