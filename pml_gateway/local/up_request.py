"""The request of `pml up`, in a file for the gateway that a client starts after a kill or an upgrade."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pml_gateway.environment import gateway_environment
from pml_gateway.files import write_atomically


@dataclass(frozen=True, slots=True)
class UpRequest:
    """A request for a gateway that runs until `pml down`; `http` is its command to listen on HTTP, if any."""

    http: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, path: str) -> UpRequest | None:
        """Return the request in a file; None if the file is missing or malformed."""
        try:
            return cls(**json.loads(Path(path).read_bytes())).without_secrets
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def write(self, path: str) -> None:
        """Write it, without the variables that may hold secrets.

        Raises:
            OSError: it cannot be written.
        """
        write_atomically(path, json.dumps(asdict(self.without_secrets)).encode())

    @property
    def without_secrets(self) -> UpRequest:
        """The request with only those variables of its owner that a gateway itself needs."""
        if self.http is None:
            return self
        owner = self.http["owner"]
        # The address of a proxy may hold a password.
        environ = {name: value for name, value in gateway_environment(owner["environ"]).items() if "@" not in value}
        return UpRequest({**self.http, "owner": {**owner, "environ": environ}})
