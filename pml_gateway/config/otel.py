"""The configuration and the standard `OTEL_*` variables become what is sent to an OpenTelemetry collector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pml_gateway.config.secrets import resolve
from pml_gateway.config.settings import TelemetrySettings

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_{}_ENDPOINT"
_EXPORTER = "OTEL_{}_EXPORTER"


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Which signals go out; without an endpoint of the configuration, the exporters read the variables themselves."""

    endpoint: str | None
    traces: bool
    metrics: bool


def otlp_target(settings: TelemetrySettings, environ: Mapping[str, str] = os.environ) -> OtlpTarget | None:
    """Where telemetry goes, or None while nobody asked for any.

    Raises:
        SecretError: a reference in the endpoint cannot be resolved.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = resolve(settings.otlp_endpoint, environ) if settings.otlp_endpoint else None
    wanted = [_wanted(signal, endpoint, environ) for signal in ("TRACES", "METRICS")]
    return OtlpTarget(endpoint, *wanted) if any(wanted) else None


def _wanted(signal: str, endpoint: str | None, environ: Mapping[str, str]) -> bool:
    exporter = environ.get(_EXPORTER.format(signal), "").strip().lower()
    if exporter:
        return exporter == "otlp"
    return bool(endpoint or environ.get(_ENDPOINT) or environ.get(_SIGNAL_ENDPOINT.format(signal)))
