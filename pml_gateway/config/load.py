"""Loads the settings from defaults, files, environment and command line, with the origin of every value."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pml_gateway.config.advice import LOAD_CHECKS
from pml_gateway.config.document import is_there, parse, read_bytes
from pml_gateway.config.environment import environment_layer
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity, from_text, run_checks
from pml_gateway.config.layers import KeyPath, Layer, Origin, dotted, layer_of, leaves, merge
from pml_gateway.config.presets import load_preset
from pml_gateway.config.problems import Problem, configuration_error, shown, validation_problems, without_aliases
from pml_gateway.config.project import find_project_file, project_layer
from pml_gateway.config.sets import unknown_names
from pml_gateway.config.settings import GatewaySection, Settings
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.paths import Paths
from pml_gateway.text import suggestion
from pml_gateway.types import ExposureMode
from pml_gateway.working_directory import WorkingDirectory

__all__ = ["LoadedSettings", "Origin", "load_settings"]

DEFAULT_ORIGIN = Origin("default", "built in")

_MODE: KeyPath = ("gateway", "tools_exposure")


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings in force, where each value came from, and what the operator should know.

    `problems` are values that mean nothing and were replaced by what shows least: a gateway serves on with a warning,
    a check finds them wrong.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    warnings: tuple[Finding, ...]
    files: tuple[Path, ...]
    problems: tuple[Problem, ...] = ()
    read_at: float = math.inf
    """Unix time at which the first file was read; a file written later may differ."""


def load_settings(
    *,
    config_file: Path | None = None,
    project_dir: Path | None = None,
    mode: str | None = None,
    preset: str | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
    trust: TrustStore | None = None,
) -> LoadedSettings:
    """Read every source; later ones win: user file, project file, environment, preset, mode, overrides.

    Args:
        config_file: Replaces the user's file, and then must exist.
        project_dir: Where to look for `.pml.yaml`; default the working directory.
        mode: Exposure mode given on the command line.
        preset: Preset given on the command line.
        environ: The variables of the process.
        overrides: Options of the command line by dotted key: `{"http.port": 9000}`.
        trust: Which project files are approved; default what is written down in the home.

    Raises:
        ConfigurationError: with every problem found, each with file, line, key, value and limit.
    """
    read_at = time.time()
    paths = Paths.from_environ(environ)
    warnings: list[str] = []
    replaced: list[Problem] = []
    files: list[Path] = []
    layers = _user_layers(config_file, paths, environ, files)
    project = find_project_file(project_dir or WorkingDirectory.here().folder)
    if project is not None:
        store = trust or TrustStore(paths.trust_file)
        found = project_layer(project, store, _gateway(layers), merge(layers).values)
        layers.append(found.layer)
        warnings += found.warnings
        replaced += found.problems
        files += [file for file in (project, paths.trust_file) if is_there(file)]
    names = merge(layers).values
    known = {
        section: list(names.get(section) or ()) for section in ("servers", "sets", "roles", "clients", "workflows")
    }
    environment = environment_layer(environ, known)
    warnings += environment.warnings
    layers += [environment.layer, *_command_line(mode, preset, overrides or {})]
    merged = merge(layers)
    replaced += _unknown_modes(layers, merged)
    warnings += map(str, replaced)
    settings = validated(merged, environment.problems, replaced)
    told = [from_text(Area.CONFIGURATION, Severity.WARNING, warning) for warning in warnings]
    told += run_checks(LOAD_CHECKS, SettingsCase(settings, environ))
    return LoadedSettings(settings, _origins(settings, merged), tuple(told), tuple(files), tuple(replaced), read_at)


def with_servers(loaded: LoadedSettings, identity: str) -> LoadedSettings:
    """Return the settings of a configuration that has servers to serve; `identity` names its file.

    Raises:
        ConfigurationError: it has none.
    """
    if not loaded.settings.servers:
        raise ConfigurationError(
            f"no servers are configured in {identity}",
            hint="bring in those of your clients: pml init; or see it work first: pml demo",
        )
    return loaded


def check_text(text: str, file: Path) -> None:
    """Refuse a text that the user's file cannot have.

    Raises:
        ConfigurationError: with every problem found.
    """
    layer = without_aliases(parse(text, "user", file))
    merged = merge([layer])
    validated(merged, _unknown_modes([layer], merged))


def load_user_settings(paths: Paths) -> Settings:
    """Load the user's file alone: servers are imported into it, whatever a project or the environment add.

    Raises:
        ConfigurationError: with every problem of the file.
    """
    return validated(merge(_user_layers(None, paths, {}, [])))


def user_settings_or_defaults(paths: Paths) -> Settings:
    """As `load_user_settings`, for a process of many clients; where the file is broken, as without one."""
    try:
        return load_user_settings(paths)
    except ConfigurationError:
        return Settings()


def _user_layers(config_file: Path | None, paths: Paths, environ: Mapping[str, str], files: list[Path]) -> list[Layer]:
    file = (config_file or paths.config_file).expanduser().absolute()
    is_named = config_file is not None or bool(environ.get("PML_CONFIG"))
    try:
        if not is_named and not file.exists():
            return []
    except OSError as exc:
        raise ConfigurationError(
            f"{file} cannot be read: {exc.strerror}", hint="check the mode of its folders"
        ) from exc
    content = read_bytes(file)
    files.append(file)
    return [without_aliases(parse(content, "user", file))]


def _gateway(layers: list[Layer]) -> GatewaySection:
    """Return the exposure below a project file; the strictest if it cannot be read, since loading fails later."""
    merged = merge(layers)
    _unknown_modes(layers, merged)
    try:
        return GatewaySection.model_validate(merged.values.get("gateway", {}))
    except ValidationError:
        return GatewaySection()


def _command_line(mode: str | None, preset: str | None, overrides: Mapping[str, Any]) -> list[Layer]:
    layers = []
    if preset is not None:
        layers.append(layer_of("preset", load_preset(preset).values, f"--preset {preset}"))
    if mode is not None:
        modes = [str(known) for known in ExposureMode]
        if mode not in modes:
            near = suggestion(mode, modes)
            raise UsageError(f"--mode: no mode {mode!r}{near}", hint=f"choose from {', '.join(modes)}")
        layers.append(layer_of("command line", {"gateway": {"tools_exposure": mode}}, "--mode"))
    for key, value in overrides.items():
        *sections, name = key.split(".")
        tree: dict[str, Any] = {name: value}
        for section in reversed(sections):
            tree = {section: tree}
        option = f"log-{name}" if sections == ["log"] else name.replace("_", "-")
        layers.append(layer_of("command line", tree, f"--{option}"))
    return layers


def _unknown_modes(layers: Sequence[Layer], merged: Layer) -> list[Problem]:
    """Return the layers' modes that there are not; the one in force is replaced by the mode that shows least."""
    modes = [str(known) for known in ExposureMode]
    problems = []
    for layer in layers:
        gateway = layer.values.get("gateway")
        if not isinstance(gateway, dict) or "tools_exposure" not in gateway or gateway["tools_exposure"] in modes:
            continue
        value, origin = gateway["tools_exposure"], layer.origin(_MODE) or DEFAULT_ORIGIN
        so = "which another source overrules"
        if origin == merged.origin(_MODE):
            so = "using meta_only"
            merged.values["gateway"]["tools_exposure"] = ExposureMode.META_ONLY.value
        what = f"unknown mode {shown(value, _MODE)}, {so}; choose from {', '.join(modes)}{suggestion(value, modes)}"
        problems.append(Problem(origin.location, dotted(_MODE), what))
    return problems


def validated(merged: Layer, known_problems: Sequence[Problem] = (), replaced: Sequence[Problem] = ()) -> Settings:
    """Return the settings of merged layers.

    Args:
        merged: the layers.
        known_problems: problems that were found before.
        replaced: values that were replaced, which the error names as well.

    Raises:
        ConfigurationError: with every problem.
    """
    problems = list(known_problems)
    try:
        settings = Settings.model_validate(merged.values)
        for path, message in unknown_names(settings):
            origin = merged.origin(path)
            problems.append(Problem(origin.location if origin else "", dotted(path), message))
    except ValidationError as exc:
        problems = [*validation_problems(exc, merged), *problems]
    if problems:
        # Outside the handler: a traceback must not carry the input, which may hold secrets.
        raise configuration_error([*problems, *replaced])
    return settings


def _origins(settings: Settings, merged: Layer) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for path, _ in leaves(settings.model_dump(mode="json")):
        found = merged.origins.get(path)
        if found is None and _is_given(settings, path):
            found = merged.origin(path)
        origins[dotted(path)] = found or DEFAULT_ORIGIN
    return origins


def _is_given(settings: Settings, path: KeyPath) -> bool:
    """Return True if a server's value was given under another client's spelling, which has its own path."""
    match path:
        case ("servers", str(server), str(field), *_):
            return field in settings.servers[server].model_fields_set
        case ("workflows", _, *_):
            return True
        case _:
            return False


def problems_of(error: ConfigurationError) -> list[Problem]:
    """Return the single problems of an error, for reports."""
    records = error.details.get("problems", [])
    return [Problem(**record) for record in records] or [Problem("", "", str(error))]
