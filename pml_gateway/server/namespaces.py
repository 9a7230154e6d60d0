"""A name that was called becomes a namespace or not, and wrong arguments of an action become an error."""

from __future__ import annotations

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.actions import ActionCall, type_problems
from pml_gateway.exposure.grouping import Namespace
from pml_gateway.exposure.modes import Exposure
from pml_gateway.exposure.namespaces import ACTION, call_signature
from pml_gateway.policy.view import View
from pml_gateway.server.meta_definitions import meta_tools_beside_namespaces
from pml_gateway.server.state import GatewayState
from pml_gateway.server.validation import argument_problems
from pml_gateway.types import JsonObject


def namespace_called(state: GatewayState, view: View, name: str, arguments: JsonObject) -> Namespace | None:
    """The namespace of this name; a call without an action that is one of a tool, as before, goes to the tool."""
    namespace = state.namespaces(view).get(name)
    if namespace is not None and ACTION not in arguments and view.resolve(name) is not None:
        return None
    return namespace


def is_listed(own_name: str, state: GatewayState, view: View, exposure: Exposure) -> bool:
    """Whether one of the gateway's own tools, a meta-tool or a namespace, belongs to the style that is listed."""
    if exposure.namespaces:
        return own_name in state.namespaces(view) or own_name in meta_tools_beside_namespaces(state.settings)
    return own_name not in state.namespaces(view)


def check_action(namespace: Namespace, call: ActionCall, arguments: JsonObject) -> None:
    """Refuse the arguments of an action, in two stages: their types, then the tool's own schema.

    Args:
        namespace: what was called.
        call: the action, and where each argument stood in what was sent.
        arguments: the call's arguments as they would be sent, references resolved.

    Raises:
        InvalidInputError: with a JSON pointer into what was sent per fault, and the action's signature.
    """
    problems = type_problems(call, arguments) or [
        {**problem, "path": call.place(problem["path"])} for problem in argument_problems(call.tool, arguments)
    ]
    if not problems:
        return
    expected = call_signature(namespace, call.action)
    listed = "; ".join(f"{problem['path'] or '/'}: {problem['message']}" for problem in problems)
    raise InvalidInputError(
        f"invalid arguments for {namespace.name} {call.action}: {listed}",
        hint=f"expected {expected}",
        details={"errors": problems, "signature": expected},
    )
