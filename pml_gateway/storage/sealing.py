"""Encryption of the values that replicas keep in Redis, by the `storage.key` that all of them have."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import zlib
from functools import lru_cache
from itertools import count

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pml_gateway.log import get_logger
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MIN_COMPRESSED = 2048
"""Bytes of a value from which compression saves more than it takes."""

SALT_BYTES, NONCE_BYTES = 16, 12
"""Start of each encrypted value: the salt of the one who wrote it, and the number of the value."""


class Sealing:
    """Encryption by a `storage.key`: AES-256-GCM, 20 µs for 200 kB.

    A nonce must not be used twice with one key. Each object therefore has a key of its own, derived by a random salt,
    and counts its values.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._derived = _derived(key)
        self._salt = os.urandom(SALT_BYTES)
        self._numbers = count()

    def key_for(self, purpose: str) -> bytes:
        """Return 32 bytes for a purpose, the same in all replicas."""
        return hmac.digest(self._key.encode(), f"pml-gateway {purpose}".encode(), "sha256")

    def seal(self, name: str, value: JsonObject, *, compressed: bool = False) -> bytes:
        """Encrypt a value, bound to its name: exchanged values are not accepted.

        Compression takes some 10 ms for each MB: only in a thread.
        """
        data = json.dumps(value).encode("utf-8", "surrogatepass")
        if compressed and len(data) > MIN_COMPRESSED:
            data = zlib.compress(data, 1)
        nonce = next(self._numbers).to_bytes(NONCE_BYTES, "big")
        return self._salt + nonce + _cipher(self._derived, self._salt).encrypt(nonce, data, _bound(name))

    def unseal(self, name: str, sealed: bytes | str) -> JsonObject | None:
        """Return a value; None if it was sealed with another key or under another name."""
        data = self._decrypted(name, sealed)
        if data is None:
            logger.warning("a value at storage.url was written with another storage.key, or moved")
            return None
        value = json.loads(data if data.startswith(b"{") else zlib.decompress(data))
        return value if isinstance(value, dict) else None

    def is_sealed_by_this(self, name: str, sealed: bytes | str) -> bool:
        """Return True for a value that was sealed with this key under this name."""
        return self._decrypted(name, sealed) is not None

    def _decrypted(self, name: str, sealed: bytes | str) -> bytes | None:
        # The types of redis-py allow for text, which its connections here never give.
        sealed = sealed.encode() if isinstance(sealed, str) else sealed
        salt, nonce = sealed[:SALT_BYTES], sealed[SALT_BYTES : SALT_BYTES + NONCE_BYTES]
        try:
            return _cipher(self._derived, salt).decrypt(nonce, sealed[SALT_BYTES + NONCE_BYTES :], _bound(name))
        except (InvalidTag, ValueError):
            return None


def _bound(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=4)
def _derived(key: str) -> bytes:
    """Return a key that was stretched, which takes 0.05 s."""
    return hashlib.scrypt(key.encode(), salt=b"pml-gateway storage", n=2**14, r=8, p=1, dklen=32)


@lru_cache(maxsize=256)
def _cipher(derived: bytes, salt: bytes) -> AESGCM:
    return AESGCM(hmac.digest(derived, salt, "sha256"))
