"""A project file and a person's word become a pinned approval, with the list of what was approved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.config.document import parse, read_bytes
from pml_gateway.config.layers import dotted, leaves
from pml_gateway.config.load import load_settings
from pml_gateway.config.masked import masked_server
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.shape import shaped
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Approval:
    """What a project file may do from now on; `starts` has the command or URL of each of its servers."""

    sha256: str
    keys: tuple[str, ...]
    starts: tuple[str, ...]


def approve(file: Path, store: TrustStore, environ: Mapping[str, str] = os.environ) -> Approval:
    """Pin `file` as it is now.

    Raises:
        ConfigurationError: the file is broken, or the configuration would not load with it; it is not trusted then.
    """
    content = read_bytes(file)
    values = shaped(parse(content, "project", file)).values
    entry = store.trust(file, content)
    try:
        settings = load_settings(project_dir=file.parent, environ=environ).settings
    except ConfigurationError:
        store.revoke(file)
        raise
    names = values.get("servers", {})
    return Approval(
        entry.sha256,
        tuple(dotted(path) for path, _ in leaves(values)),
        tuple(f"{name}: {_start(settings.servers[name])}" for name in names),
    )


def _start(definition: UpstreamDefinition) -> str:
    shown = masked_server(definition)
    return str(shown["url"]) if "url" in shown else " ".join([str(shown.get("command")), *shown.get("args", ())])
