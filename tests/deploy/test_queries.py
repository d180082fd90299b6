"""The board and the rules read metrics that there are."""

from __future__ import annotations

import re

import pytest

from gateway.observability.metrics import Metrics
from tests.deploy.queries import BOARD, board_queries, rule_queries, selectors

QUERIES = board_queries() | rule_queries()
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def sample_names() -> set[str]:
    shown = re.findall(r"(?m)^# TYPE (\S+) (\w+)$", Metrics({}).render().decode())
    return {name.removesuffix("_total") + suffix for name, kind in shown for suffix in SUFFIXES[kind]} | {"up"}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_every_metric_of_a_query_is_exposed(query: str) -> None:
    read = {selector.partition("{")[0] for selector in selectors(query)}
    assert read
    assert read <= sample_names()


def test_every_metric_that_tells_of_answers_or_backends_is_on_the_board() -> None:
    read = {selector.partition("{")[0] for query in board_queries().values() for selector in selectors(query)}
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in read}
    rest = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in sample_names()} - shown
    assert rest == {"up", "gw_event_loop_tasks", "vllm:spec_decode_num_drafts"}


def test_the_panels_of_the_board_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
