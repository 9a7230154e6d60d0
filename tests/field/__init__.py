"""Faults that people met with real servers, clients and files, replayed on gateways as processes.

A situation is one test, or one case of a parametrised test, marked `@pytest.mark.field("B3")` with the label of its
kind; such tests may stand in any folder. `python -m benchmarks.run_field` runs them all and counts them by kind.
Those here run on three ways (`alone`, `shared`, `http`) and in both protocol eras:

    SERVERS = {"ship": Canned(tools=[...], answers={"tools/call:sail": {"structuredContent": {"ship": "x"}}})}

    @pytest.fixture(scope="module")
    def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
        with entries(SERVERS, tmp_path_factory.mktemp("servers")) as servers:
            with gateway_client(way, era, tmp_path_factory.mktemp("home"), {"servers": servers}) as client:
                yield client

    @pytest.mark.field("B3")
    def test_...(client: FieldClient) -> None:
        assert client.call("ship__sail")["structuredContent"] == {"ship": "x"}
"""
