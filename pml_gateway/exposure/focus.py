"""Tools that one session added to its own list, until it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.types import ExposureMode

FOCUS = "focus"
"""Name of the meta-tool."""

LISTS_AGAIN_WITHIN = 2.0
"""Seconds within which a client that follows notices lists again after one."""

Source = tuple[str, str]
"""A server id and the tool's original name, which stay the same when the tool is renamed."""

Shows = Callable[[CatalogTool], bool]
"""Returns True if a tool of the catalog is visible to the client."""


@dataclass(frozen=True, slots=True)
class FocusedTools:
    """The additions of a session to the list of its mode: tools, and the meta-tool `focus`."""

    tools: tuple[CatalogTool, ...] = ()
    is_offered: bool = False

    def __bool__(self) -> bool:
        return bool(self.tools) or self.is_offered


NOT_FOCUSED = FocusedTools()


def _nobody() -> None:
    return


@dataclass(slots=True)
class Focus:
    """Focused tools of a handshake session. If its client `follows` notices, it gets `focus` without a setting.

    `on_change` is called when its list may have changed.
    """

    sources: tuple[Source, ...] = ()
    follows: bool = False
    on_change: Callable[[], None] = _nobody
    _told_at: float | None = None

    def told(self, now: float) -> None:
        """Note that the client was notified of a change of its tool list."""
        self._told_at = now

    def listed(self, now: float) -> None:
        """Note that the client lists its tools."""
        told_at, self._told_at = self._told_at, None
        if not self.follows and told_at is not None and now - told_at <= LISTS_AGAIN_WITHIN:
            self.follows = True
            self.on_change()

    def put(self, tools: Sequence[CatalogTool]) -> None:
        """Put exactly these tools on the list."""
        self.sources = tuple((tool.upstream_id, tool.name) for tool in tools)
        self.on_change()

    def tools(self, catalog: Catalog, shows: Shows) -> tuple[CatalogTool, ...]:
        """Return the focused tools that are currently visible to the client, sorted by name."""
        found = [catalog.owned(*source) for source in self.sources]
        visible = [tool for tool in found if tool is not None and shows(tool)]
        return tuple(sorted(visible, key=lambda tool: tool.qualified_name))


def focused(focus: Focus | None, mode: ExposureMode, catalog: Catalog, shows: Shows) -> FocusedTools:
    """Return the additions of a session's focus to its list; none without a session, or if all tools are listed."""
    if focus is None or not (focus.sources or focus.follows) or mode is ExposureMode.FULL_PROXY:
        return NOT_FOCUSED
    return FocusedTools(focus.tools(catalog, shows), focus.follows)
