"""Changes of servers: enabled and disabled, as `pml enable` and the other commands do it."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.config.load import load_user_settings
from pml_gateway.console.change import ChangeRequest, PlannedChange, planned_edit
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.servers import last_manifest, switched_servers, switching


async def enable(request: ChangeRequest) -> PlannedChange:
    """Plan to enable a server or a tool."""
    return await _switch(request, is_on=True)


async def disable(request: ChangeRequest) -> PlannedChange:
    """Plan to disable a server or a tool."""
    return await _switch(request, is_on=False)


async def _switch(request: ChangeRequest, *, is_on: bool) -> PlannedChange:
    """Plan to enable or disable a server, or one tool of it as SERVER:TOOL."""
    paths, name = request.source.paths, request.values["name"]

    def planned() -> ConfigurationChange:
        settings = load_user_settings(paths)
        named = switched_servers(settings, [name], last_manifest(paths, settings))
        return switching(paths, settings, named, is_on=is_on)

    change = await anyio.to_thread.run_sync(planned)
    word = "Enable" if is_on else "Disable"
    return await planned_edit(
        change,
        f"{word} {name}?",
        f"{name} is {word.lower()}d.",
        button=word,
        already=f"{name} is {word.lower()}d already.",
    )
