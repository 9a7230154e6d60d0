"""Reasons to refuse a configuration: checked before it is served, by `pml config validate` and by doctor."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec

from pml_gateway.config.environment import otlp_target
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.installation import EXTRAS, adding
from pml_gateway.policy.authentication import Authenticator, checked_key
from pml_gateway.secrets.references import resolve
from pml_gateway.storage.redis_url import check_shared_storage


def refusals(settings: Settings, environ: Mapping[str, str], *hosts: str) -> Iterator[tuple[str, ConfigurationError]]:
    """Yield each faulty key with its error.

    Args:
        settings: the settings to be served.
        environ: the variables for resolving references.
        hosts: addresses to listen on in addition to the one in the settings.
    """
    checks: dict[str, Callable[[], object]] = {
        f"clients.{name}.key": partial(checked_key, f"clients.{name}.key", entry.key, environ)
        for name, entry in settings.clients.items()
        if entry.key is not None
    }
    checks["http.metrics_key"] = partial(metrics_key, settings, environ)
    checks["storage.results"] = partial(resolve, settings.storage.results, environ)
    checks["storage.url"] = partial(check_shared_storage, settings.storage.url, settings.storage.key, environ)
    checks["activity.sink"] = partial(_check_sink, settings)
    checks["telemetry.otlp_endpoint"] = partial(_check_telemetry, settings, environ)
    are_keys_good = True
    for key, check in checks.items():
        if (error := _failure(check)) is not None:
            are_keys_good = are_keys_good and not key.startswith("clients.")
            yield key, error
    for host in dict.fromkeys((settings.http.host, *hosts)):
        if (error := _failure(partial(check_exposure, host, settings))) is not None:
            yield "http.host", error
    if are_keys_good and (error := _failure(partial(Authenticator, settings, environ))) is not None:
        yield "clients", error


def _failure(check: Callable[[], object]) -> ConfigurationError | None:
    try:
        check()
    except ConfigurationError as error:
        return error
    return None


def check_exposure(host: str, settings: Settings) -> None:
    """Refuse a public address without keys, since anyone could call every tool.

    Raises:
        ConfigurationError: the address is not loopback and `clients:` is empty.
    """
    if not is_loopback(host) and not settings.requires_keys:
        raise ConfigurationError(
            f"http.host {host!r} is reachable from other machines, and no client key is configured",
            hint="add a key under `clients:`, or serve on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Return True if the address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def metrics_key(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the key for `/metrics`, if one is configured.

    Raises:
        ConfigurationError: it is too short, or missing although clients require keys.
    """
    http = settings.http
    if not http.metrics:
        return None
    if http.metrics_key is None:
        if settings.requires_keys:
            raise ConfigurationError(
                "http.metrics is on and clients need keys, but http.metrics_key is not set",
                hint='metrics name tools that clients may not see; give them a key: metrics_key: "${env:NAME}"',
            )
        return None
    return checked_key("http.metrics_key", http.metrics_key, environ)


def _check_sink(settings: Settings) -> None:
    if settings.activity.sink == "redis" and settings.storage.url is None:
        raise ConfigurationError(
            "activity.sink is redis, and no Redis server is configured",
            hint="set storage: redis://host, or activity.sink: file",
        )


def _check_telemetry(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse a telemetry endpoint if the OpenTelemetry SDK is not installed."""
    if otlp_target(settings.telemetry, environ) is None:
        return
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        raise ConfigurationError(
            "an OpenTelemetry endpoint is configured, and the OpenTelemetry SDK is not installed",
            hint=f"{adding(*EXTRAS['otel'])}, or remove telemetry.otlp_endpoint and the OTEL_* variables",
        )
