"""Migration of one configuration through the stages: its standing, the plan of a step, the step, and the way back."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pml_gateway.activity.migration import Journal, refuse_overruled
from pml_gateway.activity.stages import Stage, next_of, read_progress, reasons_to_wait, stage_in, values_of, with_values
from pml_gateway.config.edits.edit import edit_file, set_values
from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import Settings
from pml_gateway.owner.operations import RELOAD
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from pml_gateway.reports.replay import PlannedMigration
from pml_gateway.types import JsonObject

RELOAD_SECONDS = 30.0
"""Time limit in seconds for running gateways to read the file; one may have servers to start."""


@dataclass(frozen=True, slots=True)
class Migration:
    """The stages of one configuration, for one client or for all together."""

    paths: Paths
    identity: str
    file: Path
    client: str | None = None

    @property
    def journal(self) -> Journal:
        """Return the steps so far."""
        return Journal(self.paths.migrations_dir, self.identity)

    def status(self, settings: Settings) -> JsonObject:
        """Return the stage, how it goes since it began, and what speaks against moving on."""
        stage = stage_in(settings, self.client)
        step = self.journal.last(self.client)
        since = step.at if step is not None and stage is not None and step.stage == stage.value else None
        found = read_progress(self.paths.activity_file, self.identity, self.client, since, time.time())
        following = stage.next if stage is not None else None
        own = [] if self.client else [name for name, entry in settings.clients.items() if entry.mode is not None]
        return {
            "stage": stage.value if stage else None,
            "mode": settings.gateway.tools_exposure.value,
            "client": self.client,
            "next": following.value if following else None,
            "since": since,
            **asdict(found),
            "miss_rate": found.miss_rate,
            "reasons_to_wait": reasons_to_wait(found) if following else [],
            "clients_with_own_mode": own,
        }

    def checked(self, target: Stage | None, settings: Settings) -> Stage:
        """Return the stage to move to, by default the next one.

        Raises:
            GatewayError: there is no next stage, or the step cannot be taken.
        """
        stage = stage_in(settings, self.client)
        chosen = target or next_of(stage, has_moved=self.journal.last(self.client) is not None)
        values_of(chosen, settings, self.client)
        return chosen

    async def apply(
        self, plan: PlannedMigration, loaded: LoadedSettings, *, apply_whitelist: bool, dry_run: bool
    ) -> JsonObject:
        """Take the step: write the configuration, remember how to undo that, and tell running gateways.

        Args:
            plan: the step.
            loaded: the settings in force.
            apply_whitelist: also write the proposed whitelist.
            dry_run: change nothing.

        Raises:
            ConfigurationError: another source overrides the file, or the file cannot be written.
        """
        target, before = Stage(plan["target"]), plan["stage"] or "custom"
        values = values_of(target, loaded.settings, self.client)
        if apply_whitelist:
            hybrid = values.setdefault("gateway", {}).setdefault("hybrid", {})
            entries = [
                *with_values(loaded.settings, values).gateway.hybrid.whitelisted_tools,
                *plan["whitelist"]["tools"],
            ]
            hybrid["whitelisted_tools"] = [*dict.fromkeys(entries)]
        refuse_overruled(loaded.origins, values)
        if dry_run:
            edit = edit_file(self.file, lambda text: set_values(text, values, self.file), dry_run=True)
        else:
            edit = self.journal.move(self.file, values, client=self.client, before_stage=before, stage=target.value)
        return {
            "moved": not dry_run,
            "stage": target.value,
            "from": before,
            "client": self.client,
            "file": str(edit.path),
            "diff": edit.diff,
            "gateways": [] if dry_run else await self._reload(),
            "plan": plan,
        }

    async def back(self, *, dry_run: bool) -> JsonObject:
        """Undo the last step, and tell running gateways."""
        undone = self.journal.undo(self.client, dry_run=dry_run)
        return {
            "moved": not dry_run,
            "stage": undone.step.before_stage,
            "from": undone.step.stage,
            "client": self.client,
            "exact": undone.exact,
            "file": str(undone.edit.path),
            "diff": undone.edit.diff,
            "gateways": [] if dry_run else await self._reload(),
        }

    async def _reload(self) -> list[JsonObject]:
        """Let running gateways read the file now; they also watch it."""
        answers = await ask_gateways(self.paths, RELOAD, RELOAD_SECONDS)
        served = [{"pid": each["pid"], "mode": each["mode"]} for each in answers.results if each["gateways"]]
        return [*served, *({"error": each} for each in answers.errors)]
