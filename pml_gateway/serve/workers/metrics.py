"""`/metrics` of all workers, whichever of them is asked: each sample has the number of its worker as a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio
import httpx2
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pml_gateway.serve.workers.handover import Handover
from pml_gateway.telemetry.prometheus import PrometheusMetrics

OWN = "own"
"""Query of a request for the metrics of one worker alone."""

ANSWER_SECONDS = 3.0
"""Seconds for another worker to answer; one that does not is left out."""


class WorkerMetrics:
    """The metrics of this worker and of all others."""

    def __init__(self, handover: Handover, own: PrometheusMetrics, path: str) -> None:
        self._handover = handover
        self._own = own
        self._path = path

    async def exposed(self, accept: str, authorization: str) -> tuple[bytes, str]:
        """Return the page for a scraper that accepts `accept` and has this key, and its content type."""
        pages = {self._handover.number: generate_latest(self._own.registry).decode()}

        async def ask(client: httpx2.AsyncClient, number: int, url: str) -> None:
            try:
                response = await client.get(f"{url}{self._path}?{OWN}", headers={"authorization": authorization})
            except httpx2.HTTPError:
                return
            if response.status_code == httpx2.codes.OK:
                pages[number] = response.text

        async with (
            httpx2.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, verify=False) as client,
            anyio.create_task_group() as tasks,
        ):
            for number, url in self._handover.others():
                tasks.start_soon(ask, client, number, url)
        encode, content_type = choose_encoder(accept)
        return encode(_Merged(pages)), content_type


class _Merged:
    """What an encoder takes for a registry."""

    def __init__(self, pages: Mapping[int, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of every worker."""
        merged: dict[str, Metric] = {}
        for number, page in sorted(self._pages.items()):
            for metric in text_string_to_metric_families(page):
                whole = merged.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    whole.add_sample(sample.name, {"worker": str(number), **sample.labels}, sample.value)
        yield from merged.values()
