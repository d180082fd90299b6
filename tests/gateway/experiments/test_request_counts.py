"""The rows that a request is added to are those of the layout."""

from __future__ import annotations

from gateway.experiments.metrics import METRICS, TIMES
from gateway.experiments.request_counts import ROWS


def test_the_rows_are_those_of_the_file_of_requests() -> None:
    assert ("exposures", *(metric.name for metric in METRICS), *(f"log {time}" for time in TIMES)) == ROWS
