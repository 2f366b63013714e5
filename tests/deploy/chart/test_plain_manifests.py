"""The plain manifests are those of the chart; this is known without Helm, by a lock that ``make manifests`` writes."""

from __future__ import annotations

import pytest

from scripts.manifests.__main__ import LOCK, ROOT, TABLE, chart_files, document
from scripts.manifests.rendering import PLAIN, lock, plain_files

PRINTED = """---
# Source: autoscale/templates/groups/workload.yaml
# Acts.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: groups
---
# Source: autoscale/templates/groups/account.yaml
apiVersion: v1
kind: Role
metadata:
  name: groups
---
# Source: autoscale/templates/groups/account.yaml
# Who it is.
apiVersion: v1
kind: ServiceAccount

metadata:
  name: groups
"""
TEMPLATES = {
    "groups/account.yaml": "kind: ServiceAccount\nmetadata:\n  name: groups\n---\n"
    "kind: Role\nmetadata:\n  name: groups\n",
    "groups/workload.yaml": "kind: Deployment\nmetadata:\n  name: groups\n",
}


def test_plain_manifests_match_the_chart() -> None:
    files = {file: (ROOT / file).read_text() for file in PLAIN}
    assert (ROOT / LOCK).read_text() == lock(chart_files(), files), "run make manifests"


def test_valueless_folders_match_the_chart() -> None:
    """They are links into the chart: it cannot reach files outside, and Helm warns about links inside."""
    found = {path.name: str(path.readlink()) for path in (ROOT / "deploy/kubernetes").iterdir() if path.is_symlink()}
    names = {"crds": "definitions", "policies": "policies", "monitoring": "monitoring"}
    assert found == {name: f"chart/autoscale/{folder}" for name, folder in names.items()}


def test_value_table_matches_schema() -> None:
    assert (ROOT / TABLE).read_text() == document(), "run make manifests"


def test_objects_keep_template_order_and_comments() -> None:
    text = plain_files(PRINTED, TEMPLATES)["deploy/kubernetes/groups.yaml"]
    head, account, role, workload = text.split("apiVersion")
    assert "templates/groups by `make manifests`" in head
    assert head.endswith("\n# Who it is.\n")
    assert account == ": v1\nkind: ServiceAccount\nmetadata:\n  name: groups\n---\n"
    assert role == ": v1\nkind: Role\nmetadata:\n  name: groups\n---\n# Acts.\n"
    assert workload.endswith("name: groups\n")


def test_template_without_place_is_refused() -> None:
    with pytest.raises(ValueError, match="templates/groups: add extra"):
        plain_files(PRINTED.replace("workload", "extra"), TEMPLATES)


def test_lock_notices_changes_per_component() -> None:
    chart = {"values.yaml": b"", "templates/groups/workload.yaml": b"a", "templates/tests/answers.yaml": b"a"}
    files = dict.fromkeys(PLAIN, "text")
    before = lock(chart, files).splitlines()
    changes = [
        lock({**chart, "templates/groups/workload.yaml": b"b"}, files),
        lock(chart, {**files, "deploy/kubernetes/groups.yaml": "edited"}),
        lock({**chart, "templates/tests/answers.yaml": b"b"}, files),
    ]
    changed = [[new for new, old in zip(each.splitlines(), before, strict=True) if new != old] for each in changes]
    assert [[line.split()[1] for line in each] for each in changed] == [
        ["deploy/kubernetes/groups.yaml", "deploy/kubernetes/with-pods/groups.yaml"],
        ["deploy/kubernetes/groups.yaml"],
        [],
    ]
    assert len(lock({**chart, "values.yaml": b"b"}, files).splitlines()) == len(PLAIN)
