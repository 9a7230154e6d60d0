"""Doctor: folders of skills, and what keeps a skill in them from being served."""

from __future__ import annotations

from collections.abc import Iterator

from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.errors import SecretError
from pml_gateway.mcp.transport import skill_folders
from pml_gateway.skills.folders import SkillFault, SkillReader
from pml_gateway.text import counted
from pml_gateway.working_directory import WorkingDirectory


def skill_faults(settings: Settings, working_directory: WorkingDirectory) -> list[SkillFault]:
    """Return what keeps skills from being served, of all folders in a configuration. Reads them."""
    return [fault for _, _, faults in _read(settings, working_directory) for fault in faults]


def skills(case: SettingsCase) -> Iterator[Finding]:
    """Find folders and files that are not served as skills."""
    for server, count, faults in _read(case.settings, WorkingDirectory.here(case.environ)):
        for fault in faults:
            yield Finding(Area.SERVERS, Severity.WARNING, f"{server}: {fault.where}", fault.what, fault.fix)
        if not faults:
            yield Finding(Area.SERVERS, Severity.OK, server, counted(count, "skill"))


def _read(settings: Settings, working_directory: WorkingDirectory) -> Iterator[tuple[str, int, tuple[SkillFault, ...]]]:
    for server, definition in settings.servers.items():
        if not (definition.enabled and definition.skills):
            continue
        try:
            found = SkillReader(skill_folders(definition, working_directory)).read()
        except SecretError:
            # Told with all other references.
            continue
        yield server, len(found.skills), found.faults
