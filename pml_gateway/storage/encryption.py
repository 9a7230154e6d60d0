"""Encryption of stored logins, with a key in the system's keyring or in an owner-only file.

An existing key file is used first; else the keyring if it works, else a new key file.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.fernet import Fernet, InvalidToken

from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document

KEY_FILE = "key"
KEYRING_SERVICE = "pml-gateway"
KEYRING_SECONDS = 15.0
"""Time limit in seconds for the keyring: it may ask a person for a password, which a headless machine never gets."""

VERSION = 1

ResultT = TypeVar("ResultT")


class EncryptionError(Exception):
    """A ciphertext cannot be read; the text has the reason, and never any content."""


class Encryption:
    """Encryption of the files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key_file: Document[bytes | None] = Document(
            kinds.LOGIN_KEY,
            folder / KEY_FILE,
            decode=bytes.strip,
            encode=lambda key: "" if key is None else key.decode(),
            empty=lambda: None,
        )
        self._keys: dict[str, Fernet] = {}

    def encrypt(self, text: str) -> str:
        """Return `text` encrypted, in an envelope that names its key."""
        key = self._key_for_writing()
        self._keys[_key_id(key)] = Fernet(key)
        data = Fernet(key).encrypt(text.encode()).decode()
        return json.dumps({"version": VERSION, "key": _key_id(key), "data": data})

    def decrypt(self, envelope: str | bytes) -> str:
        """Return the text of an envelope.

        Raises:
            EncryptionError: it is damaged, or its key is missing.
        """
        try:
            match json.loads(envelope):
                case {"version": int(version)} if version > VERSION:
                    raise EncryptionError("it was written by a newer version")
                case {"key": str(key_id), "data": str(data)}:
                    return self._fernet(key_id).decrypt(data).decode()
                case _:
                    raise EncryptionError("it is damaged")
        except (ValueError, InvalidToken):
            # No cause, which may quote the content.
            raise EncryptionError("it is damaged") from None

    def _fernet(self, key_id: str) -> Fernet:
        if key_id not in self._keys:
            for source in (self._file_key, self._keyring_key):
                key = source()
                if key is not None and _is_key(key):
                    self._keys[_key_id(key)] = Fernet(key)
                if key_id in self._keys:
                    break
            else:
                raise EncryptionError(
                    f"it is encrypted with a key that is neither in {self._key_file.path} nor in a keyring that answers"
                )
        return self._keys[key_id]

    def _key_for_writing(self) -> bytes:
        with self._key_file.locked():
            key = self._file_key() or self._keyring_key()
            if key is not None and _is_key(key):
                return key
            fresh = Fernet.generate_key()
            if self._keep_in_keyring(fresh):
                return fresh
            self._key_file.write(fresh)
            return fresh

    def _file_key(self) -> bytes | None:
        try:
            return self._key_file.load()
        except OSError as exc:
            raise EncryptionError(f"the key file {self._key_file.path} cannot be read: {exc.strerror}") from None

    def _keyring_key(self) -> bytes | None:
        def read() -> str | None:
            import keyring  # finding its backend takes 0.1 s, which gateways without a login never need

            return keyring.get_password(KEYRING_SERVICE, str(self._folder))

        found = _within_limit(read)
        return found.encode() if found else None

    def _keep_in_keyring(self, key: bytes) -> bool:
        def write() -> bool:
            import keyring

            keyring.set_password(KEYRING_SERVICE, str(self._folder), key.decode())
            # Some backends accept everything and store nothing.
            return keyring.get_password(KEYRING_SERVICE, str(self._folder)) == key.decode()

        return _within_limit(write) or False


def _within_limit(work: Callable[[], ResultT]) -> ResultT | None:
    """Return the result of `work`; None if there is no keyring, it is locked, or its prompt is not answered in time."""
    results: list[ResultT] = []

    def run() -> None:
        try:
            results.append(work())
        # Backends raise whatever their platform does; in each case this keyring cannot be used.
        except Exception:  # noqa: BLE001
            return

    thread = threading.Thread(target=run, daemon=True, name="keyring")
    thread.start()
    thread.join(KEYRING_SECONDS)
    return results[0] if results else None


def _key_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def _is_key(key: bytes) -> bool:
    try:
        Fernet(key)
    except ValueError:
        return False
    return True
