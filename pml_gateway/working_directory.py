"""Folder and environment variables of a client, for the servers that are started for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOME_VARIABLE = "USERPROFILE" if os.name == "nt" else "HOME"


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """A client's folder, absolute, and all variables of its process."""

    folder: Path
    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> WorkingDirectory:
        """Return this process's own, with a copy of its variables, or of other ones if they are given."""
        kept = dict(environ)
        try:
            return cls(Path.cwd(), kept)
        except OSError:
            # Deleted under us: a client may start the gateway anywhere.
            return cls(Path("/"), kept)

    @property
    def home(self) -> Path:
        """The home directory of whoever works here."""
        return Path(self.environ.get(HOME_VARIABLE) or Path.home())

    @property
    def folder_identity(self) -> tuple[str, int, int]:
        """Return the identity of the folder, different from a later folder at the same path. Reads the disk."""
        try:
            found = self.folder.stat()
        except OSError:
            # Gone, or not ours to look at: its name is all there is.
            return str(self.folder), 0, 0
        return str(self.folder), found.st_dev, found.st_ino

    def path(self, written: str | Path) -> Path:
        """Return a path as it is meant here: `~` is the home, and what is relative begins in the folder."""
        first, *rest = Path(written).parts or ("",)
        if first == "~":
            return self.home.joinpath(*rest)
        return self.folder / Path(written).expanduser()
