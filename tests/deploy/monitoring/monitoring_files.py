"""The shipped rules, alerts, dashboards and monitors, and the metrics in their queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests import plain_yaml

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "deploy" / "kubernetes" / "monitoring"
RULES: Final = tuple(
    FOLDER / "rules" / f"{name}.yaml" for name in ("objectives", "scheduler", "nodes", "agents", "programs")
)
DASHBOARDS: Final = tuple(sorted((FOLDER / "dashboards").glob("*.json")))
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
VARIABLES: Final = {"$__rate_interval": "10s", "$cluster": ".*", "$namespace": "default", "$vm": "vm-1"}
"""What Grafana would put into a query."""

_METRIC: Final = re.compile(r"\b((?:autoscale|process)_[a-z_]+)\b(\{[^}]*\})?")
_MATCHER: Final = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_GROUPING: Final = re.compile(r"\b(?:by|on|without|group_left|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and its place in a file."""

    place: str
    expression: str

    @property
    def metrics(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Each metric in the expression, with the labels that it selects."""
        for name, matchers in _METRIC.findall(self.expression):
            yield name, dict(_MATCHER.findall(matchers))

    @property
    def groupings(self) -> set[str]:
        """The labels that it groups and matches by."""
        return {label.strip() for found in _GROUPING.findall(self.expression) for label in found.split(",")} - {""}


@cache
def rules() -> list[dict[str, Any]]:
    """Every rule of every group, in their order."""
    return [rule for path in RULES for group in plain_yaml.load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The rules that alert."""
    return [rule for rule in rules() if "alert" in rule]


def rule_queries() -> list[Query]:
    """The expressions of all rules."""
    return [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def dashboard_queries() -> list[Query]:
    """The expressions of all dashboards' panels, with Grafana's variables filled in."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                found.append(Query(f"{path.stem}: {panel['title']}", expression))
    return found
