"""Exposed metrics, documented metrics, and those in rules and dashboards are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.telemetry import GROWTH_BUCKETS
from tests import plain_yaml
from tests.deploy.manifests import one, pods
from tests.deploy.monitoring.exposed import Exposed, exposed
from tests.deploy.monitoring.monitoring_files import (
    DASHBOARDS,
    FOLDER,
    ROOT,
    RULES,
    RUNBOOKS,
    Query,
    alerts,
    dashboard_queries,
    rule_queries,
    rules,
)

OF_TARGETS = {"instance", "pod", "namespace", "job", "cluster"}
"""Labels that Prometheus adds to everything that it scrapes, and who shares one among clusters."""

OF_HISTOGRAMS = {"_bucket", "_sum", "_count"}
_ROW = re.compile(r"^\| `(autoscale_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


def metrics() -> dict[str, Exposed]:
    """Every metric of every program by its name as queries know it."""
    found = {name: each for of_program in exposed().values() for name, each in of_program.items()}
    histograms = [each for each in found.values() if each.kind == "histogram"]
    parts = {
        f"{each.name}{part}": Exposed(each.name, "histogram", each.labels | ({"le"} if part == "_bucket" else set()))
        for each in histograms
        for part in OF_HISTOGRAMS
    }
    return found | parts


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def wrong(query: Query) -> Iterator[str]:
    """Names and labels in a query that no program exposes."""
    known, labels = metrics(), set(OF_TARGETS)
    for name, matchers in query.metrics:
        if name.startswith("process_"):
            labels |= {"program"}
            continue
        if name not in known:
            yield f"{query.place}: no program exposes {name}"
            continue
        labels |= known[name].labels
        for label in matchers.keys() - known[name].labels - {"cluster"}:
            yield f"{query.place}: {name} has no label {label}"
    made = set(re.findall(r'label_replace\(.*?, "(\w+)"', query.expression))
    for label in query.groupings - labels - made:
        yield f"{query.place}: nothing there has a label {label}"


def test_metrics_page_matches_exposition() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    documented = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in _ROW.findall(text)}
    found = {(each.name, each.kind, each.labels) for of_program in exposed().values() for each in of_program.values()}
    assert documented == found


def test_queries_use_existing_metrics_and_labels() -> None:
    assert [each for query in (*rule_queries(), *dashboard_queries()) for each in wrong(query)] == []


def test_settings_alert_covers_all_programs_with_settings() -> None:
    names = (name for of_program in exposed().values() for name in of_program)
    programs = {found[1] for name in names if (found := re.fullmatch(r"autoscale_(\w+)_settings_refused", name))}
    (alert,) = (each for each in alerts() if each["alert"] == "AutoscaleSettingsRefused")
    covered = re.search(r"autoscale_\(([\w|]+)\)_settings_refused", alert["expr"])
    assert covered is not None
    assert set(covered[1].split("|")) == programs


def test_dashboards_choose_among_clusters() -> None:
    """Several clusters in one data source would be added up; "All" takes series without such a label, too."""
    chosen = re.compile(r'(?:autoscale|process)[\w:]+\{cluster=~"\.\*"')
    named = re.compile(r"\b(?:autoscale_|process_|autoscale:)[\w:]+")
    for query in dashboard_queries():
        assert len(chosen.findall(query.expression)) == len(named.findall(query.expression)), query
    for path in DASHBOARDS:
        variables = {each["name"]: each for each in json.loads(path.read_text())["templating"]["list"]}
        assert (variables["cluster"]["includeAll"], variables["cluster"]["allValue"]) == (True, ".*")


def test_every_recorded_series_that_is_used_is_recorded() -> None:
    used = {
        name
        for query in (*rule_queries(), *dashboard_queries())
        for name in re.findall(r"autoscale:[\w:]+", query.expression)
    }
    assert used - recorded() == set()


def test_unknown_metric_and_label_are_found() -> None:
    expression = 'sum by (house) (rate(autoscale_agent_gone_total[5m])) + autoscale_agent_denied{street="a"}'
    assert sorted(wrong(Query("test", expression))) == [
        "test: autoscale_agent_denied has no label street",
        "test: no program exposes autoscale_agent_gone_total",
        "test: nothing there has a label house",
    ]


def test_the_objective_of_growths_is_a_bucket() -> None:
    text = "".join(query.expression for query in rule_queries())
    assert set(re.findall(r'stage="size",le="([^"]+)"', text)) == {"5.0"}
    assert 5.0 in GROWTH_BUCKETS


def test_alerts_and_runbooks_match() -> None:
    named = {alert["alert"]: alert["annotations"]["runbook_url"] for alert in alerts()}
    assert named == {name: f"docs/runbooks/{name}.md" for name in named}
    assert {path.stem for path in RUNBOOKS.glob("Autoscale*.md")} == set(named)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_alert_has_severity_and_action(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    page = (ROOT / alert["annotations"]["runbook_url"]).read_text()
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert headings == [alert["alert"], "Meaning", "Impact", "Diagnosis", "Resolve", "Escalate"]
    row = f"| [{alert['alert']}]({alert['alert']}.md) | {alert['labels']['severity']} |"
    assert row in (RUNBOOKS / "README.md").read_text()


def test_every_alert_has_firing_and_silent_case() -> None:
    stories: dict[str, set[bool]] = {}
    for path in (Path(__file__).parent / "alerts").glob("*.yaml"):
        for story in plain_yaml.load(path.read_text())["tests"]:
            for each in story["alert_rule_test"]:
                stories.setdefault(each["alertname"], set()).add(bool(each["exp_alerts"]))
    assert stories == {alert["alert"]: {True, False} for alert in alerts()}


def test_the_operators_form_has_the_plain_rules() -> None:
    document = plain_yaml.load((FOLDER / "prometheus-rule.yaml").read_text())
    groups = [group for path in RULES for group in plain_yaml.load(path.read_text())["groups"]]
    assert (document["kind"], document["spec"]) == ("PrometheusRule", {"groups": groups})


def monitors(file: str) -> list[dict[str, Any]]:
    return list(plain_yaml.load_all((FOLDER / file).read_text()))


def chosen(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(each["key"] in labels for each in selector.get("matchExpressions", ()))


def test_every_program_is_scraped_once() -> None:
    scraped: dict[str, list[str]] = {}
    for monitor in monitors("pod-monitors.yaml"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"], "a VM's namespace is not that of the pod that tells of it"
        for pod in pods():
            labels = pod.labels or {"vm.neon.tech/name": "of a VM"}
            ports = [port["name"] for each in pod.containers for port in each.get("ports", ())]
            if chosen(monitor["spec"]["selector"], labels):
                assert endpoint["port"] in ports, pod.owner
                scraped.setdefault(pod.owner, []).append(monitor["metadata"]["name"])
    for monitor in monitors("service-monitors.yaml"):
        service = one("Service", monitor["metadata"]["name"])
        (endpoint,) = monitor["spec"]["endpoints"]
        assert chosen(monitor["spec"]["selector"], service["metadata"]["labels"])
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        scraped.setdefault(f"Deployment/kube-system/{service['metadata']['name']}", []).append(
            service["metadata"]["name"]
        )
    on_loopback = {pod.owner for pod in pods() if pod.spec.get("hostNetwork")}
    assert {owner: len(names) for owner, names in scraped.items()} == {
        pod.owner: 1 for pod in pods() if pod.owner not in on_loopback
    }
