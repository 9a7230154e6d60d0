"""The project files a person has approved, pinned to the hash of what they read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.config.document import read_bytes
from pml_gateway.errors import ConfigurationError
from pml_gateway.regular_files import git_root
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, model_document

TrustState = Literal["trusted", "changed", "missing"]


class TrustedFile(BaseModel):
    """One approval."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    trusted_at: datetime


class _Record(BaseModel):
    """The content of the trust file."""

    version: int = 1
    files: dict[str, TrustedFile] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrustStore:
    """`trust.json`: which project files are approved, and in which version."""

    path: Path
    proposal: tuple[str, str] | None = None
    """A file and the hash of its content that count as approved, before that is written down."""

    def with_proposal(self, file: Path, content: bytes) -> TrustStore:
        """Return a store in which `content` is approved as what `file` may say."""
        return TrustStore(self.path, (_identity(file), fingerprint(content)))

    def is_trusted(self, file: Path, content: bytes) -> bool:
        """Return True if exactly this `content` of `file` is approved."""
        if self.proposal == (_identity(file), fingerprint(content)):
            return True
        entry = self._read().files.get(_identity(file))
        return entry is not None and entry.sha256 == fingerprint(content)

    def state(self, file: Path) -> TrustState:
        """Return True if the approval of `file` covers its current content."""
        try:
            return "trusted" if self.is_trusted(file, read_project_file(file)) else "changed"
        except ConfigurationError:
            return "missing"

    def standing(self, file: Path) -> str:
        """Say how `file` stands: trusted, changed, not trusted, or why it is skipped.

        Raises:
            ConfigurationError: the approvals cannot be read.
        """
        is_known = _identity(file) in self._read().files
        try:
            content = read_project_file(file)
        except ConfigurationError as exc:
            return f"{exc.message.removeprefix(f'{file}: ').removesuffix('; not read')}; skipped"
        return "trusted" if self.is_trusted(file, content) else "changed" if is_known else "not trusted"

    def entries(self) -> dict[Path, TrustedFile]:
        """Every approval, by file."""
        return {Path(name): entry for name, entry in sorted(self._read().files.items())}

    def trust(self, file: Path, content: bytes) -> TrustedFile:
        """Approve `content` as what `file` may say."""
        entry = TrustedFile(sha256=fingerprint(content), trusted_at=datetime.now(UTC).replace(microsecond=0))
        with self._document.locked():
            record = self._read()
            record.files[_identity(file)] = entry
            self._document.write(record)
        return entry

    def revoke(self, file: Path) -> bool:
        """Withdraw the approval of `file`; False where there was none."""
        with self._document.locked():
            record = self._read()
            if record.files.pop(_identity(file), None) is None:
                return False
            self._document.write(record)
            return True

    @property
    def _document(self) -> Document[_Record]:
        return model_document(kinds.APPROVALS, self.path, _Record)

    def _read(self) -> _Record:
        return self._document.require("delete it, then run `pml trust` again in the projects you trust")


def read_project_file(file: Path) -> bytes:
    """Return the content of a project's file.

    Raises:
        ConfigurationError: it is no regular file of this user's or root's own in its project, or cannot be read.
    """
    folder = file.parent.resolve()
    return read_bytes(file, is_own=True, within=Path(git_root(folder) or folder))


def fingerprint(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def _identity(file: Path) -> str:
    return str(file.resolve())
