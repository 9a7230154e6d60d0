"""Doctor names servers that list what is another one's."""

from __future__ import annotations

from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.mcp.listing import Offers
from pml_gateway.reports.doctor.finding import Severity
from pml_gateway.reports.doctor.servers import resources


def test_a_resource_in_the_template_of_another_server_and_one_nobody_can_ask_for_are_named() -> None:
    notes = Offers(templates=({"uriTemplate": "notes:///{path}"},), has_resources=True)
    evil = Offers(resources=({"uri": "notes:///diary"}, {"uri": "x://a\x1b[2J"}), has_resources=True)
    claimed, left_out = resources(build_offers({"notes": notes, "evil": evil, "away": None}))
    assert (claimed.severity, claimed.subject) == (Severity.WARNING, "evil")
    assert "lists 1 resource of server notes" in claimed.what
    assert claimed.details == ("notes:///diary: covered by notes:///{path}",)
    assert "before notes" in claimed.fix
    assert (left_out.severity, left_out.subject) == (Severity.WARNING, "evil")
    assert left_out.details == ("'x://a\\x1b[2J' contains U+001B, a control character",)
    assert list(resources(build_offers({"notes": notes}))) == []
