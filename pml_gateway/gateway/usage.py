"""What requests do, noted as usage: which search led to a call, in which mode and stage, and how it ended."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachetools import LRUCache

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.gateway.request import RequestScope, call_intent, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import render
from pml_gateway.policy.client import Client
from pml_gateway.results.settle import Route
from pml_gateway.telemetry.events import INPUT_REQUIRED, outcome_of
from pml_gateway.types import ExposureMode, JsonObject
from pml_gateway.usage.recorder import CallRow, ListRow, Recorder, SearchRow, usage_name
from pml_gateway.usage.stages import stage_of

MAX_CLIENTS = 256
SEARCHES_REMEMBERED = 8
SEARCH_SECONDS = 1800.0
"""A call counts as led by one of its client's last searches if that is not older; a model calls what it found soon."""

CUSTOM = "custom"
"""The stage of settings that are none."""


@dataclass(slots=True)
class _Search:
    key: int
    at: float
    query: str
    ranks: dict[tuple[str, str], int]


@dataclass(slots=True)
class _Recent:
    """What one client did last; `intent` is that of its last list."""

    intent: str | None = None
    searches: deque[_Search] = field(default_factory=lambda: deque(maxlen=SEARCHES_REMEMBERED))


@dataclass(slots=True)
class CallNote:
    """One call while it runs."""

    result: JsonObject | None = None


class UsageNotes:
    """Takes note of what one gateway's clients do; without a recorder it does nothing."""

    def __init__(self, identity: str = "", recorder: Recorder | None = None) -> None:
        self._config = identity
        self._recorder = recorder
        self._recent: LRUCache[str, _Recent] = LRUCache(MAX_CLIENTS)
        self._stages: tuple[GatewayState | None, dict[ExposureMode, str]] = (None, {})

    @contextmanager
    def calling(
        self, state: GatewayState, scope: RequestScope, tool: CatalogTool, route: Route, run: str, arguments: JsonObject
    ) -> Iterator[CallNote]:
        """Watch one call; one that asks its user something is noted when it ends."""
        note = CallNote()
        if self._recorder is None or not state.settings.usage.record:
            yield note
            return
        began = time.time()
        code = ErrorCode.CANCELLED.value
        try:
            yield note
            code = outcome_of(note.result)
        except GatewayError as error:
            code = error.code.value
            raise
        # Counted, whatever it is, and raised again.
        except Exception:
            code = ErrorCode.INTERNAL.value
            raise
        finally:
            if code != INPUT_REQUIRED:
                self._called(state, scope, tool, _how(route, run), arguments, code, began)

    def _called(
        self,
        state: GatewayState,
        scope: RequestScope,
        tool: CatalogTool,
        how: str,
        arguments: JsonObject,
        code: str,
        began: float,
    ) -> None:
        if self._recorder is None:
            return
        mode = effective_mode(scope, state.settings.gateway)
        recent = self._recent.get(scope.client.id)
        intent = recent.intent if recent is not None and recent.intent else call_intent(scope, state.settings.gateway)
        key = (tool.upstream_id, tool.name)
        search = rank = None
        if recent is not None:
            for each in reversed(recent.searches):
                if key in each.ranks and began - each.at <= SEARCH_SECONDS:
                    search, rank = each.key, each.ranks[key]
                    break
        self._recorder.add(
            CallRow(
                began,
                self._config,
                *key,
                usage_name(scope.client),
                code,
                time.time() - began,
                how,
                mode.value,
                self._stage(state, mode),
                intent,
                search,
                rank,
                arguments if state.settings.usage.arguments else None,
            )
        )

    def searched(
        self, state: GatewayState, scope: RequestScope, query: str, hits: Sequence[CatalogTool], offset: int = 0
    ) -> None:
        """Take note of a search; a further page of one belongs to it."""
        if self._recorder is None or not state.settings.usage.record:
            return
        recent, now = self._of(scope.client), time.time()
        ranks = {(tool.upstream_id, tool.name): place for place, tool in enumerate(hits, offset + 1)}
        if offset and recent.searches and recent.searches[-1].query == query:
            recent.searches[-1].ranks.update(ranks)
            return
        mode = effective_mode(scope, state.settings.gateway)
        key = random.getrandbits(62)
        recent.searches.append(_Search(key, now, query, ranks))
        name = usage_name(scope.client)
        stage = self._stage(state, mode)
        self._recorder.add(SearchRow(now, self._config, key, name, mode.value, stage, query, tuple(ranks)))

    def listed(
        self, state: GatewayState, scope: RequestScope, intent: str | None, tools_json: bytes, version: str
    ) -> None:
        """Take note of a list that a client was given."""
        if self._recorder is None or not state.settings.usage.record:
            return
        self._of(scope.client).intent = intent
        client, mode = scope.client, effective_mode(scope, state.settings.gateway)

        def full() -> bytes:
            if mode is ExposureMode.FULL_PROXY:
                return tools_json
            view = state.view(client)
            return render(state, view, state.expose(view, ExposureMode.FULL_PROXY, None), version)

        stage = self._stage(state, mode)
        row = ListRow(time.time(), self._config, usage_name(client), mode.value, stage, tools_json, full)
        self._recorder.add(row)

    def _of(self, client: Client) -> _Recent:
        recent = self._recent.get(client.id)
        if recent is None:
            recent = self._recent[client.id] = _Recent()
        return recent

    def _stage(self, state: GatewayState, mode: ExposureMode) -> str:
        known, stages = self._stages
        if known is None or known.settings is not state.settings:
            stages = {}
            self._stages = (state, stages)
        if mode not in stages:
            stages[mode] = stage_of(state.settings.gateway, mode) or CUSTOM
        return stages[mode]


def _how(route: Route, run: str) -> str:
    match route:
        case "direct":
            return "direct"
        case "meta":
            return "call_tool"
        case "inside":
            return "composite"
        case "workflow":
            return "batch" if run == "call_batch" else "workflow"
