"""Changes of settings: single ones, presets, stages of the migration, and repairs of what the doctor finds."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import anyio.to_thread

from pml_gateway.config.edits.edit import FileEdit, apply_preset
from pml_gateway.config.presets import load_preset
from pml_gateway.config.single_settings import read_setting
from pml_gateway.console.change import ChangeRequest, MadeChange, PlannedChange, Undo, planned_edit
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.owner.operations import PLAN_MIGRATION
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.migration import Migration
from pml_gateway.setup.presets import consequences
from pml_gateway.setup.settings import setting_edit
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

MIGRATION_DAYS = 30.0
"""Days of recorded calls that a step is judged by, as for `pml migrate next`."""


class _Step(Protocol):
    def __call__(self, *, dry_run: bool) -> Awaitable[JsonObject]: ...


async def change_setting(request: ChangeRequest) -> PlannedChange:
    """Plan to change one setting, as `pml config set` does."""
    key = request.values["key"].strip()
    return await _settings(request.source, {key: read_setting(key, request.values["value"].strip())})


async def change_settings(request: ChangeRequest) -> PlannedChange:
    """Plan to change several settings, given as JSON."""
    try:
        values = json.loads(request.values["values"])
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values:
        raise UsageError("no settings are given", hint="load the page again")
    return await _settings(request.source, values)


async def _settings(source: GatewaySource, values: Mapping[str, Any]) -> PlannedChange:
    paths, names = source.paths, ", ".join(values)

    def planned() -> ConfigurationChange:
        return ConfigurationChange(paths, setting_edit(paths.config_file, values, source.load()))

    change = await anyio.to_thread.run_sync(planned)
    return await planned_edit(
        change,
        f"Change {names}?",
        f"{names}: changed.",
        button="Change",
        already=f"{paths.config_file} says so already.",
    )


async def use_preset(request: ChangeRequest) -> PlannedChange:
    """Plan to apply a preset, as `pml config --preset` does."""
    paths, preset = request.source.paths, load_preset(request.values["name"])
    change = ConfigurationChange(paths, lambda text: apply_preset(text, preset, paths.config_file))

    def warnings() -> list[str]:
        edit: FileEdit = change.preview()
        return consequences(preset, edit)

    return await planned_edit(
        change,
        f"Use the preset {preset.name}?",
        f"The preset {preset.name} is used.",
        button="Use it",
        notes=[f"{preset.summary}.", *await anyio.to_thread.run_sync(warnings)],
        already=f"The configuration says already what {preset.name} says.",
    )


async def next_stage(request: ChangeRequest) -> PlannedChange:
    """Plan the next step of the migration, as `pml migrate next` does."""
    source = request.source
    migration = migration_of(source)
    loaded = await anyio.to_thread.run_sync(source.load)
    target = await anyio.to_thread.run_sync(migration.checked, None, loaded.settings)
    asked = {"client": None, "target": target, "days": MIGRATION_DAYS, "keep": 1.0}
    plan = await source.ask(PLAN_MIGRATION, asked)
    if plan["lost_calls"]:
        raise GatewayError(
            f"{counted(plan['lost_calls'], 'recorded call')} would be neither listed nor found in {target}",
            hint=f"pml migrate plan names them; pml migrate next --max-missed {plan['lost_calls']} moves all the same",
        )

    async def apply(*, dry_run: bool) -> JsonObject:
        return await migration.apply(plan, loaded, apply_whitelist=False, dry_run=dry_run)

    replayed = (
        f"{counted(plan['calls'], 'recorded call')} replayed: {plan['listed_calls']:,} with their tool listed, "
        f"{plan['found_calls']:,} with a search that finds it."
    )
    notes = [
        replayed if plan["calls"] else "No calls are recorded, so nothing speaks against it.",
        f"A list has {counted(plan['tokens_then'], 'token')} instead of {plan['tokens_now']:,}.",
    ]
    return await _step(apply, f"Move to {target}?", f"Moved to {target}.", notes, Undo("stage_back", {}))


async def previous_stage(request: ChangeRequest) -> PlannedChange:
    """Plan to undo the last step of the migration, as `pml migrate back` does."""
    return await _step(migration_of(request.source).back, "Undo the last step?", "The last step is undone.", [], None)


async def _step(change: _Step, question: str, said: str, notes: list[str], undo: Undo | None) -> PlannedChange:
    preview = await change(dry_run=True)

    async def make() -> MadeChange:
        made = await change(dry_run=False)
        problems = [
            f"A running gateway does not follow: {each['error']}." for each in made["gateways"] if "error" in each
        ]
        return MadeChange(" ".join([said, *problems]), undo)

    return PlannedChange(question, make, "Move" if undo else "Undo", preview["diff"], notes)


def migration_of(source: GatewaySource) -> Migration:
    """Return the migration of all clients together."""
    return Migration(source.paths, source.identity, source.paths.config_file)


async def repair(request: ChangeRequest) -> PlannedChange:
    """Plan to repair what the doctor found, as `pml doctor --fix` does."""
    wanted = request.values["finding"]
    found = next((each for each in await request.source.examine() if each.repair and each.digest == wanted), None)
    if found is None:
        raise UsageError("that is no longer found", hint="look at the list again")
    name = found.subject or found.area.value

    async def make() -> MadeChange:
        repaired = await anyio.to_thread.run_sync(found.repaired)
        if not repaired.is_fixed:
            raise GatewayError(f"{name}: {repaired.details[-1]}")
        return MadeChange(f"{name}: fixed.")

    return PlannedChange(found.question or f"Fix {name}?", make, "Fix", notes=[found.what, found.fix])
