"""The terms of an upstream become connections to it: the shared one, and others beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pml_gateway.upstreams.connection import Connection, OnNotice, open_connection
from pml_gateway.upstreams.http import HttpSide
from pml_gateway.upstreams.questions import Questions
from pml_gateway.upstreams.session import HeaderMaps
from pml_gateway.upstreams.sole import SharedQuestions, SoleClient
from pml_gateway.upstreams.terms import Terms
from pml_gateway.upstreams.translate import translate
from pml_gateway.upstreams.transport import OpenStreams

if TYPE_CHECKING:
    from pml_gateway.upstreams.authorization import Authorization


class Opener:
    """Opens the connections of one upstream; `http` is what its shared one learns of HTTP beside the messages."""

    def __init__(
        self,
        terms: Terms,
        *,
        open_streams: OpenStreams,
        logs_dir: Path,
        authorization: Authorization | None,
        client: SoleClient | None,
        header_maps: HeaderMaps,
        on_notice: OnNotice,
        on_trouble: Callable[[], None],
    ) -> None:
        self._terms = terms
        self._open_streams = open_streams
        self._logs_dir = logs_dir
        self._authorization = authorization
        self._client = client
        self._header_maps = header_maps
        self._on_notice = on_notice
        self._on_trouble = on_trouble
        self.http = self._new_http()

    def shared(self, era: str) -> AbstractAsyncContextManager[Connection]:
        """The connection for everybody, preferably in this era; what it asks is asked of the one client there is."""
        self.http = self._new_http()
        timeout = self._terms.defaults.question_timeout
        asked = Questions() if self._client is None else SharedQuestions(self._client, timeout)
        return self._opened(self.http, asked, era, self._on_notice)

    @asynccontextmanager
    async def beside(
        self, questions: Questions, era: str, on_notice: OnNotice | None = None
    ) -> AsyncIterator[Connection]:
        """One more connection to the same server, which its caller holds; what it asks goes to `questions`."""
        http = self._new_http()
        try:
            async with self._opened(http, questions, era, on_notice or self._on_notice) as connection:
                await connection.has_begun()
                yield connection
        # Translated here, where it is known what HTTP said.
        except Exception as exc:
            # The shared connection finds out whether the server can be reached at all, and holds calls back if not.
            self._on_trouble()
            raise translate(exc, self._terms.upstream_id, http=http) from exc

    def _new_http(self) -> HttpSide:
        return HttpSide(self._terms.defaults.max_message_bytes, self._authorization)

    def _opened(
        self, http: HttpSide, questions: Questions, era: str, on_notice: OnNotice
    ) -> AbstractAsyncContextManager[Connection]:
        return open_connection(
            self._terms.upstream_id,
            self._terms.definition,
            open_streams=self._open_streams,
            era_hint=era,
            logs_dir=self._logs_dir,
            connect_timeout=self._terms.connect_timeout,
            header_maps=self._header_maps,
            on_notice=on_notice,
            http=http,
            questions=questions,
        )
