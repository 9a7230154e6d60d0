"""Encryption of values that replicas share, by one key that all of them have."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import zlib
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken

from pml_gateway.log import get_logger
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MIN_COMPRESSED = 2048
"""Bytes of a value from which compression saves more than it takes."""


class Sealing:
    """Encryption by a `storage.key`."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._fernet = _fernet(key)

    def key_for(self, purpose: str) -> bytes:
        """Return 32 bytes for a purpose, the same in all replicas."""
        return hmac.digest(self._key.encode(), f"pml-gateway {purpose}".encode(), "sha256")

    def seal(self, name: str, value: JsonObject, *, compressed: bool = False) -> bytes:
        """Encrypt a value, together with its name: exchanged values are not accepted.

        Compression takes some 10 ms for each MB: only in a thread.
        """
        data = json.dumps([name, value]).encode("utf-8", "surrogatepass")
        if compressed and len(data) > MIN_COMPRESSED:
            data = zlib.compress(data, 1)
        return self._fernet.encrypt(data)

    def unseal(self, name: str, sealed: bytes | str) -> JsonObject | None:
        """Return a value; None if it was sealed with another key or under another name."""
        try:
            data = self._fernet.decrypt(sealed)
            known, value = json.loads(data if data.startswith(b"[") else zlib.decompress(data))
        except InvalidToken:
            logger.warning("a value at storage.url was written with another storage.key")
            return None
        return value if known == name and isinstance(value, dict) else None


@lru_cache(maxsize=4)
def _fernet(key: str) -> Fernet:
    """Derive the key of encryption, which takes 0.05 s."""
    derived = hashlib.scrypt(key.encode(), salt=b"pml-gateway storage", n=2**14, r=8, p=1, dklen=32)
    return Fernet(base64.urlsafe_b64encode(derived))
