"""Decisions of rules about single calls, with the arguments that are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, assert_never, cast
from weakref import WeakKeyDictionary

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.errors import GatewayError, InvalidInputError, SharedStateError, ToolCallError, ToolForbiddenError
from pml_gateway.exposure.validation import argument_problems
from pml_gateway.gateway.approval_requests import ApprovalRequest, ApprovalState, AskedCall, asked_call, digest_of
from pml_gateway.gateway.approvals import Approvals, PendingApprovalError
from pml_gateway.gateway.call import Attempt
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.gateway.host import Host
from pml_gateway.log import get_logger
from pml_gateway.policy.call_rules import Action, CallRule, CallRules
from pml_gateway.policy.principal import Principal, PrincipalKind
from pml_gateway.text import escaped_json
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import COMPOSITES
from pml_gateway.workflow.expressions import Expression, is_true

logger = get_logger(__name__)

ELICIT = "elicitation/create"

NO_FIT = "the arguments do not fit the tool's schema"

MAX_SHOWN = 1500
"""Characters of arguments in a question to a client; the owner is asked about larger ones, which shows them whole."""


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The decision about a call, the rule behind it, and the fault of its condition; no rule means no match.

    `detail` may have values of the arguments, which records must not have.
    """

    action: Action
    rule: CallRule | None = None
    fault: str = ""
    detail: str = ""

    @property
    def answered_by(self) -> Literal["owner", "client"]:
        """Return who is asked; always the owner if the condition could not be evaluated."""
        return "owner" if self.rule is None or self.fault else self.rule.answered_by

    @property
    def because(self) -> str:
        """Return the rule in a few words, for the owner."""
        if self.rule is None:
            return "no rule matches"
        return f"{self.rule.name}: {self.action}{f'; {self.fault}' if self.fault else ''}"


async def verdict(rules: CallRules, tool: CatalogTool, client: Principal, arguments: JsonObject) -> CallVerdict:
    """Return the decision about one call. If a condition has no value, the owner is to be asked."""
    for rule in rules.about(tool, client):
        if rule.where is None:
            return CallVerdict(rule.action, rule)
        try:
            # A server may read "5" as the number that its schema asks for, and a condition does not.
            if problems := await argument_problems(tool, arguments):
                return CallVerdict("ask", rule, NO_FIT, problems[0]["message"])
            if is_true(await condition(rule.where).evaluate({}, arguments, optional=True)):
                return CallVerdict(rule.action, rule)
        except GatewayError as error:
            return CallVerdict("ask", rule, error.message)
    return CallVerdict("allow")


def condition(where: str) -> Expression:
    """Return a compiled condition.

    Raises:
        InvalidInputError: it is no expression over arguments.
    """
    expression = Expression(where)
    if expression.roots:
        raise InvalidInputError(
            f"${min(expression.roots)} is unknown in a condition", hint="name an argument, as in repo"
        )
    return expression


async def decide_by_rules(attempt: Attempt) -> Decision:
    """Decide about a call of a server's tool by the rules that are in force now."""
    tool, gateway = attempt.tool, attempt.context.gateway
    rules = gateway.state.call_rules
    if tool is None or not rules.rules:
        return None
    found = await verdict(rules, tool, attempt.context.scope.client, attempt.sent_arguments)
    match found.action:
        case "allow":
            attempt.allowed_by = "" if found.rule is None else found.because
            return None
        case "deny":
            return CallRefusal(_denied(attempt), found.because)
        case "ask":
            attempt.allowed_by = found.because
            with _explained_outage():
                return await _approval(attempt, found)
        case _ as unreachable:
            assert_never(unreachable)


def _denied(attempt: Attempt) -> ToolForbiddenError:
    return ToolForbiddenError(
        f"a rule of the gateway's owner denies this call of {attempt.target}",
        hint="do it in another way, or ask the user",
    )


async def _approval(attempt: Attempt, found: CallVerdict) -> Decision:
    """Return None once the call is approved, and the refusal if it is not."""
    approvals, options = attempt.context.gateway.approvals, attempt.context.options
    call = _asked(attempt, found)
    if (earlier := await approvals.continued(call, options.request_state)) is not None:
        _pass(attempt, call, earlier)
        return None
    if found.answered_by == "client" and (answer := await _ask_client(attempt)) is not None:
        return None if answer else CallRefusal(_declined(attempt.target, "the user"), found.because)
    settings = _settings(attempt)
    end = anyio.current_time() + settings.hold_seconds
    while (request := await approvals.approved(call)) is None:
        left = max(end - anyio.current_time(), 0)
        outcome = await _wait_for(approvals, [call], options.on_progress, "", settings, left)
        if isinstance(outcome, ToolCallError):
            return CallRefusal(outcome, found.because)
        # An equal call may have used the approval, or the tool may have changed: then it is asked about anew.
        call = _asked(attempt, found)
    _pass(attempt, call, request.id)
    attempt.held.push_async_callback(_settle, request, attempt, call)
    return None


@contextmanager
def _explained_outage() -> Iterator[None]:
    """Say of a call, for which the approvals cannot be reached, that it was not made."""
    try:
        yield
    except SharedStateError as error:
        raise SharedStateError(
            "a rule of the gateway's owner asks before this call, and approvals cannot be reached now",
            hint="nothing was called; try again later",
            details={"executed": "no"},
        ) from error


def _pass(attempt: Attempt, call: AskedCall, approval: str) -> None:
    attempt.approval = approval
    attempt.held.push_async_callback(_continue_later, attempt, call)


async def _continue_later(attempt: Attempt, call: AskedCall) -> None:
    """Have the call pass again with the answers of its user, if its server asks for some."""
    result = attempt.result or {}
    state = result.get("requestState")
    if result.get("resultType") == "input_required" and isinstance(state, str):
        with _settling("goes on only after another approval"):
            await attempt.context.gateway.approvals.continue_later(call, state, attempt.approval)


async def _settle(request: ApprovalRequest, attempt: Attempt, call: AskedCall) -> None:
    """Give back an approval of which no use was made: another limit refused the call."""
    if attempt.refusal is not None:
        with _settling("counts as made"):
            await attempt.context.gateway.approvals.give_back(request, call)


@contextmanager
def _settling(otherwise: str) -> Iterator[None]:
    """Finish after a call, also for a client that has left; if that fails, say what happens otherwise."""
    with anyio.CancelScope(shield=True):
        try:
            yield
        except SharedStateError as error:
            logger.warning("an approved call %s: %s", otherwise, error)


async def approve_together(attempts: Sequence[Attempt], within: str, on_progress: ProgressFnT | None) -> None:
    """Have the owner asked once about all calls of a request that need an approval, before any is made.

    Raises:
        ToolCallError: they are not approved, or not yet.
    """
    calls: list[AskedCall] = []
    for attempt in attempts:
        # What is wrong with a call, it says itself.
        with suppress(GatewayError, MCPError):
            await attempt.prepare()
            rules, client = attempt.context.gateway.state.call_rules, attempt.context.scope.client
            if attempt.tool is None or attempt.refusal is not None:
                continue
            found = await verdict(rules, attempt.tool, client, attempt.sent_arguments)
            if found.action == "ask" and found.answered_by == "owner":
                calls.append(_asked(attempt, found))
    if not calls:
        return
    approvals = attempts[0].context.gateway.approvals
    with _explained_outage():
        missing = await approvals.missing(calls)
        if missing and approvals.can_be_answered:
            settings = _settings(attempts[0])
            outcome = await _wait_for(approvals, missing, on_progress, within, settings, settings.hold_seconds)
            if isinstance(outcome, ToolCallError):
                raise outcome


async def _wait_for(
    approvals: Approvals,
    calls: Sequence[AskedCall],
    on_progress: ProgressFnT | None,
    within: str,
    settings: ApprovalSettings,
    seconds: float,
) -> ApprovalRequest | ToolCallError:
    """Return the request that approves the calls after at most so many seconds, or the error for their client."""
    target = within or calls[0].tool
    if await approvals.are_denied(calls):
        return _declined(target, "the owner of the gateway")
    if not approvals.can_be_answered:
        return ToolForbiddenError(
            f"a rule of the gateway's owner wants {target} approved, and nobody can be asked here",
            hint="the owner runs `pml serve`, whose gateway can be asked with pml approvals, or changes the rule",
        )
    try:
        request = await approvals.ask(calls, within=within, settings=settings)
    except ToolCallError as error:
        return error
    answered = await approvals.wait(request, seconds, on_progress) or request
    match answered.state:
        case ApprovalState.APPROVED:
            return answered
        case ApprovalState.DENIED:
            return _declined(target, "the owner of the gateway")
        case ApprovalState.PENDING:
            return _pending(target, answered)
        case _ as unreachable:
            assert_never(unreachable)


def _declined(target: str, by: str) -> ToolForbiddenError:
    return ToolForbiddenError(f"{by} denied this call of {target}", hint="do it in another way, or ask the user")


def _pending(target: str, request: ApprovalRequest) -> PendingApprovalError:
    return PendingApprovalError(
        f"{target} waits for the approval of the gateway's owner, and nothing was called",
        hint="ask the user to approve it, then send exactly the same request again",
        details={"approval": request.id, "executed": "no"},
    )


def _settings(attempt: Attempt) -> ApprovalSettings:
    """Return the times of approvals for a client: the shortest of its roles, or those of all clients."""
    settings, roles = attempt.context.gateway.state.settings, attempt.context.scope.client.roles
    given: dict[str, list[float]] = {}
    for role in filter(None, map(settings.roles.get, roles)):
        for key, value in role.approvals.model_dump(exclude_none=True).items():
            given.setdefault(key, []).append(value)
    return settings.approvals.model_copy(update={key: min(values) for key, values in given.items()})


def _asked(attempt: Attempt, found: CallVerdict) -> AskedCall:
    """Return the call with everything that an approval of it is bound to."""
    client, gateway = attempt.context.scope.client, attempt.context.gateway
    state = gateway.state
    meant = cast(CatalogTool, attempt.tool)
    tool = state.catalog.owned(meant.upstream_id, meant.name) or meant
    server = state.settings.servers.get(tool.upstream_id)
    composite = state.composites.get(tool.name) if tool.upstream_id == COMPOSITES else None
    return asked_call(
        (client.id, client.quota_key, _folder(client, gateway)),
        client.shown,
        tool.qualified_name,
        tool.source,
        _definition_key(tool, server, None if composite is None else composite.written),
        attempt.sent_arguments,
        rule=found.because,
        within=attempt.within,
    )


_DEFINITIONS: WeakKeyDictionary[CatalogTool, tuple[object, object, str]] = WeakKeyDictionary()
"""Keys of definitions by their tools, each with the server and the workflow that it is of; nothing changes in place."""


def _definition_key(tool: CatalogTool, server: UpstreamDefinition | None, written: object) -> str:
    """Return the digest of everything that a tool is."""
    known = _DEFINITIONS.get(tool)
    if known is None or known[0] is not server or known[1] != written:
        shown = tool.listed or tool.definition
        described = None if server is None else server.model_dump(mode="json")
        key = digest_of([shown, tool.input_schema, tool.effect.value, described, written])
        known = _DEFINITIONS[tool] = (server, written, key)
    return known[2]


def _folder(client: Principal, gateway: Host) -> str:
    """Return the folder that an approval is bound to.

    Commands are one client in all folders, and a server may do something else in another one. Gateways that share
    their approvals are the same for clients over HTTP, whichever folders they run in.
    """
    is_remote = client.kind in (PrincipalKind.CLIENT, PrincipalKind.ANONYMOUS)
    return "" if is_remote and gateway.approvals.is_shared else gateway.folder


async def _ask_client(attempt: Attempt) -> bool | None:
    """Return the answer of the client's user; None if the client cannot be asked now."""
    options = attempt.context.options
    audience, settings = options.audience, _settings(attempt)
    arguments = escaped_json(attempt.sent_arguments)
    params: JsonObject = {
        "message": f"Call {attempt.target} with {arguments}?",
        "requestedSchema": {"type": "object", "properties": {}},
    }
    if (
        len(arguments) > MAX_SHOWN
        or audience is None
        or audience.answers_later
        or audience.client_capabilities.refusal(ELICIT, params)
    ):
        return None
    with anyio.move_on_after(settings.hold_seconds), suppress(MCPError):
        answer = await audience.ask(ELICIT, params, options.on_progress)
        return answer.get("action") == "accept"
    return None
