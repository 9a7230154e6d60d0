"""A `tools/call` becomes one call of the tool's own upstream, or an answer of a meta-tool."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import get_args

from mcp_types.methods import SERVER_RESULTS
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import (
    GatewayError,
    InvalidInputError,
    ToolForbiddenError,
    ToolNotFoundError,
    UpstreamProtocolError,
    UpstreamUnavailableError,
)
from pml_gateway.exposure.actions import adapt, choose
from pml_gateway.log import get_logger
from pml_gateway.policy.view import ALIAS_SEPARATORS, View
from pml_gateway.results.store import Resolved
from pml_gateway.server.composites import CompositeCalls
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.listing import expose
from pml_gateway.server.meta_definitions import ALIASES, AVAILABLE, enabled_meta_tools
from pml_gateway.server.namespaces import check_action, is_listed, namespace_called
from pml_gateway.server.outcomes import Call, Outcome, Outcomes, Route, started
from pml_gateway.server.request import CallOptions, RequestScope, call_intent, effective_mode
from pml_gateway.server.results import error_result
from pml_gateway.server.state import GatewayState
from pml_gateway.server.validation import check_arguments, check_object
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import COMPOSITES
from pml_gateway.workflow.suspended import SuspendedRuns

logger = get_logger(__name__)


class Caller:
    """Serves every call of one gateway; meta-tools are handed in by name."""

    def __init__(self, gateway: Gateway, meta_tools: Mapping[str, MetaTool]) -> None:
        self._gateway = gateway
        self._meta_tools = meta_tools
        self.outcomes = Outcomes(gateway)
        self.suspended = SuspendedRuns()
        self._composites = CompositeCalls(gateway, self)

    async def call(
        self, scope: RequestScope, name: str, arguments: JsonObject, options: CallOptions, version: str = LATEST_VERSION
    ) -> JsonObject:
        """The result of a direct call; failures are results too, never exceptions."""
        try:
            state = await self._gateway.ready()
            view = state.view(scope.client)
            meta_name = self._meta_name(name, state, view)
            namespace = namespace_called(state, view, name, arguments)
            if state.settings.gateway.direct_calls == "listed":
                own_name = meta_name or (None if namespace is None else namespace.name)
                await self._require_listed(state, view, scope, own_name, name)
            if meta_name is not None:
                result = await self._meta_tools[meta_name](scope, arguments, options)
            elif namespace is not None:
                call = adapt(namespace, choose(namespace, arguments), arguments)
                check = partial(check_action, namespace, call)
                outcome = await self.run(scope, call.tool, call.arguments, options, route="meta", check=check)
                result = outcome.result
            else:
                tool = self.find(state, scope, name)
                result = (await self.run(scope, tool, arguments, options, route="direct")).result
            result = for_version(_writable(result), version)
            _check_result(result, name, version)
        except GatewayError as error:
            return for_version(_writable(error_result(error)), version)
        return result

    async def as_owner(
        self, scope: RequestScope, meta_tool: str, arguments: JsonObject, options: CallOptions
    ) -> JsonObject:
        """The result of a meta-tool, whether or not clients are given it; for commands of the gateway's owner."""
        try:
            return for_version(_writable(await self._meta_tools[meta_tool](scope, arguments, options)), LATEST_VERSION)
        except GatewayError as error:
            return for_version(_writable(error_result(error)), LATEST_VERSION)

    async def run(
        self,
        scope: RequestScope,
        tool: CatalogTool,
        arguments: JsonObject,
        options: CallOptions,
        *,
        route: Route,
        if_none_match: str | None = None,
        run: str = "",
        check: Callable[[JsonObject], None] | None = None,
        refs: tuple[str, ...] | None = None,
    ) -> Outcome:
        """Make one call: references in the arguments are resolved, then checked, and the result is settled.

        Args:
            scope: who calls.
            tool: a tool this client may see.
            arguments: as the client sent them.
            options: what accompanies the call.
            route: how it came; direct calls are checked by their upstream alone.
            if_none_match: the etag of the result the client holds.
            run: what this call belongs to, for the lineage of its result.
            check: refuses wrong arguments in the words of how the tool was called; by its schema unless given.
            refs: the references that the arguments were made of, where they have been replaced already.

        Raises:
            GatewayError: nothing was sent, or what kept the upstream from answering.
        """
        replaced = None if refs is None else Resolved(arguments, refs)
        resolved = replaced or await self.outcomes.resolve(scope, arguments)
        check_object(resolved.arguments)
        is_composite = tool.upstream_id == COMPOSITES and COMPOSITES not in self._gateway.pool.upstreams
        if check is not None:
            check(resolved.arguments)
        elif route != "direct" or is_composite:
            check_arguments(tool, resolved.arguments)
        call = started(Call(scope.client, tool, route, arguments, resolved.refs, if_none_match, run))
        if is_composite:
            result = await self._composites.call(scope, tool, resolved.arguments, options)
        else:
            result = await self.call_upstream(tool, resolved.arguments, options)
        return await self.outcomes.settle(call, result)

    async def call_upstream(self, tool: CatalogTool, arguments: JsonObject, options: CallOptions) -> JsonObject:
        """Send one call to the tool's upstream and return its result as it came.

        Raises:
            UpstreamError: what kept the upstream from answering.
            ToolForbiddenError: the tool only runs as a task, which the gateway does not relay.
        """
        if tool.task_only:
            raise ToolForbiddenError(
                f"{tool.qualified_name} only runs as a task (execution.taskSupport: required)",
                hint="tasks are not relayed; connect to this server directly for it",
            )
        upstream = self._gateway.pool.upstreams.get(tool.upstream_id)
        if upstream is None:
            raise UpstreamUnavailableError(f"{tool.upstream_id}: no longer configured")
        params: JsonObject = {"name": tool.name, "arguments": arguments}
        if options.meta:
            params["_meta"] = options.meta
        if options.input_responses is not None:
            params["inputResponses"] = options.input_responses
        if options.request_state is not None:
            params["requestState"] = options.request_state
        _check_text(params)
        with self._gateway.call_in_flight():
            return await upstream.request(
                "tools/call", params, on_progress=options.on_progress, audience=options.audience
            )

    def find(self, state: GatewayState, scope: RequestScope, name: str, *, inside: bool = False) -> CatalogTool:
        """As `find`, but a tool of a server that has not listed anything yet is unavailable rather than unknown.

        Only for clients that may see every tool of that server: for others, even the server's name is none of theirs.
        """
        view = state.view(scope.client, inside=inside)
        try:
            return find(view, name)
        except ToolNotFoundError:
            for upstream_id, upstream in self._gateway.pool.upstreams.items():
                begins = name.startswith(tuple(f"{upstream_id}{separator}" for separator in ALIAS_SEPARATORS))
                unlisted = upstream.last_listed is None and upstream_id not in state.catalog.listed_upstreams
                if (
                    begins
                    and unlisted
                    and scope.client.sees_everything
                    and not state.settings.gateway.blacklisted_tools
                ):
                    raise UpstreamUnavailableError(
                        f"{upstream_id}: its tools are not known yet ({upstream.last_error or 'it is starting'})",
                        hint="try again in a moment",
                    ) from None
            raise

    def _meta_name(self, name: str, state: GatewayState, view: View) -> str | None:
        enabled = enabled_meta_tools(state.settings)
        if name in AVAILABLE:
            return name if name in enabled else None
        meta_name = ALIASES.get(name)
        return meta_name if meta_name in enabled and view.resolve(name) is None else None

    async def _require_listed(
        self, state: GatewayState, view: View, scope: RequestScope, own_name: str | None, name: str
    ) -> None:
        mode = effective_mode(scope, state.settings.gateway)
        exposure = await expose(state, view, mode, call_intent(scope, state.settings.gateway))
        if own_name is None:
            listed = find(view, name).qualified_name in exposure.names()
        else:
            listed = exposure.meta_tools and is_listed(own_name, state, view, exposure)
        if not listed:
            hint = "call it through call_tool" if exposure.meta_tools else "ask the gateway's owner to list it"
            raise ToolForbiddenError(
                f"{name!r} is not on this client's list, and gateway.direct_calls is 'listed'",
                hint="call it as an action of its namespace" if exposure.namespaces else hint,
            )


MetaTool = Callable[[RequestScope, JsonObject, CallOptions], Awaitable[JsonObject]]
"""A meta-tool's answer to one call; what it raises becomes an error result."""


def find(view: View, name: str) -> CatalogTool:
    """The visible tool of this name.

    Raises:
        ToolNotFoundError: with the closest visible names; a hidden tool gives the same answer as an unknown one.
    """
    tool = view.resolve(name)
    if tool is not None:
        return tool
    closest = view.closest(name)
    hint = f"did you mean {', '.join(closest)}?" if closest else "search_tools finds tools by what they do"
    raise ToolNotFoundError(f"no tool named {name!r}", hint=hint, details={"closest": closest})


def _check_text(params: JsonObject) -> None:
    """Refuse half characters, which JSON can name and UTF-8 cannot carry: they would end a connection others share."""
    try:
        # As the SDK writes it, inside the message around it.
        to_json([[params]])
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
        reason = "a lone surrogate, which is no character" if "surrogate" in str(error) else "more than JSON can carry"
        raise InvalidInputError(f"the arguments contain {reason}", hint="or are nested too deeply") from None


def _writable(result: JsonObject) -> JsonObject:
    """The result without what JSON in UTF-8 cannot carry: one tool's broken text must not end a connection."""
    try:
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        text = json.dumps(result, ensure_ascii=False).encode("utf-8", "replace")
        replaced: JsonObject = json.loads(text, parse_constant=lambda _: None)
        return replaced
    return result


def _check_result(result: JsonObject, name: str, version: str) -> None:
    """Refuse what the protocol does not allow here, where it can still be told as the upstream's fault.

    The SDK's own check takes any object for a question to the client, and then drops its content.
    """
    kind = result.get("resultType") or "complete"
    if kind == "input_required" and version >= LATEST_VERSION:
        return
    if kind != "complete":
        raise UpstreamProtocolError(
            f"{name!r} answered with {str(kind)[:40]!r}, which protocol {version} cannot carry to this client",
            hint="the tool asks its user something; use a client of protocol 2026-07-28",
        )
    try:
        _result_model(version).model_validate(result)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"/{part}" for part in fault["loc"])
        raise UpstreamProtocolError(
            f"the result of {name!r} is not valid in protocol {version}: {where}: {fault['msg']}",
            hint="the call was executed; the fault is the server's",
        ) from error


@cache
def _result_model(version: str) -> type[BaseModel]:
    shapes = SERVER_RESULTS[("tools/call", version)]
    models: tuple[type[BaseModel], ...] = get_args(shapes) or (shapes,)
    return next(model for model in models if model.__name__ == "CallToolResult")


def for_version(result: JsonObject, version: str) -> JsonObject:
    """The result in the shapes a protocol version allows.

    2026 requires a result type, which older upstreams do not send; before it, structured content is an object.
    """
    if version >= LATEST_VERSION:
        return {**result, "resultType": result.get("resultType") or "complete"}
    structured = result.get("structuredContent")
    if structured is None or isinstance(structured, dict):
        return result
    return {key: value for key, value in result.items() if key != "structuredContent"}
