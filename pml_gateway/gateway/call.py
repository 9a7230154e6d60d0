"""One call on its way: its context, the stages that it passes, and the event that it ends in."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from mcp.shared.exceptions import MCPError

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.skills import skill_name
from pml_gateway.config.settings import CALLS_BY_EFFECT, Settings
from pml_gateway.delivery import SENDS, Sends
from pml_gateway.errors import (
    GatewayError,
    ToolForbiddenError,
    ToolHeldBackError,
    ToolNotFoundError,
    UnrecordedError,
)
from pml_gateway.exposure.instructions import NO_SYSTEMS
from pml_gateway.exposure.meta_tool import MetaTool, MetaTools
from pml_gateway.exposure.modes import lists_meta_tools
from pml_gateway.exposure.schema_text import outcome
from pml_gateway.exposure.vocabulary import CALL_TOOL
from pml_gateway.gateway.callees import Callees
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.gateway.host import Host
from pml_gateway.gateway.pending_runs import PendingRuns
from pml_gateway.gateway.request import CallOptions, RequestScope, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tasks import Tasks
from pml_gateway.policy.principal import OWNER, Principal, PrincipalKind
from pml_gateway.policy.view import Exclusion, View
from pml_gateway.results.settle import Settler
from pml_gateway.telemetry.events import PROTOCOL_ERROR, code_of, outcome_of
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.text import did_you_mean
from pml_gateway.types import Effect, JsonObject, effect_of

READ_RESULT = "read_result"

TOOL_CALL = "tools/call"


Serve = Callable[["Attempt", JsonObject], Awaitable[JsonObject]]
"""The way to a server: a call, and its arguments as the server takes them, to the result."""


class Calls(Protocol):
    """The parts that all calls of one gateway share: a place for results, the runs that wait for clients, and tasks."""

    settler: Settler
    pending_runs: PendingRuns
    tasks: Tasks

    def server(self, server: str) -> Serve | None:
        """Return what answers the calls of a tool that belongs to the gateway itself; None for those of servers."""

    async def ask_server(self, call: Attempt, arguments: JsonObject) -> JsonObject:
        """Return the answer of a tool's server to arguments as it takes them."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """A request while it is answered: who makes it, what that client sees, and what accompanies it."""

    gateway: Host
    calls: Calls
    state: GatewayState
    view: View
    scope: RequestScope
    options: CallOptions

    @property
    def settings(self) -> Settings:
        """Return the settings with what the client's rights replace."""
        return self.state.settings_of(self.scope.client)

    @property
    def meta_tools(self) -> MetaTools:
        """The meta-tools that exist for this client."""
        return self.state.meta_tools_of(self.view)

    @property
    def callees(self) -> Callees:
        """Tools and namespaces that the client may call."""
        return Callees(self.state, self.view)

    @property
    def may_read(self) -> bool:
        """Return True if the client can read stored results now; otherwise results are returned whole."""
        state, scope = self.gateway.state, self.scope
        tool, settings = (
            state.meta_tools_of(state.view(scope.client)).find(READ_RESULT),
            state.settings_of(scope.client),
        )
        if scope.is_last or tool is None or not tool.is_enabled(settings):
            return False
        gateway = settings.gateway
        return gateway.direct_calls != "listed" or lists_meta_tools(effective_mode(scope, gateway), gateway)

    def find(self, name: str, max_effect: Effect = Effect.DESTRUCTIVE) -> CatalogTool:
        """Return the visible tool of this name.

        Raises:
            GatewayError: see `missing` and `too_strong`.
        """
        tool = find(self.view, name, self.scope.client, self.gateway)
        if not tool.effect.is_within(max_effect):
            raise self.too_strong(tool, max_effect)
        return tool

    def too_strong(self, tool: CatalogTool, max_effect: Effect) -> GatewayError:
        """Return the error for a call of a tool with a stronger effect than it may have."""
        effect = "does not say what it changes" if tool.effect is Effect.UNKNOWN else f"is [{tool.effect}]"
        wider = [name for name in self.callers(tool.effect) if name in CALLS_BY_EFFECT]
        return ToolForbiddenError(
            f"{tool.qualified_name} {effect}, and this call may have the effect {max_effect} at most",
            hint=f"call it with {wider[0]}" if wider else "leave it out, or ask the user",
        )

    def callers(self, effect: Effect = Effect.READ) -> list[str]:
        """Return the meta-tools that call tools with this effect, the weakest first."""
        names = {each.name for each in self.meta_tools.enabled(self.settings)}
        limits = {**CALLS_BY_EFFECT, CALL_TOOL: Effect.DESTRUCTIVE}
        return [name for name, limit in limits.items() if name in names and effect.is_within(limit)]

    def outcome_of(self, tool: CatalogTool) -> str:
        """Describe what a call of the tool returns and does; see `outcome`."""
        output = self.gateway.shapes.output_of(self.scope.client, tool)
        if output is None:
            return outcome(tool.effect, None, marks_unknown=self.marks_unknown)
        is_learned = output.observed is not None
        return outcome(tool.effect, output.schema, is_learned=is_learned, marks_unknown=self.marks_unknown)

    @property
    def marks_unknown(self) -> bool:
        """Return True if an unknown effect is shown: it decides which meta-tool calls the tool."""
        return not CALLS_BY_EFFECT.keys().isdisjoint(self.settings.gateway.meta_tools)


def find(view: View, name: str, client: Principal, gateway: Host | None = None) -> CatalogTool:
    """Return the visible tool of this name.

    Raises:
        GatewayError: see `missing`.
    """
    tool = view.resolve(name)
    if tool is None:
        raise missing(view, name, client, gateway)
    return tool


def missing(view: View, name: str, client: Principal, gateway: Host | None = None) -> GatewayError:
    """Return the error for a name without a visible tool: a hidden tool gives the same one as an unknown one.

    A tool of a server that has not listed anything yet is unavailable, but only for clients that may see every tool of
    that server: for others, even the server's name is hidden.
    """
    if view.holds_back(name):
        return ToolHeldBackError(name)
    owner = None if gateway is None else gateway.unlisted_owner(name)
    if owner is not None and view.sees_all_of(owner.upstream_id):
        return owner.not_listed()
    closest = view.closest(name)
    hint = _skill_hint(view, name, client) or did_you_mean(closest) or search_hint(view, client)
    if gateway is not None and (wait := gateway.state.systems(view).wait):
        hint = f"{hint}{'' if hint.endswith('?') else '.'} {wait}"
    return ToolNotFoundError(f"no tool named {name!r}", hint=hint, details={"closest": closest})


def _skill_hint(view: View, name: str, client: Principal) -> str:
    """Return the hint for the name of a skill; empty if no visible one has it."""
    named = [uri for uri, skill in view.skills.items() if name in (uri, skill_name(skill))]
    reading = "pml skills" if client.kind is PrincipalKind.OWNER else f"{READ_RESULT} with ref"
    return f"it is a skill, read by {reading} {' or '.join(named[:3])}" if named else ""


def search_hint(view: View, client: Principal, state: GatewayState | None = None) -> str:
    """Return the hint for an unknown tool name; `state` tells if more tools are to come."""
    if client.kind is PrincipalKind.OWNER:
        hint = "pml search WORDS finds tools by what they do"
    elif view.has_meta_tool("search_tools"):
        hint = "search_tools finds tools by what they do"
    else:
        hint = "tools/list has the names"
    wait = state.systems(view).wait if state is not None else ""
    return f"{hint}. {wait}" if wait else hint


class Attempt(ABC):
    """One use of something that a server or the gateway offers; `run` has the stages that all of them pass.

    Args:
        context: the request that it is part of.
        method: that of the protocol; `tools/call` also for what is called inside of another call.
        name: what is used, as the client wrote it.
        arguments: what it is given.

    Deciders set `allowed_by`, the rule that lets it pass, and `approval`, the id of an approval, for its record.
    """

    def __init__(self, context: CallContext, method: str, name: str, arguments: JsonObject) -> None:
        self.context = context
        self.method = method
        self.name = name
        self.arguments = arguments
        self.server = ""
        self.tool: CatalogTool | None = None
        self.own: MetaTool | None = None
        self.refs: tuple[str, ...] | None = None
        self.refusal: CallRefusal | None = None
        self.result: JsonObject | None = None
        self.allowed_by = ""
        self.approval = ""
        self.within = ""
        """Digest of the request of several calls that it is a step of."""
        self.sends = Sends()
        self.is_outermost = True
        """False if its result only becomes part of another answer."""
        self.held = AsyncExitStack()
        """What the attempt holds until it ends; deciders may put something into it."""

    @property
    def sent_arguments(self) -> JsonObject:
        """Return the arguments as they are sent, once they are checked."""
        return self.arguments

    @property
    def target(self) -> str:
        """Return the name of what is used, or the one in the call if it means nothing for the client."""
        if self.tool is not None:
            return self.tool.qualified_name
        return self.name if self.own is None else self.own.name

    async def run(self) -> JsonObject:
        """Return the result; how it ended is published, whatever that is.

        Raises:
            GatewayError: nothing was sent, or what kept the server from answering.
            MCPError: the same, of prompts and resources.
        """
        with _recorded(self):
            async with self.held:
                await self.prepare()
                for decider in self.context.gateway.deciders if self.refusal is None else ():
                    if (refusal := await decider(self)) is not None:
                        self.refusal = refusal
                        break
                if self.refusal is not None:
                    raise self.refusal.error
                self._announce()
                self.context.scope.end_turn()
                self.result = await self.settle(await self.send())
        return self.result

    @cached_property
    def id(self) -> str:
        """Return the id that records of the attempt have in common."""
        return os.urandom(8).hex()

    def _announce(self) -> None:
        """Publish that this will be sent.

        Raises:
            UnrecordedError: that must be recorded, and cannot.
        """
        events = self.context.gateway.events
        if events.reach(AccessBegun):
            try:
                events.publish(AccessBegun(self, time.time()))
            except UnrecordedError as error:
                raise UnrecordedError("no") from error

    async def prepare(self) -> None:
        """Find what is used, and with which arguments; `refusal` is set if it may not be.

        Raises:
            GatewayError: the arguments are of no use.
        """
        self.resolve()
        self.refusal = await self.authorise()
        if self.refusal is None:
            await self.resolve_references()
            await self.validate()
            self.refusal = self.decide()

    @abstractmethod
    def resolve(self) -> None:
        """Find what the name means for this client, if anything."""

    @abstractmethod
    async def authorise(self) -> Decision:
        """Decide about what was found, by policy and trust."""

    async def resolve_references(self) -> None:
        """Replace references to stored results in the arguments; there are none unless a call takes them."""
        self.refs = self.refs or ()

    async def validate(self) -> None:
        """Check the arguments, and fit them to what is called; a server does so itself."""
        return

    def decide(self) -> Decision:
        """Decide about the call with its arguments."""
        return None

    @abstractmethod
    async def send(self) -> JsonObject:
        """Return the answer of the server."""

    async def settle(self, result: JsonObject) -> JsonObject:
        """Return the answer as the client gets it."""
        return result


@dataclass(frozen=True, slots=True)
class AccessBegun:
    """An attempt that nothing refused, right before it is sent."""

    attempt: Attempt
    at: float


@dataclass(frozen=True)
class Access:
    """The end of one attempt: answered, failed or refused; `began` is wall-clock time."""

    attempt: Attempt
    code: str
    began: float
    seconds: float
    request_id: str

    @property
    def principal(self) -> Principal:
        """Return who made it."""
        return self.attempt.context.scope.client

    @property
    def is_refused(self) -> bool:
        """Return True if it was decided that the call is not made."""
        return self.attempt.refusal is not None

    @property
    def tool(self) -> CatalogTool | None:
        """Return the tool of a server that was meant, also if it is hidden from the client."""
        return self.attempt.tool if self._exclusion is None else self._exclusion.tool

    @property
    def server(self) -> str:
        """Return the id of the server, or an empty text: the gateway's own tools have none."""
        return self.attempt.server if self.tool is None else self.tool.upstream_id

    @property
    def target(self) -> str:
        """Return the name of what was meant, or the one in the call if it means nothing."""
        return self.attempt.target if self._exclusion is None else self._exclusion.tool.qualified_name

    @property
    def effect(self) -> Effect:
        """Return the effect that the tool declares; prompts and resources are read."""
        if self.tool is not None:
            return self.tool.effect
        if self.attempt.own is not None:
            return effect_of(self.attempt.own.definition(NO_SYSTEMS).get("annotations"))
        return Effect.UNKNOWN if self.attempt.method == TOOL_CALL else Effect.READ

    @property
    def rule(self) -> str:
        """Return the rule that decided, for the owner; of a refusal the cause, and the entry that matched."""
        if self._exclusion is not None:
            return ": ".join(filter(None, (self._exclusion.rule.value, self._exclusion.pattern)))
        return self.attempt.allowed_by if self.attempt.refusal is None else self.attempt.refusal.rule

    @cached_property
    def _exclusion(self) -> Exclusion | None:
        attempt, context = self.attempt, self.attempt.context
        if attempt.refusal is None or attempt.tool is not None or attempt.method != TOOL_CALL:
            return None
        tool = View(context.state.catalog, OWNER, (), inside=True).resolve(attempt.name)
        return None if tool is None else context.view.exclusion(tool)


@contextmanager
def _recorded(attempt: Attempt) -> Iterator[None]:
    """Publish how an attempt ended."""
    events = attempt.context.gateway.events
    if not events.reach(Access):
        yield
        return
    began, trace, sending = time.time(), CURRENT_TRACE.get(), SENDS.set(attempt.sends)

    def end(code: str) -> None:
        events.publish(Access(attempt, code, began, time.time() - began, "" if trace is None else trace.request_id))

    try:
        yield
    except UnrecordedError as error:
        # It is answered already that there is no record.
        with suppress(GatewayError):
            end(code_of(error))
        raise
    except Exception as error:
        end(PROTOCOL_ERROR if isinstance(error, MCPError) else code_of(error))
        raise
    except BaseException as error:
        # A call that was cancelled has no answer left that a required record could keep back.
        with suppress(GatewayError):
            end(code_of(error))
        raise
    else:
        end(outcome_of(attempt.result))
    finally:
        SENDS.reset(sending)
