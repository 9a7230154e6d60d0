"""Stages of the migration, and whether it is time for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from pml_gateway.activity.database import activity_tables
from pml_gateway.activity.history import INSIDE
from pml_gateway.config.presets import load_preset
from pml_gateway.config.problems import client_entry
from pml_gateway.config.settings import GatewaySection, Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.storage.tables import Connection
from pml_gateway.text import counted
from pml_gateway.types import MODES, ExposureMode

_TELLING = ("expose_meta_tools", "expose_underlying_tools", "apply_semantic_filter", "max_underlying_tools")

MIN_CALLS = 100
"""Calls after which a stage has shown that it works: they show one failure in fifty with 87 % probability."""

MIN_DAYS = 3.0
"""Days after which it shows habits."""

MAX_MISS_RATE = 0.2
"""Share of searches that may miss: models search again in other words."""

MAX_SUCCESS_DROP = 0.02


class Stage(StrEnum):
    """The four stages, in their order; each is the preset of the same name."""

    FULL_PROXY = "full_proxy"
    HYBRID_PERMISSIVE = "hybrid_permissive"
    HYBRID_BALANCED = "hybrid_balanced"
    META_ONLY = "meta_only"

    @property
    def mode(self) -> ExposureMode:
        """The exposure mode of the stage."""
        return next(mode for mode, facts in MODES.items() if self.value in facts.presets)

    @property
    def next(self) -> Stage | None:
        """The stage after it, if it is not the last."""
        order = list(Stage)
        place = order.index(self) + 1
        return order[place] if place < len(order) else None


ANOTHER = f"pml migrate plan --to {Stage.HYBRID_BALANCED}"


def stage_of(gateway: GatewaySection, mode: ExposureMode) -> Stage | None:
    """Return the stage a client in `mode` is in; None for semantic, and for hybrid with values of its own."""
    stages = (stage for stage in Stage if stage.mode is mode)
    return next((stage for stage in stages if mode is not ExposureMode.HYBRID or _says(gateway, stage)), None)


@cache
def _shipped(stage: Stage) -> Mapping[str, Any]:
    """Return the preset's hybrid settings; every counted list needs them."""
    hybrid: Mapping[str, Any] = load_preset(stage.value).values["gateway"]["hybrid"]
    return hybrid


def _says(gateway: GatewaySection, stage: Stage) -> bool:
    hybrid = _shipped(stage)
    same = all(getattr(gateway.hybrid, key) == hybrid[key] for key in _TELLING)
    return same and gateway.hybrid.semantic_threshold == hybrid["semantic_threshold"]


def stage_in(settings: Settings, client: str | None = None) -> Stage | None:
    """Return the stage of the gateway, or of one configured client.

    Raises:
        UsageError: no such client.
    """
    own = None if client is None else client_entry(settings, client).mode
    return stage_of(settings.gateway, own or settings.gateway.tools_exposure)


def next_of(stage: Stage | None, *, has_moved: bool) -> Stage:
    """Return the stage after this one.

    Raises:
        GatewayError: there is none; with what to do instead.
    """
    if stage is None:
        raise GatewayError(
            "this exposure is none of the stages: semantic, or hybrid with values of its own",
            hint=f"choose one: pml migrate --to {Stage.HYBRID_BALANCED}",
        )
    if stage.next is None:
        back = "; to undo the last step: pml migrate back" if has_moved else ""
        raise GatewayError(
            f"{stage} is the last stage: no other lists less, so there is nothing to move on to",
            hint=f"stay here, or see what another stage would do: {ANOTHER}{back}",
        )
    return stage.next


def values_of(stage: Stage, settings: Settings, client: str | None = None) -> dict[str, Any]:
    """Return the configuration of a stage: the preset's values, or one client's mode.

    Raises:
        ConfigurationError: no such client (UsageError), or its stage would change what others get.
    """
    preset = load_preset(stage.value).values
    if client is None:
        return dict(preset)
    client_entry(settings, client)
    values: dict[str, Any] = {"clients": {client: {"mode": stage.mode.value}}}
    if stage.mode is not ExposureMode.HYBRID or _says(settings.gateway, stage):
        return values
    others = {name: each.mode for name, each in settings.clients.items() if name != client}
    modes = {"the gateway": settings.gateway.tools_exposure, **others}
    sharing = [name for name, mode in modes.items() if mode is not None and MODES[mode].reads_intent]
    if sharing:
        raise ConfigurationError(
            f"{client} cannot move to {stage} alone: {', '.join(sharing)} would get its hybrid values as well",
            hint="move all together without --client, or this client to meta_only or full_proxy",
        )
    return {**values, "gateway": {"hybrid": dict(preset["gateway"]["hybrid"])}}


def with_values(settings: Settings, values: dict[str, Any]) -> Settings:
    """Return the settings with the values of a stage laid over them."""
    given = values.get("gateway", {})
    gateway = settings.gateway
    hybrid = gateway.hybrid.model_copy(update=given.get("hybrid", {}))
    full = gateway.full_proxy.model_copy(update=given.get("full_proxy", {}))
    mode = ExposureMode(given.get("tools_exposure", gateway.tools_exposure))
    clients = {
        name: entry.model_copy(update={"mode": ExposureMode(values["clients"][name]["mode"])})
        if name in values.get("clients", {})
        else entry
        for name, entry in settings.clients.items()
    }
    changed = gateway.model_copy(update={"tools_exposure": mode, "hybrid": hybrid, "full_proxy": full})
    return settings.model_copy(update={"gateway": changed, "clients": clients})


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a stage: calls since it began, their routes, missed searches and successes, and those before."""

    calls: int
    days: float
    through_search: int
    searches: int
    missed: int
    success: float | None
    success_before: float | None

    @property
    def miss_rate(self) -> float:
        """The share of searches after which no hit was called."""
        return self.missed / self.searches if self.searches else 0.0


def read_progress(path: Path, config: str, client: str | None, since: float | None, now: float) -> StageProgress:
    """Return the progress of the stage that began at `since`; without a beginning, of everything recorded.

    Raises:
        TablesError: the database cannot be read.
    """
    of_client, named = ("", ()) if client is None else (" AND {0}.client = ?", (client,))
    calls = f"FROM accesses WHERE config = ? AND counts AND how != ?{of_client.format('accesses')}"
    searches = f"FROM searches WHERE config = ?{of_client.format('searches')}"
    of_calls, of_searches = (config, INSIDE, *named), (config, *named)

    def ask(connection: Connection) -> StageProgress:
        def one(query: str, *values: object) -> tuple[Any, ...]:
            row: tuple[Any, ...] = connection.execute(query, values).fetchone()
            return row

        firsts = [
            connection.execute(f"SELECT at {rows} ORDER BY at LIMIT 1", values).fetchone()
            for rows, values in ((calls, of_calls), (searches, of_searches))
        ]
        began = since if since is not None else min((first[0] for first in firsts if first is not None), default=now)
        # One pass over all rows: by an index, each would be read by itself.
        count, success, before, through = one(
            "SELECT total(at >= ?1), avg(iif(at >= ?1, code = 'OK', NULL)), avg(iif(at < ?1, code = 'OK', NULL)),"
            f" total(at >= ?1 AND search IN (SELECT key FROM searches)) {calls}",
            began,
            *of_calls,
        )
        missed = "total(NOT EXISTS (SELECT 1 FROM accesses WHERE search = searches.key))"
        made, misses = one(f"SELECT count(*), {missed} {searches} AND at >= ?", *of_searches, began)
        days = max(now - began, 0.0) / 86400
        return StageProgress(int(count), days, int(through), made, int(misses), success, before)

    return activity_tables(path).read(
        ask, StageProgress(0, max(now - (since or now), 0.0) / 86400, 0, 0, 0, None, None)
    )


def reasons_to_wait(found: StageProgress) -> list[str]:
    """Return every criterion that does not hold yet; none when it is time to move on."""
    reasons = []
    if found.calls < MIN_CALLS:
        reasons.append(f"{counted(found.calls, 'call')} in this stage, at least {MIN_CALLS} are advised")
    if found.days < MIN_DAYS:
        reasons.append(f"{found.days:.1f} days in this stage, at least {MIN_DAYS:g} are advised")
    if found.miss_rate > MAX_MISS_RATE:
        limit = f"at most {MAX_MISS_RATE:.0%}"
        reasons.append(
            f"{found.missed} of {found.searches} searches missed ({found.miss_rate:.0%}), {limit} are advised"
        )
    # Floats: 1 - 0.98 is a little more than 0.02.
    dropped = round((found.success_before or 0.0) - (found.success or 0.0), 9)
    if found.success is not None and found.success_before is not None and dropped > MAX_SUCCESS_DROP:
        reasons.append(f"success fell from {found.success_before:.1%} to {found.success:.1%} in this stage")
    return reasons
