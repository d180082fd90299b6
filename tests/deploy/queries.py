"""The queries of the board and the rules, as Prometheus is asked them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/interlingua.json").read_text())
RULES = DEPLOY / "prometheus/rules.yml"

_SELECTOR = re.compile(r"((?:vllm:|gw_)\w+|\bup)(\{[^}]*\})?")


def board_queries() -> dict[str, str]:
    """The queries of each panel, with the values that Grafana gives its variables for all endpoints."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$model", ".*").replace("$__rate_interval", "1m")
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    }


def rule_queries() -> dict[str, str]:
    """The expressions of the rules, by alert. Read as text, since no package for YAML is among the dependencies."""
    found = {}
    for part in RULES.read_text().split("- alert: ")[1:]:
        name, rest = part.split("\n", 1)
        expression = re.search(r"expr: (?:\|\n(.*?)|(.*?))\n *(?:for|labels):", rest, re.DOTALL)
        assert expression is not None, name
        found[name] = " ".join((expression[1] or expression[2]).split())
    return found


def selectors(query: str) -> list[str]:
    """The series that a query reads: a metric, with its conditions on labels."""
    return [name + (labels or "") for name, labels in _SELECTOR.findall(query)]
