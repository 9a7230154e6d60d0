"""Advice in the log of a serving gateway once it knows its tools, and the set-up of the log from the settings."""

from __future__ import annotations

from collections.abc import Collection

import anyio
import anyio.to_thread

from pml_gateway.config.masked import literal_credentials
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import list_tokens
from pml_gateway.log import get_logger
from pml_gateway.policy.idle_entries import idle_entries
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.telemetry import logs
from pml_gateway.text import counted
from pml_gateway.types import ExposureMode

logger = get_logger(__name__)

LISTED_SECONDS = 60.0
"""Maximum seconds to wait for all servers before the cost of full_proxy is logged: one of them may never list."""


def set_up_logs(settings: Settings, owner: Settings | None = None) -> None:
    """Configure the log from the `owner`'s settings if given, else from `settings`; mask the secrets in `settings`."""
    KNOWN_SECRETS.remember_all(literal_credentials(settings))
    logs.configure((owner or settings).log, servers=settings.servers)


def follow_logs(gateway: Gateway) -> None:
    """Reconfigure the log after each change of the settings; for a gateway that is the only one of its process."""
    gateway.current.on_swap(_follow_logs)


def _follow_logs(before: GatewayState, after: GatewayState) -> None:
    if before.settings is not after.settings:
        set_up_logs(after.settings)


async def advise(gateway: Gateway, whose: str = "") -> None:
    """Log, once the tools are known, definitions awaiting review, rules that match no tool, and the cost of full_proxy.

    In a process with several gateways, `whose` names the client of this one.
    """
    await gateway.known_tools()
    await gateway.first_asked()
    if waiting := gateway.trust_gate.held_count:
        logger.warning("%s of servers held back, awaiting your review: pml trust list", counted(waiting, "definition"))
    told = _warn_of_rules(gateway, set())
    with anyio.move_on_after(LISTED_SECONDS):
        await _whole(gateway)
    state = gateway.state
    # The cost of an empty list is meaningless: servers have yet to fill it.
    if state.settings.gateway.tools_exposure is ExposureMode.FULL_PROXY and state.catalog.tools:
        await _warn_of_cost(state, whose)
    await _whole(gateway)
    _warn_of_rules(gateway, told)


def _warn_of_rules(gateway: Gateway, told: Collection[str]) -> set[str]:
    """Log rules that certainly match no tool and have not been `told`, and return all that have been."""
    state = gateway.state
    found = idle_entries(state.settings, state.catalog, gateway.trust_gate.servers, gateway.silent)
    warnings = [str(finding) for finding in found if finding.is_fault]
    for warning in warnings:
        if warning not in told:
            logger.warning("%s", warning)
    return {*told, *warnings}


async def _whole(gateway: Gateway) -> GatewayState:
    """Wait for the first state in which every server is known, and return the current one; rules need all servers."""
    whole = anyio.Event()

    def look(_before: GatewayState, after: GatewayState) -> None:
        if all(said is not None for said in after.catalog.offers.upstreams.values()):
            whole.set()

    stop = gateway.current.on_swap(look)
    try:
        look(gateway.state, gateway.state)
        await whole.wait()
    finally:
        stop()
    return gateway.state


async def _warn_of_cost(state: GatewayState, whose: str) -> None:
    cost = await anyio.to_thread.run_sync(list_tokens, state, ExposureMode.FULL_PROXY)
    logger.warning(
        "%sfull_proxy lists %s: %s tokens in every conversation; meta_only needs %s",
        f"for {whose}, " if whose else "",
        counted(cost.tools, "tool"),
        f"{cost.tokens:,}",
        f"{list_tokens(state, ExposureMode.META_ONLY).tokens:,}",
    )
