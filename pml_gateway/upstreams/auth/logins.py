"""Stored logins: encrypted files that several gateway processes share."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.config.servers import AuthDefinition
from pml_gateway.errors import UpstreamAuthError, UpstreamUnavailableError
from pml_gateway.files import lock_if_free
from pml_gateway.log import get_logger
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import DamagedDocumentError, Document
from pml_gateway.storage.encryption import Encryption, EncryptionError
from pml_gateway.storage.places import AUTH, warn_unwritable
from pml_gateway.text import quoted

logger = get_logger(__name__)

EARLY_SECONDS = 30.0
"""Seconds before expiry at which a token is renewed; a tenth of its lifetime if that is shorter."""

LOCK_SECONDS = 40.0
LOCK_POLL_SECONDS = 0.02


class StoredLogin(BaseModel):
    """A stored login. Without `tokens`, it was refused for good, and a new login is needed.

    `allowed` are the origins that its owner permits; `zone` is that of the server (see `addresses.py`).
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    server_url: str
    tokens: OAuthToken | None = Field(repr=False)
    client: OAuthClientInformationFull = Field(repr=False)
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    obtained_at: float
    expires_at: float | None = None
    wanted_scope: str | None = None
    allowed: tuple[str, ...] = ()
    zone: int | None = None

    @property
    def access_token(self) -> str | None:
        return self.tokens.access_token if self.tokens else None

    @property
    def scope(self) -> str | None:
        return self.tokens.scope if self.tokens else None

    @property
    def is_renewable(self) -> bool:
        """Return True if the access token can be renewed without a login."""
        return bool(self.tokens and self.tokens.refresh_token)

    @property
    def is_fresh(self) -> bool:
        """Return True if the access token has not expired."""
        if self.tokens is None:
            return False
        if self.expires_at is None:
            return True
        early = min(EARLY_SECONDS, (self.expires_at - self.obtained_at) / 10)
        return time.time() < self.expires_at - early

    def with_tokens(self, tokens: OAuthToken) -> StoredLogin:
        """Return this login with newer tokens; values that a refresh leaves out stay as they were (RFC 6749, 6)."""
        now = time.time()
        kept = {
            "scope": tokens.scope or self.scope,
            "refresh_token": tokens.refresh_token or (self.tokens.refresh_token if self.tokens else None),
        }
        return self.model_copy(
            update={
                "tokens": tokens.model_copy(update=kept),
                "obtained_at": now,
                "expires_at": None if tokens.expires_in is None else now + tokens.expires_in,
            }
        )

    def refused(self) -> StoredLogin:
        """Return this login after its tokens were refused for good; the client's registration is kept."""
        return self.model_copy(update={"tokens": None, "expires_at": None})


class LoginStore:
    """The logins in one folder, one file for each server id, URL and client: a token never goes to another URL."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._encryption = Encryption(folder)

    def path(self, upstream_id: str, url: str, auth: AuthDefinition) -> Path:
        """Return the file of one upstream's login."""
        name = "".join(character if character.isalnum() or character in "-_." else "_" for character in upstream_id)
        digest = hashlib.sha256(f"{upstream_id}\0{url}\0{auth.type}\0{auth.client_id or ''}".encode()).hexdigest()[:16]
        return self._folder / f"{name[:60]}-{digest}.login"

    def load(self, upstream_id: str, path: Path) -> StoredLogin | None:
        """Read the login; None if there is none.

        Raises:
            UpstreamAuthError: it cannot be read; a new login replaces it.
        """
        try:
            return self._document(path).load()
        except EncryptionError as exc:
            reason = str(exc)
        except OSError as exc:
            reason = f"it cannot be read ({type(exc).__name__})"
        except DamagedDocumentError:
            # No cause, which quotes the tokens.
            reason = "it is incomplete"
        raise login_needed(upstream_id, f"the stored login is of no use: {reason}")

    def save(self, path: Path, login: StoredLogin) -> None:
        """Replace the login; a reader sees the old or the new one."""
        self._document(path).write(login)

    def copy(self, source: Path, target: Path) -> None:
        """Copy a login to another path, if it exists.

        Raises:
            OSError: it cannot be read or written.
        """
        self._document(source).copy(target)

    def delete(self, path: Path) -> bool:
        """Delete the login; return True if there was one."""
        return self._document(path).delete()

    def _document(self, path: Path) -> Document[StoredLogin | None]:
        return Document(
            kinds.LOGINS,
            path,
            decode=lambda content: StoredLogin.model_validate_json(self._encryption.decrypt(content)),
            encode=lambda login: self._encryption.encrypt(login.model_dump_json(exclude_none=True) if login else ""),
            empty=lambda: None,
            lock_seconds=LOCK_SECONDS,
        )

    @asynccontextmanager
    async def locked(self, upstream_id: str, path: Path) -> AsyncIterator[None]:
        """Hold the lock on a login, across processes and tasks; wait for it up to `LOCK_SECONDS`.

        Raises:
            UpstreamUnavailableError: another process has held the lock too long.
        """
        deadline = anyio.current_time() + LOCK_SECONDS
        is_waiting = False
        while True:
            with ExitStack() as stack:
                try:
                    is_held = stack.enter_context(lock_if_free(path))
                except OSError as error:
                    # This folder is not writable for any process, so there is no one to wait for.
                    warn_unwritable(AUTH, path.parent, error)
                    is_held = True
                if is_held:
                    yield
                    return
            if anyio.current_time() > deadline:
                raise UpstreamUnavailableError(
                    f"{upstream_id}: another process has been renewing the login for over {LOCK_SECONDS:g} s",
                    hint="call again",
                )
            if not is_waiting:
                is_waiting = True
                logger.info("%s: another process renews the login; waiting for it", upstream_id)
            await anyio.sleep(LOCK_POLL_SECONDS)


def login_needed(upstream_id: str, reason: str, **details: object) -> UpstreamAuthError:
    """Return the error for a login that a person has to renew."""
    return UpstreamAuthError(f"{upstream_id}: {reason}", hint=login_command(upstream_id), details=details)


def login_command(upstream_id: str) -> str:
    return f"pml upstreams login {quoted(upstream_id)}"
