from __future__ import annotations

import pytest

from tests.field.stand import ERAS, WAYS, Era, Way


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """The way in which a client reaches the gateway."""
    way: Way = request.param
    return way


@pytest.fixture(scope="module", params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    """The era of the protocol that the client speaks."""
    era: Era = request.param
    return era
