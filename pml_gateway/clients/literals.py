"""Credentials written out in a client's file, replaced by `${env:NAME}` references."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.clients.translate import is_placeholder
from pml_gateway.secrets.judgement import Keys, Secret, mapped, with_secrets, written_key
from pml_gateway.secrets.names import is_secret_name


@dataclass(frozen=True, slots=True)
class Literal:
    """One value that was written out: the variable it is kept under, and where it stood."""

    variable: str
    key: str
    value: str = field(repr=False)

    @property
    def is_missing(self) -> bool:
        """Whether nothing but a placeholder stood there."""
        return is_placeholder(self.value)


@dataclass(slots=True)
class VariableNames:
    """Gives every secret value one name that means nothing else.

    `taken` are the variables known so far: of the environment and of the gateway's secrets file.
    """

    taken: Mapping[str, str] = field(repr=False)
    given: dict[str, str] = field(default_factory=dict, repr=False)

    def name(self, server: str, wish: str, value: str) -> str:
        """A variable for `value`: as wished, with the server in front where another value has that name."""
        wish = _variable(wish)
        candidates = [wish, f"{_variable(server)}_{wish}"]
        candidates += [f"{candidates[1]}_{number}" for number in range(2, 1000)]
        for candidate in candidates:
            known = self.given.get(candidate, self.taken.get(candidate) or None)
            if known is None or known == value or is_placeholder(value):
                self.given.setdefault(candidate, value)
                return candidate
        raise AssertionError("a thousand servers share a name")


def without_literals(
    server: str, definition: Mapping[str, Any], names: VariableNames
) -> tuple[dict[str, Any], list[Literal]]:
    """`definition` with references in place of its credentials, and what they stand for."""
    found: list[Literal] = []

    def moved(secret: Secret, at: Keys) -> str:
        if secret.is_default and names.taken.get(secret.wish):
            # The variable is set, so that the default counts for nothing.
            return f"${{env:{secret.wish}}}"
        wish = secret.wish if secret.is_variable else f"{server}_{secret.wish}"
        variable = names.name(server, wish, secret.value)
        found.append(Literal(variable, written_key(at), secret.value))
        return f"${{env:{variable}}}"

    def change(text: str, find: Callable[[], tuple[Secret, ...]], at: Keys) -> str:
        name = at[-1]
        if not text and at[0] in ("env", "headers") and is_secret_name(name) and "pass" not in name.lower():
            # A key that is still to be filled in; an empty password may be the password.
            return moved(Secret(0, 0, text, name, is_variable=True), at)
        return with_secrets(text, find(), lambda secret: moved(secret, at))

    return mapped(definition, change), found


def _variable(wish: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", wish).strip("_").upper() or "SECRET"
    return name if not name[0].isdigit() else f"_{name}"
