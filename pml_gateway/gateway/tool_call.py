"""A call of a tool on its way: by a client, by a meta-tool, or as a step."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from pml_gateway.catalog.apps import opens_page
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped
from pml_gateway.config.settings import CALLS_BY_EFFECT
from pml_gateway.errors import GatewayError, ToolForbiddenError, ToolHeldBackError, ToolNotFoundError
from pml_gateway.exposure.grouping import Namespace
from pml_gateway.exposure.history import ListBasis
from pml_gateway.exposure.instructions import NO_SYSTEMS
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.modes import ModeExposure
from pml_gateway.exposure.namespaces import ActionCall, adapt, call_signature, choose, type_problems
from pml_gateway.exposure.unfilled import filled, parameters_of
from pml_gateway.exposure.validation import ValidArguments, check_arguments, check_object, fitted, refusal
from pml_gateway.exposure.vocabulary import CALL_TOOL
from pml_gateway.gateway.call import TOOL_CALL, Attempt, CallContext, missing
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.gateway.handles import HandledCall
from pml_gateway.gateway.request import CallOptions, call_intent, effective_mode, followed, history_of
from pml_gateway.gateway.tasks import USED_TOOLS
from pml_gateway.gateway.tool_list import expose, servers_of
from pml_gateway.mcp.capabilities import TASKS
from pml_gateway.policy.rules import HidingRule
from pml_gateway.results.content import Content, noted
from pml_gateway.results.settle import Call, PresentedResult, Route
from pml_gateway.results.store import visible_to
from pml_gateway.types import Effect, JsonObject

NOTHING = Content("json", None)

MAX_NAMESAKES = 3
"""Maximum number of tools that an error names of those with the same name."""


class ToolCall(Attempt):
    """One call of a tool.

    Args:
        context: the request that it is part of.
        name: the tool, meta-tool or namespace, as it was called.
        arguments: as the client sent them.
        route: how it came; direct calls are checked by their server alone.
        run_name: what it belongs to, for the lineage of its result.
        if_none_match: the etag of the result that the client holds.
        refs: the references that the arguments were made of, where they have been replaced already.
        own: the meta-tool, where the gateway's owner calls one.
        max_effect: the strongest effect that the call may have.
    """

    def __init__(
        self,
        context: CallContext,
        name: str,
        arguments: JsonObject,
        route: Route,
        *,
        run_name: str = "",
        if_none_match: str | None = None,
        refs: tuple[str, ...] | None = None,
        own: MetaTool | None = None,
        max_effect: Effect = Effect.DESTRUCTIVE,
    ) -> None:
        super().__init__(context, TOOL_CALL, name, arguments)
        self.route: Route = route
        self.run_name = run_name
        self.refs = refs
        self.own = own
        self.is_outermost = route == "direct" or own is not None
        self.presented = PresentedResult({}, NOTHING)
        self._if_none_match = if_none_match
        self.max_effect = max_effect
        self._namespace: Namespace | None = None
        self._action: ActionCall | None = None
        self._ignored: tuple[str, ...] = ()
        self._fitting = ValidArguments(arguments)
        self._unfilled: list[JsonObject] = []
        self._sent: Call | None = None
        self._is_handle = False
        self._namesakes: list[CatalogTool] = []
        self.is_by_name = False
        """True if a server's tool was called by its name, so that the server's errors are answered as such."""

    @property
    def sent_arguments(self) -> JsonObject:
        """Return the arguments as they are sent, once they are checked."""
        return self._fitting.arguments

    def resolve(self) -> None:
        """Find a meta-tool, an action of a namespace, or a tool; in other calls, tools alone."""
        context = self.context
        if self.route == "direct":
            self.own = self._meta_tool()
            if self.own is None and context.state.namespaces(context.view):
                self._namespace = context.callees.namespace(self.name, self.arguments)
        self.is_by_name = self.own is None and self._namespace is None
        if self.is_by_name:
            self.tool = self._server_tool()
        if self.tool is not None:
            self.server = self.tool.upstream_id

    def _server_tool(self) -> CatalogTool | None:
        """Return the tool of this name that the model calls, or a user interface in a client that shows them.

        Calls of both look alike, and an interface knows its server's own names alone. If several servers have the
        name, the tool is the one whose interface the session opened.
        """
        name, view, scope = self.name, self.context.view, self.context.scope
        if self.route != "direct" or not scope.shows_apps:
            return view.resolve(name)
        apps = self.context.state.view(scope.client, for_apps=True)
        self._namesakes = [] if view.listed(name) else [*view.namesakes(name), *apps.namesakes(name)]
        if len(self._namesakes) < 2:
            return view.resolve(name) or apps.resolve(name)
        own = [tool for tool in self._namesakes if tool.upstream_id in self._opened]
        return own[0] if len(own) == 1 else None

    @property
    def _opened(self) -> Collection[str]:
        """Return the servers whose user interfaces the session opened."""
        memory = self.context.scope.memory
        return () if memory is None else memory.interfaces

    def _meta_tool(self) -> MetaTool | None:
        """Return the enabled meta-tool of this name, or of this alias if no tool has it."""
        context, name = self.context, self.name
        tool = context.meta_tools.find(name)
        if tool is None or not tool.is_enabled(context.settings):
            return None
        return tool if name == tool.name or context.view.resolve(name) is None else None

    async def authorise(self) -> Decision:
        """Refuse what does not exist for the client, and what it may not call because it is not listed."""
        if self.tool is None and self.is_by_name:
            error = self._missing()
            return CallRefusal(error, "held back" if isinstance(error, ToolHeldBackError) else "")
        # A client may show a page that it kept from an earlier session.
        if self.tool is not None and self.tool.app_only and self._opened and self.server not in self._opened:
            error = ToolForbiddenError(
                f"{self.tool.qualified_name!r} is for the user interface of {self.server!r} alone, "
                "and this session opened that of another server",
                hint=f"open it by a tool of {self.server!r} first",
            )
            return CallRefusal(error, HidingRule.APPS)
        if self.route == "direct" and self.context.settings.gateway.direct_calls == "listed":
            return await self._unlisted()
        return None

    def _missing(self) -> GatewayError:
        """Return the error for a name without a tool; of the meta-tools that call others, it names those there are."""
        context = self.context
        if len(self._namesakes) > 1:
            closest = sorted(tool.qualified_name for tool in self._namesakes)[:MAX_NAMESAKES]
            return ToolNotFoundError(
                f"several servers have a tool named {self.name!r}",
                hint=f"call it as {' or '.join(closest)}",
                details={"closest": closest},
            )
        own = context.meta_tools.find(self.name)
        callers = context.callers() if own is not None and own.name in (CALL_TOOL, *CALLS_BY_EFFECT) else []
        if callers:
            hint = f"tools are called with {', '.join(callers)}"
            return ToolNotFoundError(f"no tool named {self.name!r}", hint=hint, details={"closest": callers})
        return missing(context.view, self.name, context.scope.client, context.gateway)

    async def _unlisted(self) -> Decision:
        context, state, view = self.context, self.context.state, self.context.view
        settings, history = context.settings.gateway, context.scope.history
        mode = effective_mode(context.scope, settings)
        now = ListBasis(call_intent(context.scope, settings), followed(context.scope, settings))
        exposure = await expose(state, view, mode, now.intent, now.followed)
        if self.own is not None:
            is_beside = not exposure.namespaces or self.own.beside_namespaces(context.settings, NO_SYSTEMS) is not None
            is_listed = exposure.meta_tools and is_beside
        elif self.tool is None:
            is_listed = exposure.meta_tools and exposure.namespaces
        else:
            is_listed = self._is_on(exposure, self.tool)
            given = None if history is None else history.given
            if not is_listed and given is not None and given != now:
                # The client learns of another list later than the list changes, and calls by the one that it has.
                of_given = await expose(state, view, mode, given.intent, given.followed)
                is_listed = self._is_on(of_given, self.tool)
        if is_listed:
            return None
        effect = self.tool.effect if self.tool is not None else Effect.READ
        callers = context.callers(effect)[:1] if exposure.meta_tools else []
        hint = f"call it through {callers[0]}" if callers else "ask the gateway's owner to list it"
        error = ToolForbiddenError(
            f"{self.name!r} is not on this client's list, and gateway.direct_calls is 'listed'",
            hint="call it as an action of its namespace" if exposure.namespaces else hint,
        )
        return CallRefusal(error, "gateway.direct_calls: listed")

    def _is_on(self, exposure: ModeExposure, tool: CatalogTool) -> bool:
        if tool.app_only and tool.upstream_id in servers_of(self.context.state, self.context.view, exposure):
            return True
        return tool.qualified_name in exposure.names()

    async def resolve_references(self) -> None:
        """Choose the action of a namespace, and replace references, which meta-tools pass on as they are."""
        context = self.context
        if self._namespace is not None:
            action = choose(self._namespace, self.arguments, context.callees.others())
            self._action = call = adapt(self._namespace, action, self.arguments)
            self.tool, self.server = call.tool, call.tool.upstream_id
            self.arguments, self._ignored = call.arguments, call.ignored
            # From here on it is a call through the gateway, as those of `call_tool` are.
            self.route = "meta"
        if self.tool is not None and self.refs is None and self.route != "direct":
            self.arguments, self._unfilled = filled(parameters_of(self.tool), self.arguments, self.tool.name)
        given = self.arguments
        if self.own is None and self.refs is None:
            found = await context.gateway.results.resolve(context.scope.client, given, visible_to(context.view))
            given, self.refs = found.arguments, found.refs
        self._fitting = ValidArguments(given)

    async def validate(self) -> None:
        """Fit the arguments, or refuse them in the words of how the tool was called; direct calls go as they came."""
        given = self._fitting.arguments
        if self.own is not None:
            reading = self.own.read(given, self.context.callees.parameters)
            self._fitting = ValidArguments(reading.fields)
            self._ignored = tuple(f"/{escaped(key)}" for key in reading.ignored)
            return
        check_object(given)
        if self._namespace is not None and self._action is not None:
            self._fitting = await check_action(self._namespace, self._action, given, self._unfilled)
        elif self.tool is not None and (self.route != "direct" or self.context.calls.server(self.server)):
            self._fitting = await check_arguments(self.tool, given, self._unfilled)

    def decide(self) -> Decision:
        """Refuse a stronger effect than the call may have."""
        if self.tool is None or self.tool.effect.is_within(limit := self.max_effect):
            return None
        return CallRefusal(self.context.too_strong(self.tool, limit), f"max_effect: {limit}")

    async def send(self) -> JsonObject:
        """Return the answer of the tool's server, or of the gateway itself."""
        if self.tool is not None:
            may_be_kept = self.route != "direct" or self.context.gateway.state.settings.references.mode == "all"
            self._sent = Call(
                self.context.scope.client,
                self.tool,
                self.route,
                self.arguments,
                self.refs or (),
                self._if_none_match,
                self.run_name,
                may_read=may_be_kept and self.context.may_read,
            )
            if self.route != "inside" and (used := USED_TOOLS.get()) is not None:
                used.add((self.tool.upstream_id, self.tool.name))
        own = self.context.calls.server(self.server)
        try:
            if own is None and self._sent is not None and (limit := self._time_to_wait()) is not None:
                return await self._handled(self._sent, limit)
            return await (own or self.context.calls.ask_server)(self, self.sent_arguments)
        except GatewayError as error:
            if self.tool is not None and not self.tool.idempotent and error.details.get("executed", "no") != "no":
                error.retryable = False
            raise

    def _time_to_wait(self) -> float | None:
        """Return the seconds that the client waits for a call before it gets a handle; None if it never does.

        Only calls that servers run as tasks go on without their requests, and only for clients without tasks.
        """
        context, tool = self.context, self.tool
        said = context.view.said.get(self.server)
        may_be_task = tool is not None and (
            tool.task_only or (said is not None and said.capabilities.has_extension(TASKS))
        )
        is_alone = self.route in ("direct", "meta") and context.options.task is None
        if not (may_be_task and is_alone and context.may_read and context.calls.tasks.is_running):
            return None
        upstream = context.gateway.pool.upstreams.get(self.server)
        return None if upstream is None else upstream.call_timeout

    async def _handled(self, call: Call, limit: float) -> JsonObject:
        """Return the answer of a server, or a handle of it."""
        context = self.context
        handled = HandledCall(context.calls.tasks, context.calls.settler, call, context.options, self.held)

        async def send(options: CallOptions) -> JsonObject:
            self.context = replace(context, options=options)
            return await context.calls.ask_server(self, self.sent_arguments)

        result = await handled.result(send, limit)
        self._is_handle = result is None
        return handled.handle() if result is None else result

    async def settle(self, result: JsonObject) -> JsonObject:
        """Store a server's result if it is large, and tell what was coerced and left out."""
        presented, coerced = PresentedResult(result, NOTHING), self._fitting.coerced
        if self._sent is not None and not self._is_handle:
            presented = await self.context.calls.settler.settle(self._sent, result)
        if coerced or self._ignored:
            told = noted(presented.result, ignored=self._ignored, coerced=coerced)
            presented = replace(presented, result=told, coerced=coerced)
        self.presented = presented
        scope = self.context.scope
        history = history_of(scope, self.context.state.settings.gateway)
        if self.tool is not None and history is not None and not result.get("isError"):
            history.note_use((self.tool.upstream_id, self.tool.name), time.time())
        if (
            scope.memory is not None
            and self.route == "direct"
            and self.tool is not None
            and opens_page(self.tool.definition)
        ):
            scope.memory.note_interface(self.server)
        return presented.result


async def check_action(
    namespace: Namespace, call: ActionCall, arguments: JsonObject, unfilled: Sequence[JsonObject] = ()
) -> ValidArguments:
    """Return the arguments of an action as its tool takes them, checked by type and then by the tool's schema.

    Args:
        namespace: what was called.
        call: the action, and where each argument stood in what was sent.
        arguments: the call's arguments as they would be sent, references resolved.
        unfilled: the problems of placeholders in them.

    Raises:
        InvalidInputError: with a JSON pointer into what was sent per fault, and the action's signature.
    """
    fitting, found = await fitted(call.tool, arguments, unfilled)
    if found:
        problems = [{**each, "path": call.place(each["path"])} for each in found]
        plain = [] if unfilled else type_problems(call, fitting.arguments, fitting.names)
        problems = [*plain, *(each for each in problems if "hint" in each)] if plain else problems
        raise refusal(problems, f"{namespace.name} {call.action}", call_signature(namespace, call.action))
    return ValidArguments(fitting.arguments, {call.place(path): done for path, done in fitting.coerced.items()})
