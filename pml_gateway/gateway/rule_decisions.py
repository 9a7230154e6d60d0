"""Decisions of rules about single calls, with the arguments that are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError, InvalidInputError, ToolForbiddenError
from pml_gateway.exposure.validation import argument_problems
from pml_gateway.gateway.call import Attempt
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.policy.call_rules import Action, CallRule, CallRules
from pml_gateway.policy.principal import Principal
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression, is_true


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The decision about a call, the rule behind it, and the fault of its condition; no rule means no match."""

    action: Action
    rule: CallRule | None = None
    fault: str = ""

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
                return CallVerdict("ask", rule, f"the arguments do not fit the tool's schema: {problems[0]['message']}")
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
    tool, context = attempt.tool, attempt.context
    rules = context.gateway.state.call_rules
    if tool is None or not rules.rules:
        return None
    found = await verdict(rules, tool, context.scope.client, attempt.sent_arguments)
    match found.action:
        case "allow":
            attempt.allowed_by = "" if found.rule is None else found.because
            return None
        case "deny":
            error = ToolForbiddenError(
                f"a rule of the gateway's owner denies this call of {attempt.target}",
                hint="do it in another way, or ask the user",
            )
        case "ask":
            error = ToolForbiddenError(
                f"a rule of the gateway's owner wants this call of {attempt.target} approved, and nobody can be asked",
                hint="ask the user to do it, or to change the rule",
            )
    return CallRefusal(error, found.because)
