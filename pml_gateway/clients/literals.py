"""Literal credentials in a client's file, replaced by `${env:NAME}` references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.clients.translate import is_placeholder
from pml_gateway.secrets.judgement import Keys, Secret, mapped, with_secrets, written_key
from pml_gateway.secrets.names import is_secret_name, own_variable, prefixed

MIN_REPEATED = 8
"""Minimum length of a secret that is searched for elsewhere in its definition: shorter ones occur in plain words."""


@dataclass(frozen=True, slots=True)
class Literal:
    """One literal credential: the variable that stores it, and the key it had."""

    variable: str
    key: str
    value: str = field(repr=False)

    @property
    def is_missing(self) -> bool:
        """Return True if the value is only a placeholder."""
        return is_placeholder(self.value)


@dataclass(slots=True)
class VariableNames:
    """The assignment of a unique variable name to each secret value.

    `stored` are the values of the gateway's secrets file; `taken` are names with another meaning: variables of the
    environment, and those that other servers read.
    """

    stored: Mapping[str, str] = field(repr=False)
    taken: Mapping[str, str | None] = field(repr=False)
    given: dict[str, str] = field(default_factory=dict, repr=False)

    def name(self, server: str, wish: str, value: str) -> str:
        """Return a variable for `value`: as wished, with the server in front if it is generic or has another value."""
        wish = own_variable(server, wish)
        longer = prefixed(server, wish)
        for candidate in (wish, longer, *(f"{longer}_{number}" for number in range(2, 1000))):
            if self._is_free(candidate, value):
                self.given.setdefault(candidate, value)
                return candidate
        raise AssertionError("a thousand servers share a name")

    def _is_free(self, name: str, value: str) -> bool:
        if is_placeholder(value):
            return True
        known = self.given.get(name, self.stored.get(name))
        return known == value if known is not None else self.taken.get(name, value) == value


def without_literals(
    server: str, definition: Mapping[str, Any], names: VariableNames
) -> tuple[dict[str, Any], list[Literal]]:
    """Return `definition` with references in place of its credentials, and the credentials."""
    found: list[Literal] = []

    def moved(secret: Secret, at: Keys) -> str:
        if secret.is_default and (names.stored.get(secret.variable_name) or names.taken.get(secret.variable_name)):
            # The variable is set, so the default is not used.
            return f"${{env:{secret.variable_name}}}"
        wish = secret.variable_name if secret.is_variable else prefixed(server, secret.variable_name)
        variable = names.name(server, wish, secret.value)
        found.append(Literal(variable, written_key(at), secret.value))
        return f"${{env:{variable}}}"

    def change(text: str, find: Callable[[], tuple[Secret, ...]], at: Keys) -> str:
        name = at[-1]
        if not text and at[0] in ("env", "headers") and is_secret_name(name) and "pass" not in name.lower():
            # A key that is still to be filled in; an empty password may be intended.
            return moved(Secret(0, 0, text, name, is_variable=True), at)
        return with_secrets(text, find(), lambda secret: moved(secret, at))

    return _repeated_moved(mapped(definition, change), found), found


def _repeated_moved(value: Any, literals: Sequence[Literal]) -> Any:
    """Replace further occurrences of known secrets that neither their key nor their form would reveal."""
    match value:
        case str():
            for literal in literals:
                if len(literal.value) >= MIN_REPEATED and not literal.is_missing:
                    value = value.replace(literal.value, f"${{env:{literal.variable}}}")
            return value
        case dict():
            return {key: _repeated_moved(item, literals) for key, item in value.items()}
        case list():
            return [_repeated_moved(item, literals) for item in value]
        case _:
            return value
