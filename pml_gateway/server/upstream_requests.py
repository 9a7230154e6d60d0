"""Every request that an upstream is to answer for a client goes through here."""

from __future__ import annotations

from pml_gateway.errors import UpstreamUnavailableError
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.request import CallOptions
from pml_gateway.server.wire_results import check_text
from pml_gateway.types import JsonObject


async def ask_upstream(
    gateway: Gateway, upstream_id: str, method: str, params: JsonObject, options: CallOptions
) -> JsonObject:
    """Send one request with what accompanies it, and return the result as it came.

    Raises:
        UpstreamError: what kept the upstream from answering.
    """
    upstream = gateway.pool.upstreams.get(upstream_id)
    if upstream is None:
        raise UpstreamUnavailableError(f"{upstream_id}: no longer configured")
    sent = dict(params)
    if options.meta:
        sent["_meta"] = options.meta
    if options.input_responses is not None:
        sent["inputResponses"] = options.input_responses
    if options.request_state is not None:
        sent["requestState"] = options.request_state
    check_text(sent)
    with gateway.call_in_flight():
        return await upstream.request(method, sent, on_progress=options.on_progress, audience=options.audience)
