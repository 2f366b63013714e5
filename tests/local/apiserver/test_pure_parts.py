"""Small pure parts, each by its cases: paths, selectors, ages, tokens, certificates' neighbours."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.apimachinery.jsonpath import find
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.apimachinery.names import generated_name, name_error
from deploy.local.apiserver.apimachinery.protobuf import decode_protobuf
from deploy.local.apiserver.apimachinery.selectors import label_matcher
from deploy.local.apiserver.authn.tokens import InvalidTokenError, Reference, TokenClaims, sign, verify
from deploy.local.apiserver.patch.apply import Application, apply, dotted, from_fields, leaves, to_fields
from deploy.local.apiserver.patch.listkeys import builtin_list_keys
from deploy.local.apiserver.patch.merge import merge_patch
from deploy.local.apiserver.patch.strategic import strategic_patch
from deploy.local.apiserver.registry import pod_resources
from deploy.local.apiserver.resources.catalog import version_rank
from deploy.local.apiserver.resources.columns import age
from deploy.local.apiserver.schema.validation import is_unchanged


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[0].n", ["x"]),
        (".list[-1].n", ["y"]),
        (".list[*].n", ["x", "y"]),
        (".list[?(@.n=='y')].v", [2]),
        ('.list[?(@.n == "x")].v', [1]),
        (".labels.dotted\\.name", ["d"]),
        (".labels['dotted.name']", ["d"]),
        (".labels.*", ["d"]),
        (".absent.b", []),
        (".list[9]", []),
        (".a[*", []),
        (".a.b[*]", []),
        (".a[?(@.n=='y')]", []),
    ],
)
def test_json_paths_find(path: str, expected: list[object]) -> None:
    list_ = [{"n": "x", "v": 1}, {"n": "y", "v": 2}]
    assert find(path, {"a": {"b": 1}, "list": list_, "labels": {"dotted.name": "d"}}) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (600, "10m"), (3660, "1h1m"), (90000, "1d")],
)
def test_ages_are_short(seconds: int, expected: str) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    moment = (now - timedelta(seconds=seconds)).isoformat()
    assert age(moment, now) == expected
    assert age("whenever", now) == "<unknown>"


def test_versions_are_preferred_in_kubernetes_order() -> None:
    given_ = ["foo", "v1alpha1", "v2", "v1beta2", "v1", "v10", "v1beta1"]
    assert sorted(given_, key=version_rank) == ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]


@pytest.mark.parametrize(
    ("resource", "name", "fine"),
    [
        ("pods", "a.b-c", True),
        ("pods", "A", False),
        ("pods", "a" * 254, False),
        ("namespaces", "a.b", False),
        ("services", "a-b", True),
        ("clusterroles.rbac.authorization.k8s.io", "system:node", True),
        ("clusterroles.rbac.authorization.k8s.io", "a/b", False),
    ],
)
def test_names_follow_the_rule_of_their_resource(resource: str, name: str, fine: bool) -> None:
    assert (name_error(resource, name) is None) is fine


@given(base=st.text(alphabet="abc-", max_size=80))
def test_completed_names_fit(base: str) -> None:
    name = generated_name(base, lambda alphabet: alphabet[0])
    assert len(name) <= 63
    assert name.endswith("bbbbb")


@pytest.mark.parametrize("text", ["a in ()x", "a in (b c)", "a=b,", ",a", "a=b c"])
def test_unreadable_label_selectors_show_where(text: str) -> None:
    if text == "a=b,":
        assert label_matcher(text)({"metadata": {"labels": {"a": "b"}}})
        return
    with pytest.raises(StatusError) as refusal:
        label_matcher(text)
    assert (refusal.value.code, "unable to parse requirement" in refusal.value.message) == (400, True)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=1), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON_VALUES, max_size=3)


@given(body=OBJECTS, patch=OBJECTS)
def test_a_merge_patch_applied_twice_changes_nothing_more(body: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(body, patch)
    assert merge_patch(once, patch) == once


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


@given(stated=OBJECTS, live=OBJECTS)
def test_apply_is_idempotent(stated: dict[str, Any], live: dict[str, Any]) -> None:
    application = Application("me", False, "v1", "now", builtin_list_keys)
    once = apply({**live, "metadata": {}}, stated, application)
    again = apply(once, stated, application)
    assert again == once
    for path in leaves(stated, builtin_list_keys):
        assert dotted(path) == "" or path[0][2:] in once


@pytest.mark.parametrize(
    ("value", "before", "expected"),
    [
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": [True]}, {"a": [1]}, False),
        ({"a": 1}, {"a": 2}, False),
        (None, None, False),
    ],
)
def test_unchanged_part_keeps_its_types(value: Any, before: Any, expected: bool) -> None:
    assert is_unchanged(value, before) is expected


def test_dropped_fields_and_empty_parents_go() -> None:
    application = Application("me", False, "v1", "now", builtin_list_keys)
    containers = [{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]
    first = apply({}, {"spec": {"containers": containers, "deep": {"a": {"b": 1}}}}, application)
    second = apply(first, {"spec": {"containers": containers[1:]}}, application)
    assert second["spec"] == {"containers": [{"name": "y", "image": "1"}]}


@given(body=OBJECTS)
def test_field_sets_survive_their_written_form(body: dict[str, Any]) -> None:
    fields = set(leaves(body, builtin_list_keys)) - {()}
    assert set(from_fields(to_fields(fields))) - {()} == fields


def test_a_strategic_patch_orders_and_retains() -> None:
    body = {"spec": {"volumes": [{"name": "a"}, {"name": "b"}], "x": 1, "finalizers": ["p", "q"]}}
    patch = {
        "spec": {
            "$setElementOrder/volumes": [{"name": "c"}, {"name": "a"}],
            "volumes": [{"name": "c"}],
            "$retainKeys": ["volumes"],
        }
    }
    assert strategic_patch(body, patch) == {"spec": {"volumes": [{"name": "c"}, {"name": "a"}, {"name": "b"}]}}
    assert strategic_patch(body, {"spec": {"$patch": "delete"}}) == {"spec": {}}
    with pytest.raises(StatusError):
        strategic_patch(body, {"spec": {"volumes": [{"image": "no key"}]}})
    with pytest.raises(StatusError):
        strategic_patch(body, {"$patch": "dance"})


CLAIMS = TokenClaims(
    "ns", Reference("robot", "u1"), ("me",), 1000, 2000, "id", Reference("pod", "u2"), Reference("node", "")
)


def test_valid_tokens_return_their_claims() -> None:
    token = sign(CLAIMS, b"key")
    assert verify(token, b"key", 1500.0) == CLAIMS
    for text, key, now in (
        (token, b"other", 1500.0),
        (token, b"key", 2000.0),
        (token, b"key", 900.0),
        (token[:-3] + "abc", b"key", 1500.0),
        ("", b"key", 1500.0),
        ("a.b", b"key", 1500.0),
        ("é.é.é", b"key", 1500.0),
    ):
        with pytest.raises(InvalidTokenError):
            verify(text, key, now)


def text_field(number: int, raw: bytes) -> bytes:
    return bytes([number << 3 | 2, len(raw)]) + raw


def test_protobuf_of_known_kinds_is_read() -> None:
    meta = text_field(1, b"a") + text_field(11, text_field(1, b"k") + text_field(2, b"v")) + text_field(8, b"\x08\x01")
    inner = text_field(1, meta) + text_field(2, text_field(1, b"x") + text_field(2, b"y")) + bytes([4 << 3, 1])
    head = text_field(1, b"v1") + text_field(2, b"ConfigMap")
    envelope = b"k8s\x00" + text_field(1, head) + text_field(2, inner)
    meta_read = {"name": "a", "labels": {"k": "v"}, "creationTimestamp": "1970-01-01T00:00:01Z"}
    assert decode_protobuf(envelope) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta_read,
        "data": {"x": "y"},
        "immutable": True,
    }
    codes = []
    unknown = b"k8s\x00" + text_field(1, text_field(1, b"v1") + text_field(2, b"Pod"))
    for raw in (b"{}", envelope[:-1], unknown):
        with pytest.raises(StatusError) as refusal:
            decode_protobuf(raw)
        codes.append(refusal.value.code)
    assert codes == [400, 400, 415]


def test_protobuf_distinguishes_zero_from_unset() -> None:
    options = bytes([1 << 3, 0]) + text_field(2, text_field(1, b"u")) + text_field(4, b"") + bytes([3 << 3, 0])
    head = text_field(1, b"v1") + text_field(2, b"DeleteOptions")
    assert decode_protobuf(b"k8s\x00" + text_field(1, head) + text_field(2, options)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "orphanDependents": False,
    }


@given(st.binary(max_size=80))
def test_any_protobuf_is_read_or_refused(raw: bytes) -> None:
    for kind in (b"ConfigMap", b"Secret", b"Namespace", b"ServiceAccount", b"DeleteOptions"):
        envelope = b"k8s\x00" + text_field(1, text_field(1, b"v1") + text_field(2, kind)) + text_field(2, raw)
        for each in (envelope, b"k8s\x00" + raw):
            with suppress(StatusError):
                decode_protobuf(each)


def resized(*containers: JsonObject, **spec: object) -> JsonObject:
    return {"spec": {"nodeName": "n", "containers": [{"name": "a", **each} for each in containers], **spec}}


def requesting(cpu: object, **more: object) -> JsonObject:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("pod", "asked"),
    [
        (resized(requesting("1")), ""),
        (resized(requesting("1"), requesting("1001m")), "2001"),
        (resized(requesting("1"), initContainers=[requesting("1500m", restartPolicy="Always")]), "2500"),
        (resized(requesting("1"), initContainers=[requesting("2")]), ""),
        (resized(requesting("1"), overhead={"cpu": "2"}), "3000"),
    ],
)
def test_resized_pod_counts_like_kube_scheduler(pod: JsonObject, asked: str) -> None:
    told = f"node didn't have enough allocatable resources: cpu, requested: {asked}, allocatable: 2000" if asked else ""
    assert pod_resources.excess(pod, {"status": {"allocatable": {"cpu": "2"}}}) == told


def test_amounts_that_are_no_quantities_are_refused() -> None:
    pod = resized(requesting({}))
    assert [str(each) for each in pod_resources.resize_faults(resized(requesting("1")), pod)] == [
        'spec.containers[0].resources.requests: Invalid value: "{}": cpu must be a quantity'
    ]
    assert pod_resources.excess(pod, {}) == 'expected a quantity such as 2, "250m" or "1Gi", got {}'
