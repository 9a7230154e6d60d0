"""The text of a configuration file becomes the same text with every credential masked where it stands."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pml_gateway.config.document import compose
from pml_gateway.config.masking import is_secret_name, mask_arguments, mask_keys, mask_secret, mask_text
from pml_gateway.config.paths import CONFIG_NAME
from pml_gateway.config.problems import SECRET_SECTIONS

_SECTIONS = SECRET_SECTIONS | {"mcpServers"}
_SECRET_MEMBERS = frozenset({"env", "environment", "headers", "http_headers"})

Splices = dict[int, tuple[int, str]]
"""Where a replacement starts, where it ends, and what it is."""


def masked_yaml(text: str, path: Path = Path(CONFIG_NAME)) -> str:
    """`text`, laid out as before, without the credentials of its servers, clients and workflows.

    Raises:
        ConfigurationError: the text is broken YAML.
    """
    root = compose(text, path)
    splices: Splices = {}
    if isinstance(root, MappingNode):
        for key, section in root.value:
            if key.value in _SECTIONS:
                _collect(section, (), splices, set())
    for start in sorted(splices, reverse=True):
        end, masked = splices[start]
        eol = "\n" if text[start:end].endswith("\n") else ""
        text = f"{text[:start]}{masked}{eol}{text[end:]}"
    return mask_keys(text)


def _collect(node: Node, at: tuple[str, ...], splices: Splices, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    match node:
        case MappingNode():
            for key, value in node.value:
                _collect(value, (*at, str(key.value)), splices, seen)
        case SequenceNode():
            texts = [str(item.value) if isinstance(item, ScalarNode) else "" for item in node.value]
            for item, masked in zip(node.value, mask_arguments(texts), strict=True):
                if isinstance(item, ScalarNode):
                    _replace(item, masked, splices)
                else:
                    _collect(item, at, splices, seen)
        case ScalarNode():
            is_secret = not _SECRET_MEMBERS.isdisjoint(at[-2:-1]) or is_secret_name(at[-1] if at else "")
            _replace(node, mask_secret(node.value) if is_secret else mask_text(node.value), splices)


def _replace(node: ScalarNode, masked: str, splices: Splices) -> None:
    if masked != node.value:
        splices[node.start_mark.index] = (node.end_mark.index, f'"{masked}"' if node.style else masked)
