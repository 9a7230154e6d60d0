"""Resolution of the names in a client's calls: tools, and namespaces, whose actions are tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.exposure.grouping import Namespace, find_namespace, loosely
from pml_gateway.exposure.namespaces import ACTION, adapt, choose, parameters
from pml_gateway.exposure.shallow_check import undeclared_names
from pml_gateway.exposure.vocabulary import ARGUMENT_WORDS, meaning, object_in
from pml_gateway.gateway.state import GatewayState
from pml_gateway.policy.view import View
from pml_gateway.types import JsonObject

SERVER = "server"


@dataclass(frozen=True, slots=True)
class Callees:
    """Tools and namespaces that a client may call, by name."""

    state: GatewayState
    view: View

    def namespace(self, name: str, arguments: JsonObject) -> Namespace | None:
        """Return the namespace of this name; a call without an action that names one of its tools goes to the tool."""
        namespace = find_namespace(self.state.namespaces(self.view), name)
        if namespace is None or ACTION in arguments:
            return namespace
        tool = self.view.resolve(name)
        return None if tool is not None and tool.qualified_name in namespace.by_tool else namespace

    def parameters(self, name: Any, call: JsonObject) -> Mapping[str, Any] | None:
        """Return the schemas of what the tool of this name takes, given what else is in the call."""
        if not isinstance(name, str):
            return None
        namespace = self.namespace(name, call)
        if namespace is not None:
            given = call.get(ACTION)
            action = namespace.find(given) if isinstance(given, str) else None
            own = parameters(namespace.actions[action]) if action is not None else []
            return {ACTION: {"type": "string"}, **{each.shown: each.schema for each in own}}
        server = next((value for key, value in call.items() if meaning(key, (SERVER,)) == SERVER), None)
        tool = self._of_server(server, name) or self.view.resolve(name)
        if tool is None:
            return None
        properties = tool.definition["inputSchema"].get("properties")
        return properties if isinstance(properties, dict) else {}

    def tool_call(
        self, name: str, arguments: JsonObject, server: Any = None
    ) -> tuple[str, JsonObject, tuple[str, ...]]:
        """Return the name of the tool that a call is of, its arguments, and the keys in them that clients add.

        An action of a namespace is the tool behind it. `server` may say whose tool is meant; a name that is not of that
        server's means nothing then.

        Raises:
            InvalidInputError: a namespace without such an action, or a field of it that is given twice.
        """
        arguments = self._opened(name, arguments)
        namespace = self.namespace(name, arguments)
        if namespace is not None:
            call = adapt(namespace, choose(namespace, arguments, self.others()), arguments)
            return call.tool.qualified_name, call.arguments, call.ignored
        if server is None:
            return name, arguments, ()
        server = server[0] if isinstance(server, list) and len(server) == 1 else server
        tool = self._of_server(server, name)
        return tool.qualified_name if tool is not None else f"{server}:{name}", arguments, ()

    def _opened(self, name: str, arguments: JsonObject) -> JsonObject:
        """Return the arguments inside a key for arguments that is all there is, and that the tool does not take."""
        if len(arguments) != 1:
            return arguments
        [(key, value)] = arguments.items()
        inside = object_in(value) if loosely(key) in ARGUMENT_WORDS else None
        tool = self.view.resolve(name) if inside else None
        is_taken = tool is None or not undeclared_names(tool.definition["inputSchema"], arguments)
        return arguments if inside is None or is_taken else inside

    def others(self) -> list[Namespace]:
        """All namespaces of this client."""
        return list(self.state.namespaces(self.view).values())

    def _of_server(self, server: Any, name: str) -> CatalogTool | None:
        """Return the server's tool of this name, with or without the server's."""
        if not isinstance(server, str):
            return None
        found = (self.view.resolve(name), self.view.resolve(f"{server}:{name}"))
        return next((tool for tool in found if tool is not None and tool.upstream_id == server), None)
