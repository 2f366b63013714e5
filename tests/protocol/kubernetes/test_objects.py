"""Reading a field returns a value of the expected type for any content."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes import objects, resources, timestamps

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "name", "labels"]), inner),
    max_leaves=8,
)
sources = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "items"]), values)


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (objects.name_of, object),
        (objects.uid_of, str),
        (objects.version_of, str),
        (objects.labels_of, dict),
        (objects.annotations_of, dict),
        (objects.is_terminating, bool),
        (objects.node_of, str),
        (objects.pod_phase, str),
        (objects.has_finished, bool),
        (lambda source: objects.items(source, "items"), list),
        (lambda source: objects.integer(source, "spec", "a"), int),
        (lambda source: objects.flag(source, "spec", "a"), bool),
        (lambda source: objects.child(source, "spec", "a"), dict),
    ],
)
@given(source=sources)
def test_no_object_is_a_surprise(
    read: Callable[[objects.JsonObject], object], kind: type, source: objects.Json
) -> None:
    assert isinstance(read(source), kind)


@given(st.text() | st.integers() | st.none() | st.booleans())
def test_versions_that_are_no_numbers_count_as_new(version: object) -> None:
    assert objects.number(version) >= 0


def test_text_is_no_list_of_objects() -> None:
    assert objects.items({"items": "abc"}, "items") == []


@given(st.text(max_size=70) | st.none())
def test_a_moment_is_read_or_none(text: str | None) -> None:
    assert timestamps.parse_timestamp(text) is None or isinstance(timestamps.parse_timestamp(text), float)


def test_moments_are_written_as_they_are_read() -> None:
    assert timestamps.parse_timestamp(timestamps.micro_timestamp(1.5)) == 1.5
    assert timestamps.parse_timestamp(timestamps.timestamp(2.0)) == 2.0
    assert timestamps.parse_timestamp("2026-01-01T00:00:00") is None
    assert timestamps.parse_timestamp("2" * 65) is None


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_moment_beyond_the_calendar_is_none(text: str) -> None:
    """Such a text in anyone's status once ended what read it."""
    assert (timestamps.parse_timestamp(text), timestamps.parse_datetime(text)) == (None, None)


def test_paths_are_those_of_the_api() -> None:
    assert resources.VIRTUAL_MACHINES.path("ns", "db") == "/apis/vm.neon.tech/v1/namespaces/ns/virtualmachines/db"
    assert resources.NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert resources.LEASES.path("kube-system") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    # Without this check, deleting an object without a name would delete the whole collection.
    with pytest.raises(ValueError, match="a Lease without a name"):
        resources.LEASES.path("kube-system", "")


_LABELS = {"app": "web", "tier": "front"}


@pytest.mark.parametrize(
    ("expression", "is_selected"),
    [
        ({"key": "tier", "operator": "In", "values": ["front", "back"]}, True),
        ({"key": "tier", "operator": "In", "values": ["back"]}, False),
        ({"key": "tier", "operator": "NotIn", "values": ["back"]}, True),
        ({"key": "tier", "operator": "NotIn", "values": ["front"]}, False),
        ({"key": "tier", "operator": "Exists"}, True),
        ({"key": "canary", "operator": "Exists"}, False),
        ({"key": "canary", "operator": "DoesNotExist"}, True),
        ({"key": "tier", "operator": "Like", "values": ["front"]}, False),
        ({"key": "tier", "operator": "In"}, False),
    ],
)
def test_expressions_select_as_in_kubernetes(expression: objects.Json, is_selected: bool) -> None:
    assert objects.selects({"matchExpressions": [expression]}, _LABELS) is is_selected
    assert objects.selects({"matchLabels": {"app": "web"}, "matchExpressions": [expression]}, _LABELS) is is_selected
    assert not objects.selects({"matchLabels": {"app": "api"}, "matchExpressions": [expression]}, _LABELS)
