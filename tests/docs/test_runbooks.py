"""Runbooks are read at night: everything that their commands and tables name exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.manifests import FILES, ROOT, WITH_CERTIFICATES, documents, pods_of
from tests.deploy.monitoring.exposed import registries

RUNBOOKS: Final = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
SHIPPED: Final = documents(*FILES, *WITH_CERTIFICATES)
KINDS: Final = {"cm": "ConfigMap", "daemonset": "DaemonSet", "deploy": "Deployment", "lease": "Lease"}
"""What commands call a kind, of which they name objects."""
PROGRAMS: Final = ("agent", "deploy/neonvm", "protocol", "scheduler_plugin")
_COMMAND: Final = re.compile(r"kubectl -n autoscale-system (?:get|describe|logs|delete|edit) ([^|`#\n]+)")
_PLACEHOLDER: Final = re.compile(r"[A-Z]+")


def leases() -> Iterator[str]:
    """A Lease is no manifest, since its program makes it: a right to it by its name is."""
    for rule in (rule for each in SHIPPED if each["kind"] == "Role" for rule in each["rules"]):
        if "leases" in rule["resources"]:
            yield from rule.get("resourceNames", ())


THERE: Final = {
    *((each["kind"], each["metadata"]["name"]) for each in SHIPPED),
    *(("Lease", name) for name in leases()),
    *(("app.kubernetes.io/name", pod.labels["app.kubernetes.io/name"]) for pod in pods_of(SHIPPED)),
    *(("kubernetes.io/service-name", each["metadata"]["name"]) for each in SHIPPED if each["kind"] == "Service"),
}
"""Objects by kind and name, and what labels select them or are made of them."""


def named(command: str) -> Iterator[tuple[str, str]]:
    """The arguments after a kubectl verb: objects by kind and name, and selectors by label and value."""
    words = shlex.split(command)
    kind, *names = " ".join(takewhile(lambda word: not word.startswith("-"), words)).replace("/", " ").split(" ")
    yield from ((KINDS.get(kind, kind), name) for name in names if not _PLACEHOLDER.fullmatch(name))
    for selector in (after for word, after in pairwise(words) if word == "-l"):
        label, *values = re.findall(r"[\w./-]+", selector.replace(" in ", " ", 1))
        yield from ((label, value) for value in values)


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_commands_name_shipped_objects(page: Path) -> None:
    found = {each for command in _COMMAND.findall(page.read_text()) for each in named(command)}
    assert found - THERE == set()


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("get lease autoscale-gone -o yaml", {("Lease", "autoscale-gone")}),
        ("get cm one two", {("ConfigMap", "one"), ("ConfigMap", "two")}),
        ("logs deploy/autoscaling-gone --tail=50", {("Deployment", "autoscaling-gone")}),
        ("get pods -l app.kubernetes.io/name=gone -o wide", {("app.kubernetes.io/name", "gone")}),
        ("logs -l app.kubernetes.io/name=gone -c service", {("app.kubernetes.io/name", "gone")}),
        (
            "get pods -l 'app.kubernetes.io/name in (gone, away)' -o wide",
            {("app.kubernetes.io/name", "gone"), ("app.kubernetes.io/name", "away")},
        ),
    ],
)
def test_unknown_name_is_detected(command: str, names: set[tuple[str, str]]) -> None:
    (words,) = _COMMAND.findall(f"kubectl -n autoscale-system {command} | grep 'x'")
    assert set(named(words)) - THERE == names


@pytest.mark.parametrize("command", ["get secrets | grep x", "logs POD -c service", "describe certificate", "get pods"])
def test_command_without_object_names_none(command: str) -> None:
    (words,) = _COMMAND.findall(f"kubectl -n autoscale-system {command}")
    assert list(named(words)) == []


def test_grepped_log_lines_exist() -> None:
    phrases = {phrase for page in RUNBOOKS for phrase in re.findall(r"\bgrep '([a-z ]+)'", page.read_text())}
    code = "".join(path.read_text() for part in PROGRAMS for path in (ROOT / part).rglob("*.py"))
    assert {phrase for phrase in phrases if phrase not in code} == set()


def test_agent_trouble_runbook_lists_all_parts() -> None:
    families = registries()["autoscaler-agent"].collect()
    samples = (sample for family in families if family.name == "autoscale_agent_trouble" for sample in family.samples)
    kinds = {sample.labels["about"] for sample in samples}
    text = (ROOT / "docs" / "runbooks" / "AutoscaleAgentTrouble.md").read_text()
    said = text.partition("`about` names the part:")[2].partition("\n")[0]
    assert set(re.findall(r"`(\w+)`", said)) == kinds
