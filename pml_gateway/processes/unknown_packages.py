"""Packages that do not exist, recognised by what package runners write to stderr."""

from __future__ import annotations

import re

from pml_gateway.config.commands.packages import PackageRun
from pml_gateway.errors import UpstreamUnusableError
from pml_gateway.secrets.masking import mask_text, without_defaults
from pml_gateway.text import escaped, shortened

MAX_SHOWN = 60
"""Maximum length of a package's name in a message."""

MAX_LINE = 200
"""Maximum length of a quoted line of a package runner."""

UNKNOWN_PACKAGE = "unknown_package"
"""The state, in an error's details, of a server whose package does not exist."""

_UNKNOWN = re.compile(
    # npm, pnpm, bun, yarn; then uv and pip; then deno and docker.
    rb"E404|ETARGET|ENOVERSIONS|ERR_PNPM_FETCH_404|NO_MATCHING_VERSION|is not in (?:this|the npm) registry"
    rb"|registry\.npmjs\.org/\S+ - 404|No version matching|(?:Package|package) not found"
    rb"|was not found in the package registry|there is no version of|No matching distribution found"
    rb"|npm package '[^']*' does not exist|JSR package not found"
    rb"|manifest (?:for \S+ not found|unknown)|repository does not exist"
)
"""Output of package runners if a registry has no such package or version."""


def unknown_package(upstream_id: str, said: bytes, run: PackageRun) -> UpstreamUnusableError | None:
    """Return the error for a package that does not exist, if the output of a runner shows that."""
    if not _UNKNOWN.search(said):
        return None
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    # The last line that names the missing package: the first ones are codes.
    line = next((line for line in reversed(lines) if _UNKNOWN.search(line.encode())), lines[-1])
    last_words = shortened(escaped(mask_text(line)), MAX_LINE)
    return UpstreamUnusableError(
        f"{upstream_id}: {shown(run)} does not exist, says {run.runner}: {last_words}",
        hint=f"correct the name or version in servers.{upstream_id}.args, or log in to its registry",
        details={"executed": "no", "state": UNKNOWN_PACKAGE},
    )


def shown(run: PackageRun) -> str:
    """Return runner and package for messages, without secrets."""
    return f"{run.runner} {shortened(escaped(mask_text(without_defaults(run.packages[0]))), MAX_SHOWN)}"
