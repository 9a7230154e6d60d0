"""The owner, who answers approvals at whichever replica."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from benchmarks.cluster.stand import Stand

WAIT_SECONDS = 10.0
POLL_SECONDS = 0.05
ASK_SECONDS = 5.0


@dataclass
class Owner:
    """The owner's connections to all replicas."""

    http: httpx2.AsyncClient
    origins: Sequence[str]
    errors: int = 0

    async def answer(self, client: str, answer: str, first: int, *, call: str = "", scope: str = "call") -> bool:
        """Answer what a client's call of this id waits for, found at one replica and answered at the next.

        Returns False if nothing waits within the time for it.
        """
        with anyio.move_on_after(WAIT_SECONDS):
            while True:
                row = await self._pending(client, call, first)
                if row is not None:
                    body = {"answer": answer, "for": scope}
                    if await self._asked("POST", f"/{row['id']}", first + 1, body) is not None:
                        return True
                await anyio.sleep(POLL_SECONDS)
        return False

    async def _pending(self, client: str, call: str, first: int) -> dict[str, Any] | None:
        for row in await self._asked("GET", "", first) or ():
            if row["state"] == "pending" and row["client"] == client:
                # Earlier calls of the client may wait as well, whose turns failed.
                shown = await self._asked("GET", f"/{row['id']}", first)
                if shown is not None and call in json.dumps(shown):
                    return dict(row)
        return None

    async def _asked(self, method: str, path: str, first: int, body: Any = None) -> Any:
        """Return the answer of the first replica that gives one."""
        for step in range(len(self.origins)):
            origin = self.origins[(first + step) % len(self.origins)]
            try:
                response = await self.http.request(method, f"{origin}/owner/approvals{path}", json=body)
            except httpx2.HTTPError:
                self.errors += 1
                continue
            if response.status_code == httpx2.codes.OK:
                return response.json()
            self.errors += 1
        return None


@asynccontextmanager
async def owning(stand: Stand) -> AsyncIterator[Owner]:
    """Run the owner of a stand."""
    headers = {"authorization": f"Bearer {stand.owner_token}"}
    async with httpx2.AsyncClient(timeout=ASK_SECONDS, trust_env=False, headers=headers) as http:
        yield Owner(http, [replica.origin for replica in stand.replicas])
