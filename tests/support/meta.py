"""The meta-tools a gateway lists by default, in their fixed order."""

from __future__ import annotations

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.gateway.meta_definitions import AVAILABLE

LISTED = [name for name in KNOWN_META_TOOLS if name in AVAILABLE]
