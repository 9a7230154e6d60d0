"""The secret values used in this process, so that they can be masked in every text that leaves it for a log."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from pml_gateway.secrets.forms import SecretForms
from pml_gateway.secrets.judgement import MASK, Keys
from pml_gateway.secrets.masking import mask_text, mask_tree

MIN_LENGTH = 6
"""Minimum length of a value that is masked; shorter ones are parts of common words."""

MAX_KNOWN = 2000
"""Maximum number of values; the oldest are dropped, since refreshed tokens would grow the list without limit."""


class KnownSecrets:
    """Values to mask in any place and encoding."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._forms: SecretForms | None = None

    def remember(self, value: str) -> None:
        """Mask `value` from now on, unless it is the path of an existing file."""
        text = value.strip()
        if text in self._values or len(text) < MIN_LENGTH or _is_path(text):
            return
        while len(self._values) >= MAX_KNOWN:
            del self._values[next(iter(self._values))]
        self._values[text] = None
        self._forms = None

    def remember_all(self, values: Iterable[str]) -> None:
        """Mask all of `values` from now on."""
        for value in values:
            self.remember(value)

    def forget(self) -> None:
        """Stop masking all values."""
        self._values, self._forms = {}, None

    def masked(self, text: str, mask: str) -> str:
        """Return `text` with every known secret replaced by `mask`."""
        forms = self._forms
        if forms is None:
            # Several threads may do this at once, with the same result.
            forms = self._forms = SecretForms.of(tuple(self._values), MIN_LENGTH)
        return forms.masked(text, mask)


def _is_path(text: str) -> bool:
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):
        return False


KNOWN_SECRETS = KnownSecrets()
"""The secrets of this process; `secrets.references` adds every value it resolves."""


def without_secrets(text: str, plain: Container[str] = ()) -> str:
    """Return `text` with known and likely secrets masked; the names in `plain` are exempt, as in `mask_text`."""
    return mask_text(KNOWN_SECRETS.masked(text, MASK), plain)


def without_known_secrets(value: Any) -> Any:
    """Return the tree with every secret that was resolved in this process masked."""
    return mask_tree(value, _without_known)


def _without_known(value: Any, _: Keys) -> Any:
    match value:
        case str():
            return KNOWN_SECRETS.masked(value, MASK)
        case list() | tuple():
            return [KNOWN_SECRETS.masked(item, MASK) if isinstance(item, str) else item for item in value]
        case _:
            return value
