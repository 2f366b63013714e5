"""The target pod of a migration: the VM's own, on another node, and with the migration's additional constraints."""

from typing import cast

import pytest

from deploy.local.scheduling.pod_rules import refusal
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.objects.target_pod import target_pod
from protocol.kubernetes.objects import Json, child, items, text
from tests.neonvm.sample_objects import WANTED, virtual_machine

ELSEWHERE = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def migration(**spec: object) -> Json:
    return {
        "metadata": {"name": "move", "namespace": "default", "uid": "move-uid"},
        "spec": {"vmName": "db", **spec},
        "status": {"targetPodName": "db-y", "sourceNode": "n1"},
    }


def vm(**spec: object) -> Json:
    made = virtual_machine()
    return {**made, "spec": {**child(made, "spec"), **spec}}


def zone(name: str) -> Json:
    return {"key": "zone", "operator": "In", "values": [name]}


def needs(*terms: Json) -> Json:
    return {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [each]} for each in terms]}}


def terms_of(pod: Json) -> list[Json]:
    return items(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")


def node(name: str, **labels: str) -> Json:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": ready}


def test_target_pod_has_recorded_name_and_owner() -> None:
    made, own = target_pod(migration(), vm(), WANTED), runner_pod(vm(), "db-y", WANTED)
    assert migration_of(made) == "move"
    assert (migration_of(own), text(made, "metadata", "name")) == ("", "db-y")
    for part in ("labels", "annotations"):
        assert child(made, "metadata", part) == child(own, "metadata", part)
    assert {**child(made, "spec"), "affinity": None} == {**child(own, "spec"), "affinity": None}


def test_it_goes_anywhere_but_to_the_source() -> None:
    made = target_pod(migration(), vm(), WANTED)
    assert terms_of(made) == [{"matchFields": [ELSEWHERE]}]
    assert [refusal(made, node(name)) is None for name in ("n1", "n2")] == [False, True]


def test_target_may_share_node_on_request() -> None:
    made = target_pod(migration(preventMigrationToSameHost=False), vm(), WANTED)
    assert "affinity" not in child(made, "spec")


@pytest.mark.parametrize(
    ("spec", "of_vm", "takes"),
    [
        ({"nodeSelector": {"disk": "fast"}}, {}, ["fast-a", "fast-b"]),
        ({"nodeAffinity": needs(zone("a"))}, {}, ["fast-a", "slow-a"]),
        ({"nodeAffinity": needs(zone("a"), zone("b"))}, {}, ["fast-a", "fast-b", "slow-a"]),
        ({}, {"affinity": {"nodeAffinity": needs(zone("b"))}}, ["fast-b"]),
        ({"nodeSelector": {"disk": "fast"}, "nodeAffinity": needs(zone("a"), zone("b"))}, {}, ["fast-a", "fast-b"]),
        (
            {"nodeAffinity": needs(zone("a"), zone("b"))},
            {"affinity": {"nodeAffinity": needs(zone("b"), zone("c"))}},
            ["fast-b"],
        ),
        ({"nodeAffinity": needs(zone("a"))}, {"affinity": {"nodeAffinity": needs(zone("b"))}}, []),
        ({"nodeSelector": {"disk": "slow"}}, {"nodeSelector": {"disk": "fast"}}, []),
    ],
)
def test_vm_and_migration_affinity_are_combined(spec: Json, of_vm: Json, takes: list[str]) -> None:
    made = target_pod(migration(**spec), vm(**of_vm), WANTED)
    nodes = {
        "n1": node("n1", disk="fast", zone="a"),
        "fast-a": node("fast-a", disk="fast", zone="a"),
        "fast-b": node("fast-b", disk="fast", zone="b"),
        "slow-a": node("slow-a", disk="slow", zone="a"),
    }
    assert [name for name, each in nodes.items() if refusal(made, each) is None] == takes


def test_preferences_and_other_affinity_are_kept() -> None:
    theirs, ours = {"weight": 1}, {"weight": 2}
    affinity = {"nodeAffinity": {PREFERRED: [theirs]}, "podAffinity": {PREFERRED: []}}
    made = target_pod(migration(nodeAffinity={PREFERRED: [ours]}), vm(affinity=affinity), WANTED)
    found = child(made, "spec", "affinity")
    assert cast("Json", found["nodeAffinity"])[PREFERRED] == [theirs, ours]
    assert found["podAffinity"] == {PREFERRED: []}


def test_many_terms_do_not_multiply() -> None:
    """A VM and a migration of 10,000 terms each would have 100 million together, and one term may have megabytes."""
    many = needs(*(zone(f"z{number}") for number in range(1000)))
    large = needs(zone("z" * 500_000))

    def combined(theirs: Json, ours: Json) -> list[Json]:
        return terms_of(target_pod(migration(nodeAffinity=ours), vm(affinity={"nodeAffinity": theirs}), WANTED))

    assert 500 < len(combined(many, many)) < 2622
    # No node matches, rather than all.
    assert combined(many, large) == combined(large, needs(zone("a"), zone("b"))) == [{}]


def test_empty_term_matches_no_node() -> None:
    made = target_pod(migration(nodeAffinity={REQUIRED: {"nodeSelectorTerms": [{}]}}), vm(), WANTED)
    assert terms_of(made) == [{}]
