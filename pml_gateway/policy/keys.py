"""Stored keys of clients, and the owner's tokens: made here and kept as hashes, until they expire or are revoked."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.files import Signature
from pml_gateway.paths import Paths
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, model_document

if TYPE_CHECKING:
    from pml_gateway.storage.shared_documents import SharedDocuments

KEY_PREFIX = "pml_"
"""How keys begin, so that people and programs that look for secrets know one."""

TOKEN_PREFIX = f"{KEY_PREFIX}owner_"
"""How the owner's tokens begin, so that nobody gives one to a client by mistake."""

KEY_BYTES = 32
"""Random bytes of a key: nobody can try them all, however fast its hash is."""

MAX_KEYS = 1000
"""Maximum number of keys; a request is compared with each, which takes 0.15 ms then."""

MAX_REVOKED = 10_000
"""Revoked keys that replicas remember, the last: an old copy of their keys does not bring one back."""

ENDS_SOON_DAYS = 14
"""Days before its end that a key is reported."""


class ClientKey(BaseModel):
    """One key: its client, the configuration that has this client, and its hash.

    A token of the owner has no client.
    """

    model_config = ConfigDict(frozen=True)

    client: str
    is_owners: bool = False
    config: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: datetime
    expires_at: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Return True if it is no longer in force."""
        return self.expires_at is not None and self.expires_at <= now


class _Keys(BaseModel):
    """The content of the file of keys, by id."""

    version: int = 1
    keys: dict[str, ClientKey] = Field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    """Ids of revoked keys, the last at the end."""


class _KeyUses(BaseModel):
    """The last use of each key, by id."""

    version: int = 1
    uses: dict[str, datetime] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that was just made; nothing else ever has its text."""

    key_id: str
    text: str
    key: ClientKey


class KeyStore:
    """The keys of one configuration's clients, or the tokens of its owner. Every method blocks.

    Neither store sees what the other one has: a key of a client is never a token of the owner, nor the other way round.
    """

    def __init__(
        self, paths: Paths, identity: str, *, of_owner: bool = False, documents: SharedDocuments | None = None
    ) -> None:
        """Name the files.

        Args:
            paths: where they lie.
            identity: that of the configuration; keys of others are not seen.
            of_owner: whether it has the tokens of the owner.
            documents: what replicas have in common, if this configuration is that of several.
        """
        self._identity = identity
        self._of_owner = of_owner
        self._document: Document[_Keys] = model_document(kinds.CLIENT_KEYS, paths.keys_file, _Keys)
        self._uses: Document[_KeyUses] = model_document(kinds.KEY_USES, paths.key_uses_file, _KeyUses)
        if documents is not None:
            self._document = documents.shared("keys", self._document, _merged, self._shared, self._with_shared)
            self._uses = documents.shared("key-uses", self._uses, _merged_uses)

    @property
    def signature(self) -> Signature:
        """Return a value that changes whenever the keys do."""
        return self._document.signature

    def in_force(self, now: datetime) -> dict[str, ClientKey]:
        """Return the keys that a gateway accepts, by id; none if the file is damaged, which is logged."""
        return {key_id: key for key_id, key in self._own(self._document.read()).items() if not key.has_expired(now)}

    def all(self) -> dict[str, ClientKey]:
        """Return every key by id, oldest first.

        Raises:
            ConfigurationError: the file is damaged.
        """
        return self._own(self._required())

    def uses(self) -> Mapping[str, datetime]:
        """Return when each key was last used, as gateways wrote it down, at most a minute late."""
        return self._uses.read().uses

    def add(self, client: str = "", expires_at: datetime | None = None) -> MadeKey:
        """Make a key of a client, or a token of the owner, who has no name.

        Raises:
            ConfigurationError: there are too many, the file is damaged, or it cannot be written.
            SharedStateError: replicas share the keys, and Redis does not answer.
        """
        text = (TOKEN_PREFIX if self._of_owner else KEY_PREFIX) + secrets.token_urlsafe(KEY_BYTES)
        key_id = secrets.token_hex(4)
        made = ClientKey(
            client=client,
            is_owners=self._of_owner,
            config=self._identity,
            sha256=digest(text).hex(),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )

        def work() -> None:
            content = self._required()
            if len(content.keys) >= MAX_KEYS:
                raise ConfigurationError(
                    f"there are {len(content.keys):,} keys, and {MAX_KEYS:,} are the most",
                    hint="revoke expired ones: pml keys revoke ID...",
                )
            self._document.write(content.model_copy(update={"keys": {**content.keys, key_id: made}}))

        try:
            self._document.exclusively(work)
        except OSError as error:
            raise self._unwritable(error) from error
        return MadeKey(key_id, text, made)

    def revoke(self, key_ids: Collection[str]) -> dict[str, ClientKey]:
        """Delete keys and return them.

        Raises:
            UsageError: there is no such key; none is deleted then.
            ConfigurationError: the file is damaged, or cannot be written.
            SharedStateError: replicas share the keys, and Redis does not answer.
        """

        def work() -> dict[str, ClientKey]:
            content = self._required()
            own = self._own(content)
            if unknown := [key_id for key_id in key_ids if key_id not in own]:
                raise UsageError(f"there is no key {unknown[0][:40]!r}", hint="pml keys list has the ids")
            kept = {key_id: key for key_id, key in content.keys.items() if key_id not in key_ids}
            # Also without a storage: this may be a command beside workers that share a Redis server of their own.
            revoked = (*content.revoked, *key_ids)[-MAX_REVOKED:]
            self._document.write(content.model_copy(update={"keys": kept, "revoked": revoked}))
            return {key_id: own[key_id] for key_id in key_ids}

        try:
            return self._document.exclusively(work)
        except OSError as error:
            raise self._unwritable(error) from error

    def note_uses(self, uses: Mapping[str, datetime]) -> None:
        """Write down when keys were used.

        Raises:
            OSError: it cannot be written.
            SharedStateError: replicas share the keys, and Redis does not answer.
        """
        known = self._document.read().keys

        def merged(before: _KeyUses) -> _KeyUses:
            latest = {key_id: at for key_id, at in before.uses.items() if key_id in known}
            for key_id, at in uses.items():
                if key_id in known:
                    latest[key_id] = max(at, latest.get(key_id, at))
            return _KeyUses(uses=latest)

        self._uses.change(merged)

    def _own(self, content: _Keys) -> dict[str, ClientKey]:
        return {
            key_id: key
            for key_id, key in content.keys.items()
            if key.config == self._identity and key.is_owners is self._of_owner
        }

    def _shared(self, content: _Keys) -> _Keys:
        """Return what replicas share of the file: the keys of this configuration, which has another name elsewhere."""
        keys = {
            key_id: key.model_copy(update={"config": ""})
            for key_id, key in content.keys.items()
            if key.config == self._identity
        }
        return _Keys(keys=keys, revoked=content.revoked)

    def _with_shared(self, content: _Keys, shared: _Keys) -> _Keys:
        keys = {key_id: key for key_id, key in content.keys.items() if key.config != self._identity}
        for key_id, key in shared.keys.items():
            keys[key_id] = key.model_copy(update={"config": self._identity})
        return _Keys(keys=keys, revoked=shared.revoked)

    def _required(self) -> _Keys:
        return self._document.require("move it away, and make new keys with: pml keys add CLIENT")

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"{self._document.path} cannot be written: {error.strerror or error}", hint="check its owner and mode"
        )


def _merged(mine: _Keys, theirs: _Keys) -> _Keys:
    """Return all keys of both that neither knows as revoked."""
    revoked = tuple(dict.fromkeys((*mine.revoked, *theirs.revoked)))[-MAX_REVOKED:]
    keys = {key_id: key for key_id, key in {**theirs.keys, **mine.keys}.items() if key_id not in revoked}
    return _Keys(keys=keys, revoked=revoked)


def _merged_uses(mine: _KeyUses, theirs: _KeyUses) -> _KeyUses:
    latest = dict(theirs.uses)
    for key_id, at in mine.uses.items():
        latest[key_id] = max(at, latest.get(key_id, at))
    return _KeyUses(uses=latest)


def digest(key: str) -> bytes:
    """Return the hash that a key is kept as.

    A fast one is right: keys are random, so that nobody can try them out, and each request is checked. Words that
    people choose would need a slow one.
    """
    # Environment variables and headers may contain bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
