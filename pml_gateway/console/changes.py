"""All changes that pages make: each does what its command does."""

from __future__ import annotations

from collections.abc import Mapping

import anyio.to_thread

from pml_gateway.config.edits.edit import file_backups
from pml_gateway.config.presets import PRESET_NAMES
from pml_gateway.console.change import ChangeRequest, PageChange, PlannedChange, planned_edit
from pml_gateway.console.decisions import accept, approve, deny, reject
from pml_gateway.console.forms import FormField
from pml_gateway.console.server_changes import (
    ADD_FIELDS,
    OVERRIDE_FIELDS,
    add,
    disable,
    enable,
    log_in,
    override,
    remove,
    restart,
)
from pml_gateway.console.setting_changes import (
    change_setting,
    change_settings,
    next_stage,
    previous_stage,
    repair,
    use_preset,
)
from pml_gateway.console.tool_page import ARGUMENT, CALL_FIELDS, call_tool
from pml_gateway.errors import UsageError
from pml_gateway.gateway.approval_requests import ApprovalScope
from pml_gateway.setup.change import ConfigurationChange


async def _undo(request: ChangeRequest) -> PlannedChange:
    """Plan to restore a backup of the configuration, as `pml backups restore` does."""
    paths, name = request.source.paths, request.values["backup"]

    def text() -> str:
        found = next((each for each in file_backups(paths.config_file) if each.name == name), None)
        if found is None:
            raise UsageError(f"no backup {name!r}", hint="pml backups lists them")
        return found.read_bytes().decode()

    before = await anyio.to_thread.run_sync(text)
    change = ConfigurationChange(paths, lambda _: before)
    return await planned_edit(change, "Put the configuration back as it was?", "That is undone.", button="Undo")


MAX_NAME = 2000
"""Characters of the name of a definition: servers choose URIs of resources."""

SERVER_OR_TOOL = {"name": FormField()}

CHANGES: Mapping[str, PageChange] = {
    "enable": PageChange("Enable", SERVER_OR_TOOL, enable, "servers"),
    "disable": PageChange("Disable", SERVER_OR_TOOL, disable, "servers"),
    "override": PageChange("Change", OVERRIDE_FIELDS, override, "servers"),
    "add": PageChange("Add servers", ADD_FIELDS, add, "servers"),
    "remove": PageChange("Remove", SERVER_OR_TOOL, remove, "servers"),
    "restart": PageChange("Restart", SERVER_OR_TOOL, restart, "servers"),
    "log_in": PageChange("Log in", SERVER_OR_TOOL, log_in, "servers"),
    "undo": PageChange("Undo", {"backup": FormField()}, _undo, "overview"),
    "approve": PageChange(
        "Approve",
        {
            "id": FormField(),
            "scope": FormField(choices=tuple(each.value for each in ApprovalScope)),
            "passphrase": FormField("Passphrase", is_required=False, is_secret=True),
        },
        approve,
        "waiting",
    ),
    "deny": PageChange("Deny", {"id": FormField()}, deny, "waiting"),
    "accept": PageChange("Accept", {"name": FormField(longest=MAX_NAME)}, accept, "waiting"),
    "reject": PageChange("Reject", {"name": FormField(longest=MAX_NAME)}, reject, "waiting"),
    "setting": PageChange(
        "Change a setting",
        {"key": FormField("Setting"), "value": FormField("Value", 10_000, is_required=False, is_long=True)},
        change_setting,
        "settings",
    ),
    "settings": PageChange("Change settings", {"values": FormField(longest=50_000)}, change_settings, "settings"),
    "preset": PageChange("Use a preset", {"name": FormField(choices=PRESET_NAMES)}, use_preset, "settings"),
    "stage_next": PageChange("Move to the next stage", {}, next_stage, "settings"),
    "stage_back": PageChange("Undo the last step", {}, previous_stage, "settings"),
    "repair": PageChange("Fix", {"finding": FormField()}, repair, "doctor"),
    "call": PageChange("Call", CALL_FIELDS, call_tool, "tools", more=ARGUMENT),
}
"""The changes by the name in their path."""
