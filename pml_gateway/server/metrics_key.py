"""The configured reference becomes the key that opens `/metrics`."""

from __future__ import annotations

from pml_gateway.config.secrets import resolve
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.policy.client import MIN_KEY_LENGTH


def metrics_key(settings: Settings) -> str | None:
    """The key that opens `/metrics`, if one is configured.

    Raises:
        ConfigurationError: it is too short, or missing although clients need keys.
    """
    http = settings.http
    if not http.metrics:
        return None
    if http.metrics_key is None:
        if settings.clients:
            raise ConfigurationError(
                "http.metrics is on and clients need keys, but http.metrics_key is not set",
                hint='metrics name tools that clients may not see; give them a key: metrics_key: "${env:NAME}"',
            )
        return None
    key = resolve(http.metrics_key)
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigurationError(
            f"http.metrics_key has {len(key)} characters; at least {MIN_KEY_LENGTH} are needed",
            hint="create one with: openssl rand -hex 24",
        )
    return key
