"""An answer of 401 or 403 becomes what it asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARAMETER = r'(?:^|[\s,]){name}\s*=\s*(?:"([^"]*)"|([^\s,]+))'
MAX_SCOPE = 500

MAX_TEXT = 200


def plain(text: str) -> str:
    """What a server said, short and without characters that a terminal obeys."""
    return "".join(character for character in text if character.isprintable())[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The status and the `WWW-Authenticate` header of a refusal."""

    status: int
    header: str = ""

    @property
    def is_bearer(self) -> bool:
        """Whether the server wants a token as OAuth gives them."""
        return re.search(r"(?:^|,\s*)bearer\b", self.header, re.IGNORECASE) is not None

    @property
    def missing_scope(self) -> str | None:
        """The scope that the token lacks, which may be unnamed; None where that is not the reason."""
        if self.status != 403 or self._parameter("error") != "insufficient_scope":
            return None
        scope = self._parameter("scope") or ""
        return scope[:MAX_SCOPE] if scope.isprintable() else ""

    def _parameter(self, name: str) -> str | None:
        found = re.search(_PARAMETER.format(name=name), self.header, re.IGNORECASE)
        return (found[1] or found[2]) if found else None
