"""The settings `storage.url` and `storage.key`: checked, their references resolved, and made into connections."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.installation import EXTRAS, adding
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.secrets.references import resolve

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

MAX_CONNECTIONS = 32
"""Connections of one replica; further commands wait for a free one."""

MIN_KEY_CHARACTERS = 32

FIXED_OPTIONS = frozenset({"decode_responses", "protocol", "legacy_responses"})
"""Parameters of a URL that change what Redis answers, on which this module relies."""

_KEY_REMEDY = (
    "make one with `openssl rand -hex 32`, and give all gateways the same: pml secrets set PML_STORAGE_KEY, or "
    "storage.key: ${env:NAME} or ${file:PATH}"
)


def check_shared_storage(url: str | None, key: str | None, environ: Mapping[str, str]) -> None:
    """Refuse a `storage.url` and `storage.key` by which no state can be shared.

    Raises:
        ConfigurationError: a secret is missing, `url` names no Redis server, `key` is too short, or a package is not
            installed.
    """
    if url is None:
        return
    if find_spec("redis") is None:
        raise ConfigurationError(
            "storage.url names a Redis server, and the redis package is not installed",
            hint=f"install it with: {adding(*EXTRAS['redis'])}",
        )
    connection_pool(resolved_url(url, environ))
    resolved_key(key, environ)


def resolved_url(url: str, environ: Mapping[str, str]) -> str:
    """Return a URL with its references resolved, those of user and password quoted, as they may have any characters."""
    start, _, place = url.rpartition("@")
    scheme, has_user, user = start.partition("://")
    if not has_user or url.startswith("${"):
        resolved = resolve(url, environ)
    else:
        user = resolve(user, environ, lambda value: quote(value, safe=":"))
        resolved = f"{scheme}://{user}@{resolve(place, environ)}"
    # The protocol of Valkey is that of Redis, and so are its schemes: valkey, valkeys.
    return f"redis{resolved.removeprefix('valkey')}" if resolved.startswith("valkey") else resolved


def resolved_key(key: str | None, environ: Mapping[str, str]) -> str:
    """Return a key with its references resolved.

    Raises:
        ConfigurationError: there is none, or it is too short.
    """
    try:
        resolved = resolve(key or "", environ)
    except SecretError as error:
        raise ConfigurationError(f"storage.url needs a storage.key: {error.message}", hint=_KEY_REMEDY) from error
    if len(resolved) < MIN_KEY_CHARACTERS:
        raise ConfigurationError(
            f"storage.url needs a storage.key of {MIN_KEY_CHARACTERS} characters or more, to encrypt what lies there",
            hint=_KEY_REMEDY,
        )
    return resolved


def address_of(url: str) -> str:
    """Return where a resolved URL leads, for messages: without user, password and parameters."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def anonymous() -> dict[str, None]:
    """Return options that keep a connection from naming its library: looking up the version takes 5 ms each time.

    Older versions of redis-py do not know the option, and look it up once.
    """
    import redis

    return {"driver_info": None} if hasattr(redis, "DriverInfo") else {}


def connection_pool(url: str, seconds: float = 3.0) -> ConnectionPool:
    """Return a pool for a resolved URL, without a connection yet; none takes longer than `seconds` to make.

    Callers limit the time of each command: a limit in redis-py would start a task for each.

    Raises:
        ConfigurationError: it names no server, or has a parameter that cannot be used.
    """
    # Importing it takes a tenth of a second.
    from redis.asyncio import ConnectionPool
    from redis.asyncio.connection import SSLConnection, parse_url
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import MasterDownError, ReadOnlyError, RedisError

    try:
        options = parse_url(url)
        KNOWN_SECRETS.remember(str(options.get("password", "")))
        # Without these, redis-py takes database 0, and fails at the first command.
        number, is_socket = urlsplit(url).path.strip("/"), url.startswith("unix:")
        if is_socket != ("path" in options) or (number and not is_socket and not number.isdecimal()):
            raise ValueError
        if fixed := FIXED_OPTIONS & options.keys():
            raise ConfigurationError(f"storage.url sets {min(fixed)}, which cannot be changed", hint="take it out")
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=seconds,
            # Once more at once: a connection that was idle may have been closed.
            retry=Retry(NoBackoff(), 1),
            # And if this one is a replica by now: after a failover, a new connection leads to the new primary.
            retry_on_error=[ReadOnlyError, MasterDownError],
            **anonymous(),
        )
        # Parameters that there are not are found when a connection is made.
        connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]  # not annotated there
        if isinstance(connection, SSLConnection):
            # Certificates are read only when it connects.
            connection.ssl_context.get()
    except OSError:
        raise ConfigurationError(
            "storage.url names a certificate or key that cannot be read",
            hint="correct the path after ssl_ca_certs=, ssl_ca_path=, ssl_certfile= or ssl_keyfile=",
        ) from None
    except (ValueError, TypeError, AttributeError, RedisError):
        # Without the cause, as its text may quote the password.
        raise ConfigurationError(
            "storage.url names no Redis server, or has a parameter that redis-py does not know",
            hint="write redis://[user:password@]host[:port][/number], rediss:// with TLS, or unix://path",
        ) from None
    return pool
