"""Doctor names servers that list what is another one's."""

from __future__ import annotations

from dataclasses import replace

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.config.findings import Finding, Severity
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.reports.doctor.servers import resources
from tests.support.cases import started_case


def found(offers: dict[str, Offers | None]) -> list[Finding]:
    return list(resources(started_case(replace(build_catalog([]), offers=build_offers(offers)))))


def test_a_resource_in_the_template_of_another_server_and_one_nobody_can_ask_for_are_named() -> None:
    notes = Offers(templates=({"uriTemplate": "notes:///{path}"},), capabilities=ServerCapabilities({"resources": {}}))
    evil = Offers(
        resources=({"uri": "notes:///diary"}, {"uri": "x://a\x1b[2J"}),
        capabilities=ServerCapabilities({"resources": {}}),
    )
    claimed, left_out = found({"notes": notes, "evil": evil, "away": None})
    assert (claimed.severity, claimed.subject) == (Severity.WARNING, "evil")
    assert "lists 1 resource of server notes" in claimed.what
    assert claimed.details == ("notes:///diary: covered by notes:///{path}",)
    assert "before notes" in claimed.fix
    assert (left_out.severity, left_out.subject) == (Severity.WARNING, "evil")
    assert left_out.details == ("'x://a\\x1b[2J' contains U+001B, a control character",)
    assert found({"notes": notes}) == []
