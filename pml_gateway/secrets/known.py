"""Secret values used in this process, so that no text that leaves it for a log carries one."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from urllib.parse import quote

from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.masking import mask_text

MIN_LENGTH = 6
"""Characters of the shortest value that is looked for; shorter ones are parts of common words."""

MAX_KNOWN = 2000
"""Values remembered; refreshed tokens would grow the list without end, so that the oldest go first."""


class KnownSecrets:
    """Values to be masked wherever they stand, also as they look in a URL."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._longest_first: tuple[str, ...] = ()

    def remember(self, value: str) -> None:
        """Mask `value` from now on; the path of something that exists is no secret."""
        text = value.strip()
        if text in self._values or len(text) < MIN_LENGTH or _is_path(text):
            return
        for form in {text, quote(text, safe="", errors="surrogatepass")}:
            while len(self._values) >= MAX_KNOWN:
                del self._values[next(iter(self._values))]
            self._values[form] = None
        # A secret may be a part of another; the whole has to go first.
        self._longest_first = tuple(sorted(self._values, key=len, reverse=True))

    def remember_all(self, values: Iterable[str]) -> None:
        """Mask every one of `values` from now on."""
        for value in values:
            self.remember(value)

    def masked(self, text: str, mask: str) -> str:
        """`text` with `mask` in place of every known secret."""
        for value in self._longest_first:
            if value in text:
                text = text.replace(value, mask)
        return text


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
