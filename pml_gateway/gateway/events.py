"""Events of clients: a finished call, a search, a list."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.results.settle import Route
from pml_gateway.telemetry.events import Events, code_of, outcome_of
from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A tool was called, whatever the way; `began` is wall-clock time, and `run` names what the call belongs to."""

    state: GatewayState
    scope: RequestScope
    tool: CatalogTool
    route: Route
    run: str
    arguments: JsonObject
    code: str
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ToolsSearched:
    """A client searched for tools and was shown `hits`, the first of them at place `offset`."""

    state: GatewayState
    scope: RequestScope
    query: str
    hits: Sequence[CatalogTool]
    offset: int


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """A client was given a list, selected by `intent` where its mode reads one."""

    state: GatewayState
    scope: RequestScope
    intent: str | None
    tools_json: bytes
    digest: bytes
    version: str


@dataclass(slots=True)
class RunningCall:
    """A call that has no result yet."""

    result: JsonObject | None = None


@contextmanager
def calling(
    events: Events,
    state: GatewayState,
    scope: RequestScope,
    tool: CatalogTool,
    route: Route,
    run: str,
    arguments: JsonObject,
) -> Iterator[RunningCall]:
    """Tell how one call ended."""
    call = RunningCall()
    if not events.reach(CallEnded):
        yield call
        return
    began = time.time()
    try:
        yield call
        code = outcome_of(call.result)
    except BaseException as error:
        code = code_of(error)
        raise
    finally:
        seconds = time.time() - began
        events.publish(CallEnded(state, scope, tool, route, run, arguments, code, began, seconds))
