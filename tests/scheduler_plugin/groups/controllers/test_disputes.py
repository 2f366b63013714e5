"""Disputes over our writes: how they are detected, how long we pause, and who the other writer is."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS
from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.groups.controllers import disputes
from scheduler_plugin.groups.controllers.disputes import Disputes, dispute_message, manager_of, part_of
from scheduler_plugin.groups.objects.writes import Write

WEB = ObjectName("default", "web")
MINUTE = 60.0


def hpa(least: int) -> Json:
    return {"metadata": {"namespace": "default", "name": "web"}, "spec": {"minReplicas": least, "maxReplicas": 9}}


def write(least: int = 5, what: str = "autoscaler") -> Write:
    return Write(what, HORIZONTAL_AUTOSCALERS, WEB, {"metadata": {}, "spec": {"minReplicas": least}})


def fought(times: int, every: float = 1.0) -> tuple[Disputes, Instant]:
    """So many of our writes, each overwritten at once; and when the last one was."""
    found, now = Disputes(), Instant(0.0)
    for number in range(times):
        now = Instant(number * every)
        found.record(write(), hpa(5), now)
        found.check(HORIZONTAL_AUTOSCALERS, hpa(5), now)
        found.check(HORIZONTAL_AUTOSCALERS, hpa(3), now)
        found.check(HORIZONTAL_AUTOSCALERS, hpa(3), now)  # one write is overwritten once
    return found, now


@pytest.mark.parametrize(("times", "minutes"), [(1, 0), (2, 0), (3, 5), (4, 10), (5, 20), (6, 40), (7, 60), (9, 60)])
def test_each_revert_is_left_alone_for_longer(times: int, minutes: float) -> None:
    found, now = fought(times)
    until = Instant(now + minutes * MINUTE)
    assert found.paused_until(write(), now) == (until if minutes else None)
    assert found.paused_writes(HORIZONTAL_AUTOSCALERS, WEB, now) == (
        frozenset({"autoscaler"}) if minutes else frozenset()
    )
    assert (found.paused_until(write(), until), found.paused_writes(HORIZONTAL_AUTOSCALERS, WEB, until)) == (
        None,
        frozenset(),
    )


def test_reverts_that_are_hours_apart_are_no_dispute() -> None:
    found, now = fought(9, every=2 * 3600.0)
    assert (found.paused_until(write(), now), list(found.current(HORIZONTAL_AUTOSCALERS, WEB, now))) == (None, [])


def test_an_object_made_anew_is_no_revert() -> None:
    """A StatefulSet recreates a pod under the same name with the template's sizes, at each release of a busy day."""

    def pod(uid: str, least: int) -> Json:
        return {"metadata": {"namespace": "default", "name": "web", "uid": uid}, "spec": {"minReplicas": least}}

    found, now = Disputes(), Instant(0.0)
    for number in range(5):
        now = Instant(number * 30 * MINUTE)
        found.check(HORIZONTAL_AUTOSCALERS, pod(f"{number}", 3), now)
        found.record(write(), pod(f"{number}", 5), now)
    found.record(write(), pod("unseen", 5), now)
    assert found.paused_until(write(), now) is None
    assert list(found.current(HORIZONTAL_AUTOSCALERS, WEB, now)) == []
    found.check(HORIZONTAL_AUTOSCALERS, pod("unseen", 3), now)
    assert not found.paused_writes(HORIZONTAL_AUTOSCALERS, WEB, now)


def test_a_write_that_stands_ends_the_dispute() -> None:
    found, now = fought(3)
    again = Instant(now + 301)
    found.record(write(), hpa(5), again)
    assert len(list(found.current(HORIZONTAL_AUTOSCALERS, WEB, again))) == 1
    assert list(found.current(HORIZONTAL_AUTOSCALERS, WEB, Instant(again + 300))) == []
    found.check(HORIZONTAL_AUTOSCALERS, hpa(5), Instant(again + 3600))
    found.check(HORIZONTAL_AUTOSCALERS, hpa(3), Instant(again + 3600))
    assert found.paused_until(write(), Instant(again + 3600)) is None


def test_what_others_set_as_we_had_it_stands() -> None:
    found, now = fought(3)
    found.check(HORIZONTAL_AUTOSCALERS, hpa(5), now)
    assert found.paused_until(write(), now) is None


def test_only_patches_of_others_objects_are_remembered() -> None:
    found = Disputes()
    for other in (write(what="status"), Write("autoscaler", HORIZONTAL_AUTOSCALERS, WEB, {}, creates=True)):
        found.record(other, hpa(5), Instant(0.0))
        found.check(HORIZONTAL_AUTOSCALERS, hpa(3), Instant(0.0))
    assert found._claims == {}


def test_only_so_many_writes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disputes, "REMEMBERED", 2)
    found = Disputes()
    for number in range(5):
        found.record(Write("pod", DEPLOYMENTS, ObjectName("a", f"{number}"), {"spec": {}}), {}, Instant(0.0))
    assert len(found._claims) <= 2


def test_dispute_over_containers_covers_all_written_fields() -> None:
    """Two writes to two containers, of which the first one is overwritten."""

    def of(name: str, cpu: str) -> Json:
        return {"name": name, "image": "x", "resources": {"requests": {"cpu": cpu}}}

    def deployment(*containers: Json) -> Json:
        template = {"spec": {"containers": [*containers]}}
        return {"metadata": {"namespace": "default", "name": "web"}, "spec": {"template": template}}

    def resize(name: str, cpu: str) -> Write:
        body = {"name": name, "resources": {"requests": {"cpu": cpu}}}
        return Write("requests", DEPLOYMENTS, WEB, {"spec": {"template": {"spec": {"containers": [body]}}}})

    found, now = Disputes(), Instant(0.0)
    for _ in range(3):
        found.record(resize("app", "2"), deployment(of("proxy", "1"), of("app", "2")), now)
        found.record(resize("proxy", "3"), deployment(of("proxy", "3"), of("app", "2")), now)
        found.check(DEPLOYMENTS, deployment(of("proxy", "3"), of("app", "1")), now)
    ((what, claim),) = found.current(DEPLOYMENTS, WEB, now)
    assert dispute_message(DEPLOYMENTS, "web", what, claim, 0.0) == (
        "another writer or a webhook has overwritten requests of Deployment web 3 times: it is not written until "
        "1970-01-01T00:00:00Z; only one of the two may manage it"
    )


def test_a_new_try_is_told_as_one() -> None:
    found, now = fought(3)
    found.record(write(), hpa(5), now)
    ((what, claim),) = found.current(HORIZONTAL_AUTOSCALERS, WEB, now)
    assert "minReplicas of HorizontalPodAutoscaler web 3 times: it has just been written again;" in dispute_message(
        HORIZONTAL_AUTOSCALERS, "web", what, claim, 0.0
    )


def test_whoever_wrote_last_is_named_once() -> None:
    found, _ = fought(3)
    assert found.lacks_manager(HORIZONTAL_AUTOSCALERS, WEB)
    for manager in ("helm", "kubectl"):
        entry: Json = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:minReplicas": {}}}}
        managed = hpa(3)
        managed["metadata"] = {"namespace": "default", "name": "web", "managedFields": [entry]}
        found.identify_manager(HORIZONTAL_AUTOSCALERS, managed)
    (claim,) = found._claims.values()
    assert (claim.manager, found.lacks_manager(HORIZONTAL_AUTOSCALERS, WEB)) == ("helm", False)


def entry(manager: str, owned: object, time: str = "") -> Json:
    return {"manager": manager, "time": time, "fieldsV1": owned}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry("helm", {"f:spec": {"f:minReplicas": {}}})], "helm"),
        ([entry("helm", {"f:spec": {"f:minReplicas": {}}}, "1"), entry("flux", {"f:spec": {}}, "2")], "flux"),
        ([entry("autoscale-groups", {"f:spec": {"f:minReplicas": {}}})], ""),
        ([entry("helm", {"f:spec": {"f:behavior": {}}}), entry("odd", None), entry("odder", 7)], ""),
        ([], ""),
    ],
)
def test_managed_fields_say_who_wrote_last(entries: list[Json], expected: str) -> None:
    fields: Json = {"spec": {"minReplicas": 5}}
    assert manager_of({"metadata": {"managedFields": entries}}, fields) == expected


def test_managers_of_containers_are_found_by_name() -> None:
    fields: Json = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}
    app: Json = {"f:resources": {"f:requests": {"f:cpu": {}}}}
    for key, owned, expected in (
        ('k:{"name":"app"}', app, "flux"),
        ('k:{"name":"proxy"}', app, ""),
        ('k:{"name":"app"}', {"f:image": {}}, ""),
    ):
        entries = [entry("flux", {"f:spec": {"f:containers": {key: owned}}})]
        assert manager_of({"metadata": {"managedFields": entries}}, fields) == expected
    atomic = {"spec": {"metrics": [{"type": "Resource"}]}}
    whole = [entry("flux", {"f:spec": {"f:metrics": {}}})]
    assert manager_of({"metadata": {"managedFields": whole}}, dict(atomic)) == "flux"


def test_a_part_that_is_missing_is_nothing() -> None:
    fields = {"a": {"b": 1}, "c": [{"name": "x", "d": 2}], "e": [1]}
    assert part_of({"a": 7, "c": None, "e": [2]}, fields) == {
        "a": {"b": None},
        "c": [{"name": None, "d": None}],
        "e": [2],
    }
