"""Every alert where pods are scraped twice, and where two clusters share one ruler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import plain_yaml
from tests.deploy.monitoring.monitoring_files import FOLDER, rule_queries
from tests.deploy.monitoring.test_with_prometheus import STORIES, promtool

pytestmark = pytest.mark.monitoring

Case = dict[str, Any]

ABSENT: Final = "AutoscaleSchedulerAbsent"
"""Of a cluster that has no series at all nothing can say its name, unless it had some before."""


def labelled(series: str, label: str) -> str:
    """The series with one label more."""
    name, _, rest = series.partition("{")
    return f"{name}{{{label}}}" if not rest else f"{name}{{{label},{rest}"


def names_clusters(case: Case) -> bool:
    """True if the story is about clusters already."""
    return any("cluster=" in each["series"] for each in case["input_series"])


def with_label(case: Case, label: str) -> list[Case]:
    """The input series of a story, each with one label more."""
    return [{**each, "series": labelled(each["series"], label)} for each in case["input_series"]]


def alerts_of(case: Case) -> set[str]:
    return {str(test["alertname"]) for test in case["alert_rule_test"]}


def fires(case: Case) -> bool:
    return any(test["exp_alerts"] for test in case["alert_rule_test"])


def in_cluster(case: Case, name: str) -> list[Case]:
    """The expected result for a cluster with a name."""
    return [
        {
            **test,
            "exp_alerts": [
                {**each, "exp_labels": {**each["exp_labels"], "cluster": name}} for each in test["exp_alerts"]
            ],
        }
        for test in case["alert_rule_test"]
    ]


def scraped_twice(cases: list[Case]) -> Iterator[Case]:
    """By the annotations of its pod and by a PodMonitor: the same series under two jobs."""
    for case in cases:
        recorded = [each for each in case["input_series"] if ":" in each["series"].partition("{")[0]]
        scraped = {**case, "input_series": [each for each in case["input_series"] if each not in recorded]}
        twice = [each for job in ("annotations", "monitors") for each in with_label(scraped, f'job="{job}"')]
        yield {**case, "input_series": [*recorded, *twice]}


def beside_another_cluster(cases: list[Case]) -> Iterator[Case]:
    """An alert of one cluster, while another with the same names is in order."""
    for case in (each for each in cases if fires(each) and alerts_of(each) != {ABSENT}):
        calm = [each for each in cases if alerts_of(each) == alerts_of(case) and not fires(each)]
        for other in (each for each in calm if each["interval"] == case["interval"]):
            series = [*with_label(case, 'cluster="eu"'), *with_label(other, 'cluster="us"')]
            yield {**case, "input_series": series, "alert_rule_test": in_cluster(case, "eu")}


def calm_twice(cases: list[Case]) -> Iterator[Case]:
    """Two clusters in order, which together are no trouble either."""
    for case in (each for each in cases if not fires(each)):
        yield {
            **case,
            "input_series": [each for name in ("eu", "us") for each in with_label(case, f'cluster="{name}"')],
        }


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
@pytest.mark.parametrize("change", [scraped_twice, beside_another_cluster, calm_twice])
def test_alerts_hold_for_each_cluster(path: Path, change: Any, tmp_path: Path) -> None:
    story = plain_yaml.load(path.read_text())
    story["rule_files"] = [str(FOLDER / "rules" / f"{path.stem}.yaml")]
    story["tests"] = list(change([each for each in story["tests"] if not names_clusters(each)]))
    assert story["tests"]
    changed = tmp_path / "story.yaml"
    changed.write_text(json.dumps(story))
    assert promtool("test", "rules", str(changed)) == ""


def test_no_rule_adds_up_clusters_or_scrapes() -> None:
    """Each aggregation keeps the cluster, and a sum of what each replica says begins with one value per replica."""
    expressions = [(each.place, each.expression) for each in rule_queries()]
    mixed = re.compile(r"\b(?:sum|max|min|avg|count)(?: by \((?!cluster\b)[^)]*\)|\()")
    assert [place for place, expression in expressions if mixed.search(expression)] == []
    twice = re.compile(r"sum by \([^)]*\) \((?:increase\(|autoscale_\w+_leading)")
    assert [place for place, expression in expressions if twice.search(expression)] == []
