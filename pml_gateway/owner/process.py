"""A process that serves, and the operations of its owner on it and on all of its gateways."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import anyio

from pml_gateway.errors import UsageError
from pml_gateway.gateway.approval_requests import ApprovalScope
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.owner.results import AskedApprovals, FoundApproval, OpenedConsole, Reconnecting
from pml_gateway.reports.status import ProcessStatus, read_logins
from pml_gateway.serve.runtime import Runtime

REFRESH_SECONDS = 20.0
"""Time limit in seconds for all servers to list their tools again."""

DRAIN_SECONDS = 60.0
"""Maximum seconds that requests in flight get when the gateway ends on purpose."""


class ServingProcess(ABC):
    """A process that serves: the gateway of this machine, which has more operations, or one of its own."""

    @property
    @abstractmethod
    def runtimes(self) -> Sequence[Runtime]:
        """Its open gateways."""

    @abstractmethod
    def snapshot(self) -> ProcessStatus:
        """Return its state, its clients and its servers."""

    async def status(self) -> ProcessStatus:
        """Return its status after a look at the logins, which other processes change."""
        for runtime in self.runtimes:
            await read_logins(runtime.gateway)
        return self.snapshot()

    async def refresh(self) -> ProcessStatus:
        """Have every server list its tools again."""
        async with anyio.create_task_group() as tasks:
            for runtime in self.runtimes:
                tasks.start_soon(runtime.gateway.refresh, REFRESH_SECONDS)
        return await self.status()

    async def reload(self) -> ProcessStatus:
        """Load the configuration of every gateway and serve by it.

        Raises:
            UsageError: a configuration is broken; the one before it serves on.
        """
        problems = [problem for runtime in self.runtimes if (problem := await runtime.reload()) is not None]
        if problems:
            raise UsageError("; ".join(dict.fromkeys(problems)))
        return self.snapshot()

    async def reconnect(self, server: str) -> Reconnecting:
        """Connect to a server anew, as after a login."""
        pools = (runtime.gateway.pool.upstreams for runtime in self.runtimes)
        found = [pool[server] for pool in pools if server in pool]
        if not found:
            raise UsageError("no such server")
        for upstream in found:
            upstream.connector.reconnect()
        return {"reconnecting": server, "pid": os.getpid()}

    async def approvals(self) -> AskedApprovals:
        """Return the calls that wait for an approval, and those that were answered lately."""
        rows = {row["id"]: row for each in self._approvals() for row in await each.shown()}
        return {"pid": os.getpid(), "approvals": list(rows.values())}

    async def approval(self, id: str) -> FoundApproval:
        """Return one of them with its arguments."""
        for each in self._approvals():
            if (found := await each.shown_whole(id)) is not None:
                return {"approval": found}
        return {"approval": None}

    async def answer_approval(
        self, id: str, answer: Literal["approve", "deny"], scope: Literal["call", "arguments", "tool"], passphrase: str
    ) -> FoundApproval:
        """Approve or deny the calls of an approval.

        Raises:
            UsageError: the passphrase is wrong.
        """
        for each in self._approvals():
            if await each.find(id) is not None:
                await each.answer(
                    id, is_approved=answer == "approve", scope=ApprovalScope(scope), passphrase=passphrase
                )
                return {"approval": await each.shown_whole(id)}
        return {"approval": None}

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Have calls of its gateways wait for approvals, which commands can give now."""
        async with AsyncExitStack() as stack:
            for each in self._approvals():
                await stack.enter_async_context(each.answerable())
            yield

    async def console(self) -> OpenedConsole:
        """Return an address that opens the console, if one of its gateways serves it."""
        links = (runtime.presence.console_link for runtime in self.runtimes)
        made = next((link for link in links if link is not None), None)
        return {"url": None if made is None else made(), "config": self.snapshot()["config"]}

    def _approvals(self) -> Sequence[Approvals]:
        """Return the approvals of its gateways, which may share them."""
        return list(dict.fromkeys(runtime.gateway.approvals for runtime in self.runtimes))
