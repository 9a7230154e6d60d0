"""`pml lineage`: which calls made a stored result, from which others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import fail, print_json, print_table, say
from pml_gateway.errors import ReferenceNotFoundError

if TYPE_CHECKING:
    from pml_gateway.types import JsonObject


def lineage(
    ref: Annotated[str, typer.Argument(help="A reference, as an answer named it.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a stored result came from. Asks the running gateways, and the store if it outlives them.

    Example: pml lineage ref_4kJw9s0dQ2mV7xZbN1cTfA
    """
    command = Command(config, as_json=as_json)
    graph = command.run(lambda: _lineage(command, ref))
    if graph is None:
        fail(ReferenceNotFoundError(ref), as_json=as_json)
    if as_json:
        print_json(graph)
        return
    calls = [node for node in graph["nodes"] if node["kind"] == "call"]
    results = [node for node in graph["nodes"] if node["kind"] == "result"]
    print_table(
        ("call", "tool", "status", "at", "from", "made"),
        (
            (
                node["id"],
                node["tool"],
                node["status"],
                node["at"],
                _ends(graph, "to", node["id"], "from"),
                _ends(graph, "from", node["id"], "to"),
            )
            for node in calls
        ),
    )
    say()
    print_table(
        ("result", "bytes", "shape", "expires"),
        (
            (node["id"], node.get("bytes", node.get("status", "")), node.get("shape", ""), node.get("expires_at", ""))
            for node in results
        ),
    )


async def _lineage(command: Command, ref: str) -> JsonObject | None:
    from pml_gateway.results.lineage import lineage as graph_of
    from pml_gateway.serve.control import ask_gateways

    if command.config_file is None:
        for answer in await ask_gateways(command.paths, "lineage", ref=ref):
            if answer.get("lineage"):
                graph: JsonObject = answer["lineage"]
                return graph
    if command.load().settings.references.store == "memory":
        # What was kept in memory ended with its gateway.
        return None
    async with command_gateway(command) as gateway:
        return await graph_of(ref, gateway.results.look_up_as_owner, gateway.results.uses)


def _ends(graph: JsonObject, end: str, node: str, other: str) -> str:
    return ", ".join(edge[other] for edge in graph["edges"] if edge[end] == node)
