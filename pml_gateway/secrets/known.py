"""Secret values used in this process, so that no text that leaves it for a log carries one."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from pml_gateway.secrets.forms import SecretForms
from pml_gateway.secrets.judgement import MASK, Keys
from pml_gateway.secrets.masking import mask_text, mask_tree

MIN_LENGTH = 6
"""Characters of the shortest value that is looked for; shorter ones are parts of common words."""

MAX_KNOWN = 2000
"""Values remembered; refreshed tokens would grow the list without end, so that the oldest go first."""


class KnownSecrets:
    """Values to be masked wherever they stand and however they are encoded."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._forms: SecretForms | None = None

    def remember(self, value: str) -> None:
        """Mask `value` from now on; the path of something that exists is no secret."""
        text = value.strip()
        if text in self._values or len(text) < MIN_LENGTH or _is_path(text):
            return
        while len(self._values) >= MAX_KNOWN:
            del self._values[next(iter(self._values))]
        self._values[text] = None
        self._forms = None

    def remember_all(self, values: Iterable[str]) -> None:
        """Mask every one of `values` from now on."""
        for value in values:
            self.remember(value)

    def forget(self) -> None:
        """Mask none of the values any longer."""
        self._values, self._forms = {}, None

    def masked(self, text: str, mask: str) -> str:
        """`text` with `mask` in place of every known secret."""
        forms = self._forms
        if forms is None:
            # Threads may do so twice, with the same result.
            forms = self._forms = SecretForms.of(tuple(self._values), MIN_LENGTH)
        return forms.masked(text, mask)


def _is_path(text: str) -> bool:
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):
        return False


KNOWN_SECRETS = KnownSecrets()
"""Of this process; `config.secrets.resolve` adds every value it gives out."""


def without_secrets(text: str, plain: Container[str] = ()) -> str:
    """`text` without the known secrets and what looks like one; the names in `plain` are none, as in `mask_text`."""
    return mask_text(KNOWN_SECRETS.masked(text, MASK), plain)


def without_known_secrets(value: Any) -> Any:
    """The same tree of values with a mask for every secret that was resolved in this process."""
    return mask_tree(value, _without_known)


def _without_known(value: Any, _: Keys) -> Any:
    match value:
        case str():
            return KNOWN_SECRETS.masked(value, MASK)
        case list() | tuple():
            return [KNOWN_SECRETS.masked(item, MASK) if isinstance(item, str) else item for item in value]
        case _:
            return value
