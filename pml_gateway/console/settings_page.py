"""The pages about the configuration: its values with their origins, presets, the migration, backups, the doctor."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.config.edits.edit import file_backups, scalar
from pml_gateway.config.findings import Severity
from pml_gateway.config.layers import dotted, leaves
from pml_gateway.config.load import LoadedSettings, Origin
from pml_gateway.config.masked import masked_settings
from pml_gateway.config.presets import EXPOSURE_KEYS, PRESET_NAMES, load_preset
from pml_gateway.config.settings import Settings
from pml_gateway.console.request import PageRequest
from pml_gateway.console.setting_changes import migration_of
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.reports.settings import setting_of, setting_text
from pml_gateway.types import JsonObject

MAX_VALUE = 400
"""Characters of a value that are shown."""


async def settings(request: PageRequest) -> JsonObject:
    """Return the configuration in force with the origin of each value, and everything that changes it."""
    source, wrong = request.source, None
    try:
        loaded = await anyio.to_thread.run_sync(source.load)
    except ConfigurationError as error:
        # A broken file must not hide the backups of the one before it.
        loaded, wrong = LoadedSettings(Settings(), {}, (), ()), error
    words, shows_all = request.text("q").casefold(), request.text("all") == "yes"
    rows = [
        row
        for row in _rows(loaded)
        if words in f"{row['key']} {row['value']}".casefold() and (shows_all or words or row["source"] != "default")
    ]
    key = request.text("key")
    return {
        "wrong": wrong.as_json() if wrong else None,
        "rows": request.page(rows),
        "words": request.text("q"),
        "shows_all": shows_all,
        "chosen": _chosen(loaded, key) if key else None,
        "presets": _presets(loaded),
        **await anyio.to_thread.run_sync(_files, source, loaded),
        "warnings": list(map(str, loaded.warnings)),
    }


def _rows(loaded: LoadedSettings) -> list[JsonObject]:
    found: list[JsonObject] = []
    for path, value in leaves(masked_settings(loaded.settings)):
        origin = loaded.origins.get(dotted(path))
        text = scalar(value)
        found.append(
            {
                "key": dotted(path),
                "value": text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…",
                "source": origin.source if origin is not None else "default",
                "location": _place(origin) if origin is not None else "",
            }
        )
    return found


def _place(origin: Origin) -> str:
    """Return where a value is set: the line of a file without its folder, or a variable."""
    return "" if origin.source == "default" else origin.location.rpartition("/")[2]


def _chosen(loaded: LoadedSettings, key: str) -> JsonObject:
    """Return a setting that is to be changed, with its value now."""
    setting = setting_of(key)
    if setting is None:
        raise GatewayError(f"{key[:80]!r} cannot be changed here", hint="edit the configuration file")
    [real, masked] = (
        {dotted(path): value for path, value in leaves(tree)}.get(key)
        for tree in (loaded.settings.model_dump(mode="json"), masked_settings(loaded.settings))
    )
    # What is masked would be written back as a mask.
    is_masked = masked is not None and masked != real
    return {
        "key": key,
        "text": "" if is_masked else setting_text(real),
        "setting": setting,
        "is_list": setting.takes == "list of texts",
    }


def _presets(loaded: LoadedSettings) -> list[JsonObject]:
    """Return the presets, with the one that the settings are those of."""
    now = dict(leaves(loaded.settings.model_dump(mode="json", include={"gateway"})))
    found = []
    for preset in map(load_preset, PRESET_NAMES):
        wanted = preset.leaves()
        is_used = all(now[key] == wanted[key] for key in EXPOSURE_KEYS)
        found.append({"name": preset.name, "summary": preset.summary, "is_used": is_used})
    return found


def _files(source: GatewaySource, loaded: LoadedSettings) -> JsonObject:
    """Return what lies in files: the stage with how it goes, its steps, and the backups. Blocking."""
    paths = source.paths
    migration = migration_of(source)
    try:
        stage: JsonObject = migration.status(loaded.settings)
    except GatewayError as error:
        stage = {"error": str(error)}
    has_steps = migration.journal.last(None) is not None
    backups = [{"name": each.name, "at": each.stat().st_mtime} for each in reversed(file_backups(paths.config_file))]
    return {"stage": stage, "has_steps": has_steps, "backups": backups, "file": str(paths.config_file)}


async def doctor(request: PageRequest) -> JsonObject:
    """Return what the doctor finds, what is wrong first."""
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE, Severity.OK]
    found = sorted(await request.source.examine(), key=lambda each: order.index(each.severity))
    rows = [
        {
            "area": each.area.value,
            "severity": each.severity.value,
            "subject": each.subject,
            "what": each.what,
            "fix": each.fix,
            "details": list(each.details),
            "digest": each.digest if each.repair is not None else "",
        }
        for each in found
    ]
    return {"rows": request.page(rows), "faults": sum(each.is_fault for each in found)}
