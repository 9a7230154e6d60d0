"""Configuration by environment variables: `PML_SECTION__KEY`, and the standard `OTEL_*` ones."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError
from pydantic_settings.sources.types import EnvNoneType

from pml_gateway.config.layers import KeyPath, Layer, layer_of, merge
from pml_gateway.config.problems import (
    ALIASES,
    ONE_LINE,
    Problem,
    all_keys,
    annotation_at,
    is_list,
    member_keys,
    nearest_key,
)
from pml_gateway.config.settings import Settings, TelemetrySettings
from pml_gateway.secrets.references import resolve
from pml_gateway.text import did_you_mean

PREFIX = "PML_"
DELIMITER = "__"
NOT_SETTINGS = frozenset({"PML_HOME", "PML_DATA", "PML_CONFIG", "PML_SET", "PML_REDIS", "PML_STORAGE_KEY"})
"""Variables that name folders, files and sets, and those that `storage` refers to; every other one is a setting."""

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_{}_ENDPOINT"
_EXPORTER = "OTEL_{}_EXPORTER"


class _EnvironmentSettings(Settings, BaseSettings):
    """Settings tree in the form that pydantic-settings reads; only its fields are used, it is never instantiated."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, case_sensitive=True, env_parse_none_str="null"
    )


class _EnvironmentSource(EnvSettingsSource):
    """Settings source for one given variable; lists may be JSON or comma-separated."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(_EnvironmentSettings)
        self.env_vars = {name: EnvNoneType(value) if value == self.env_parse_none_str else value}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        is_tuple = field is not None and get_origin(field.annotation) is tuple
        if is_tuple and isinstance(value, str) and not value.lstrip().startswith("["):
            return [item.strip() for item in value.split(",") if item.strip()]
        return super().decode_complex_value(field_name, field, value)


@dataclass(frozen=True, slots=True)
class EnvironmentLayer:
    """Settings of the environment, its errors, and variables with the prefix that are not settings."""

    layer: Layer
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def environment_layer(environ: Mapping[str, str], known_names: Mapping[str, Collection[str]]) -> EnvironmentLayer:
    """Return the settings in `environ`.

    Args:
        environ: All variables of the process; those without the prefix are not looked at.
        known_names: Names already configured per section (`servers`, `clients`, `workflows`), since a variable
            cannot spell lower case or a dash: `PML_SERVERS__MY_FILES__ENABLED` means `my-files`.
    """
    layers: list[Layer] = []
    problems: list[Problem] = []
    warnings: list[str] = []
    setters: dict[KeyPath, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        path = _path(variable[len(PREFIX) :].split(DELIMITER), known_names)
        text = environ[variable]
        if len(path) == 1 and path[0] in ONE_LINE and not text.lstrip().startswith("{"):
            path = (path[0], ONE_LINE[str(path[0])])
        complaint = _complaint(variable, path)
        if complaint is None and path in setters:
            complaint = f"sets the same key as {setters[path]}; keep one of them"
        if complaint is not None:
            if DELIMITER not in variable and not _starts_like_a_section(variable):
                warnings.append(f"environment variable {variable} is no setting and was ignored")
            else:
                problems.append(Problem("environment", variable, complaint))
            continue
        setters[path] = variable
        if is_list(path) and not text.strip():
            text = "[]"
        try:
            values = _EnvironmentSource(PREFIX + DELIMITER.join(map(str, path)), text)()
        except SettingsError:
            kind = "JSON list or comma separated" if is_list(path) else "JSON object"
            problems.append(Problem("environment", variable, f"is no {kind} value"))
            continue
        layers.append(layer_of("environment", values, variable))
    merged = merge(layers)
    return EnvironmentLayer(Layer("environment", merged.values, merged.origins), tuple(problems), tuple(warnings))


def _path(parts: list[str], known_names: Mapping[str, Collection[str]]) -> KeyPath:
    """Return the key a variable means: keys of the tree in lower case, names and foreign keys as they are."""
    path: list[str] = []
    for part in parts:
        at = tuple(path)
        if len(at) == 1 and at[0] in known_names:
            wanted = part.lower()
            path.append(next((name for name in known_names[at[0]] if _spelt(name) == wanted), wanted))
        elif annotation_at(at) is None or get_origin(annotation_at(at)) is dict or annotation_at(at) is Any:
            path.append(part)
        else:
            path.append(part.lower())
    return ALIASES.get(tuple(path), tuple(path))


def _spelt(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _complaint(variable: str, path: KeyPath) -> str | None:
    if annotation_at(path) is not None:
        return None
    if len(path) == 1:
        flat = str(path[0]).replace("_", "")
        near = [known for known in all_keys() if "".join(map(str, known)).replace("_", "") == flat]
        if near:
            return f"unknown variable; {did_you_mean([variable_name(near[0])])}"
    depth = next(length for length in range(1, len(path) + 1) if annotation_at(path[:length]) is None)
    meant = nearest_key(path[:depth])
    if meant is None:
        return "unknown variable"
    return f"unknown variable; {did_you_mean([variable_name((*meant, *path[depth:]))])}"


def variable_name(path: KeyPath) -> str:
    """Return the variable that sets `path`."""
    return PREFIX + DELIMITER.join(str(part).upper() for part in path)


def _starts_like_a_section(variable: str) -> bool:
    return any(variable[len(PREFIX) :].lower().startswith(f"{name}_") for name in member_keys(()))


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Signals to export, and where; without an endpoint, exporters read the variables themselves."""

    endpoint: str | None
    traces: bool
    metrics: bool
    logs: bool


def otlp_target(settings: TelemetrySettings, environ: Mapping[str, str] = os.environ) -> OtlpTarget | None:
    """Return the destination of telemetry, or None if it is off.

    Raises:
        SecretError: a reference in the endpoint cannot be resolved.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = resolve(settings.otlp_endpoint, environ) if settings.otlp_endpoint else None
    wanted = [_wanted(signal, endpoint, environ) for signal in ("TRACES", "METRICS", "LOGS")]
    return OtlpTarget(endpoint, *wanted) if any(wanted) else None


def _wanted(signal: str, endpoint: str | None, environ: Mapping[str, str]) -> bool:
    exporter = environ.get(_EXPORTER.format(signal), "").strip().lower()
    if exporter:
        return exporter == "otlp"
    return bool(endpoint or environ.get(_ENDPOINT) or environ.get(_SIGNAL_ENDPOINT.format(signal)))
