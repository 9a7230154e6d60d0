"""The peers by name; one module each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.baselines import direct, fastmcp_gateway, fastmcp_proxy, mcp_proxy, pml
from benchmarks.peers import Peer

PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "direct": direct.start,
        "pml": pml.start,
        "fastmcp_proxy": fastmcp_proxy.start,
        "fastmcp_gateway": fastmcp_gateway.start,
        "mcp_proxy": mcp_proxy.start,
    }
)
