"""Approval of a project file: the settings and servers that it would bring, before anything is approved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.config.document import parse
from pml_gateway.config.layers import dotted, leaves
from pml_gateway.config.load import load_settings
from pml_gateway.config.masked import masked_start
from pml_gateway.config.problems import without_aliases
from pml_gateway.config.trust import TrustStore, fingerprint, read_project_file


@dataclass(frozen=True, slots=True)
class Approval:
    """Permissions of a project file once approved; `starts` has the command or URL of each of its servers."""

    file: Path
    content: bytes
    keys: tuple[str, ...]
    starts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The hash that the approval is pinned to."""
        return fingerprint(self.content)


def proposed(file: Path, store: TrustStore, environ: Mapping[str, str] = os.environ) -> Approval:
    """Read what approving `file` as it is now would allow; nothing is approved.

    Raises:
        ConfigurationError: the file is broken or not the user's own, or the configuration would not load with it.
    """
    content = read_project_file(file)
    values = without_aliases(parse(content, "project", file)).values
    settings = load_settings(
        project_dir=file.parent, environ=environ, trust=store.with_proposal(file, content)
    ).settings
    names = values.get("servers", {})
    return Approval(
        file,
        content,
        tuple(dotted(path) for path, _ in leaves(values)),
        tuple(f"{name}: {masked_start(settings.servers[name])}" for name in names),
    )
