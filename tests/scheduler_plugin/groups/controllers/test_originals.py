"""The record of a foreign HPA's spec, and how it is restored."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS
from protocol.names import ANNOTATION_ORIGINAL
from scheduler_plugin.groups.controllers.companions import changed, must_restore, restore
from tests.scheduler_plugin.groups.controllers.test_reconcile import hvpa

GROUP = hvpa()


def hpa(spec: Json, record: str = "") -> Json:
    annotations = {ANNOTATION_ORIGINAL: record} if record else {}
    return {"metadata": {"namespace": "default", "name": "web", "annotations": annotations}, "spec": spec}


def restored(spec: Json, record: str) -> object:
    """The part of the spec that is written to put it back."""
    write = restore(HORIZONTAL_AUTOSCALERS, hpa(spec, record))
    assert write is not None
    return write.body.get("spec")


def record(before: Json, fields: Json) -> str:
    return changed({**hpa(before), "kind": "HorizontalPodAutoscaler"}, {**GROUP, "kind": "Hvpa"}, fields).text


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"maxReplicas": 20}, {"maxReplicas": 40}),
        ({"maxReplicas": 60}, None),  # someone else has changed it since
        ({"maxReplicas": "20"}, {"maxReplicas": 40}),
        ({"maxReplicas": "many"}, None),
        ({"maxReplicas": None}, None),
        ({}, None),
    ],
)
def test_only_unchanged_fields_are_restored(found: Json, expected: object) -> None:
    assert restored(found, record({"maxReplicas": 40}, {"maxReplicas": 20})) == expected


def test_comparison_ignores_api_spelling() -> None:
    """The API writes ``1`` for ``1000m``, and fills in what was left out."""
    ours: Json = {"metrics": [{"value": "1000m"}], "behavior": None}
    kept = record({"metrics": [], "behavior": {"a": 1}}, ours)
    same: Json = {"metrics": [{"value": "1", "type": "AverageValue"}]}
    assert restored(same, kept) == {"metrics": [], "behavior": {"a": 1}}
    assert restored({"metrics": [{"value": "2"}]}, kept) == {"behavior": {"a": 1}}
    assert restored({"metrics": [], "behavior": {"b": 1}}, kept) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"minReplicas": 5, "maxReplicas": 9}, {"minReplicas": 9}),  # someone has lowered maxReplicas since
        ({"minReplicas": 41, "maxReplicas": 50}, {"maxReplicas": 41}),  # someone has raised minReplicas since
        ({"minReplicas": 5, "maxReplicas": 50}, {"minReplicas": 15, "maxReplicas": 40}),
    ],
)
def test_bounds_that_go_back_stay_in_order(found: Json, expected: object) -> None:
    """The API refuses an HPA whose minReplicas is above maxReplicas: then it would never be put back."""
    written: Json = {"minReplicas": 5, "maxReplicas": 50}
    assert restored(found, record({"minReplicas": 15, "maxReplicas": 40}, written)) == expected


def test_a_field_that_was_not_there_is_removed() -> None:
    assert restored({"minReplicas": 3}, record({}, {"minReplicas": 3})) == {"minReplicas": None}


def test_what_others_wrote_last_is_the_original() -> None:
    """Someone sets 60 between two of our writes: 60 is restored, and so is the first value of each field that we wrote
    once.
    """
    first = record({"maxReplicas": 40, "minReplicas": 2}, {"maxReplicas": 20, "minReplicas": 5})
    second = changed(hpa({"maxReplicas": 60, "minReplicas": 5}, first), {**GROUP, "kind": "Hvpa"}, {"maxReplicas": 21})
    assert restored({"maxReplicas": 21, "minReplicas": 5}, second.text) == {"maxReplicas": 60, "minReplicas": 2}


def test_what_was_first_stays_the_original() -> None:
    first = record({"maxReplicas": 40}, {"maxReplicas": 20})
    second = changed(hpa({"maxReplicas": 20}, first), {**GROUP, "kind": "Hvpa"}, {"maxReplicas": 21})
    assert restored({"maxReplicas": 21}, second.text) == {"maxReplicas": 40}


def test_an_object_without_a_record_is_left_alone() -> None:
    assert restore(HORIZONTAL_AUTOSCALERS, hpa({"maxReplicas": 20})) is None


def test_a_group_that_leaves_releases_what_it_changed() -> None:
    leaving = {**GROUP, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert [must_restore(HORIZONTAL_AUTOSCALERS, hpa({}), group, None) for group in (None, leaving, GROUP)] == [
        True,
        True,
        False,
    ]
