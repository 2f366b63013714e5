"""Custom resources: defined, discovered, checked against their schema, shown in columns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.cluster import CRDS, Cluster, Json, definition, done, refused

SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "x-kubernetes-validations": [
                {"rule": "self.size <= 10 || self.mode == 'big'", "message": "only big things are larger than 10"},
                {"rule": "self.size >= oldSelf.size", "message": "things do not shrink"},
            ],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 100},
                "mode": {"type": "string", "enum": ["small", "big"], "default": "small"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "amount": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "inner": {"type": "object", "default": {}, "properties": {"port": {"type": "integer", "default": 80}}},
                "list": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
    },
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
]


@pytest.fixture
def things(cluster: Cluster) -> Iterator[str]:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    given = definition(
        schema={"openAPIV3Schema": SCHEMA},
        subresources={"status": {}, "scale": scale},
        additionalPrinterColumns=COLUMNS,
        selectableFields=[{"jsonPath": ".spec.mode"}],
    )
    with cluster.defined(given) as path:
        yield path


def thing(path: str, called: str = "a", **spec: object) -> Json:
    return {"apiVersion": "/".join(path.split("/")[2:4]), "kind": "Thing", "metadata": {"name": called}, "spec": spec}


def test_a_definition_is_established_and_discovered(cluster: Cluster, things: str) -> None:
    group = things.split("/")[2]

    def is_established() -> bool:
        status = cluster.get(f"{CRDS}/things.{group}")["status"]
        conditions = {one["type"]: one["status"] for one in status["conditions"]}
        return [conditions.get(kind) for kind in ("Established", "NamesAccepted")] == ["True", "True"]

    cluster.until(is_established)
    assert is_established()
    assert cluster.get(f"{CRDS}/things.{group}")["status"]["storedVersions"] == ["v1"]
    # Kubernetes serves the objects a moment before it tells of them.
    cluster.until(lambda: cluster.http.get(f"/apis/{group}/v1").is_success)
    resources = {one["name"]: one for one in cluster.get(f"/apis/{group}/v1")["resources"]}
    assert set(resources) == {"things", "things/status", "things/scale"}
    assert (resources["things"]["kind"], resources["things"]["shortNames"]) == ("Thing", ["th"])

    def groups() -> list[str]:
        return [one["name"] for one in cluster.get("/apis")["groups"]]

    cluster.until(lambda: group in groups())
    assert group in groups()


def test_defaults_are_filled_in_and_unknown_fields_dropped(cluster: Cluster, things: str) -> None:
    made = cluster.create(things, thing(things, size=1, unheard=1, free={"any": "thing"}))
    assert made["spec"] == {"size": 1, "mode": "small", "inner": {"port": 80}, "free": {"any": "thing"}}


def test_strict_validation_rejects_unknown_fields(cluster: Cluster, things: str) -> None:
    strict = cluster.http.post(things, json=thing(things, size=1, unheard=1), params={"fieldValidation": "Strict"})
    warned = cluster.http.post(things, json=thing(things, size=1, unheard=1), params={"fieldValidation": "Warn"})
    assert refused(strict) == (400, "BadRequest")
    assert 'unknown field "spec.unheard"' in strict.json()["message"]
    assert 'unknown field \\"spec.unheard\\"' in warned.headers["Warning"]


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({}, "spec.size", "Required value"),
        ({"size": "many"}, "spec.size", 'must be of type integer: "string"'),
        ({"size": 0}, "spec.size", "should be greater than or equal to 1"),
        ({"size": 101}, "spec.size", "should be less than or equal to 100"),
        ({"size": 1, "mode": "odd"}, "spec.mode", 'supported values: "small", "big"'),
        ({"size": 1, "name": "A1"}, "spec.name", "should match '^[a-z]+$'"),
        ({"size": 1, "name": "toolong"}, "spec.name", "Too long"),
        ({"size": 1, "amount": True}, "spec.amount", "must be of type integer,string"),
        ({"size": 1, "list": ["a", "b", "c"]}, "spec.list", "must have at most 2 items"),
        ({"size": 11}, "spec", "only big things are larger than 10"),
    ],
)
def test_schema_violation_names_the_field(cluster: Cluster, things: str, spec: Json, field: str, words: str) -> None:
    response = cluster.http.post(things, json=thing(things, **spec))
    assert refused(response) == (422, "Invalid")
    causes = {cause["field"]: cause["message"] for cause in response.json()["details"]["causes"]}
    assert words in causes[field]


def test_transition_rules_see_old_state(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, size=5))
    done(cluster.patch(f"{things}/a", {"spec": {"size": 6}}))
    response = cluster.patch(f"{things}/a", {"spec": {"size": 4}})
    assert refused(response) == (422, "Invalid")
    assert "things do not shrink" in response.json()["message"]


def test_stricter_crd_validates_only_changed_fields(cluster: Cluster, things: str) -> None:
    name = f"{CRDS}/things.{things.split('/')[2]}"
    cluster.create(things, thing(things, size=20, mode="big", name="abcde"))
    version = cluster.get(name)["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["size"]["maximum"] = 10
    spec["properties"]["name"]["maxLength"] = 3
    done(cluster.patch(name, {"spec": {"versions": [version]}}))
    other = thing(things, "b", size=11, mode="big")
    cluster.until(lambda: cluster.http.post(things, json=other, params={"dryRun": "All"}).status_code == 422)
    done(cluster.patch(f"{things}/a", {"spec": {"amount": 1}}))
    done(cluster.patch(f"{things}/a", {"spec": {"amount": 2, "size": 20}}))
    for field, value in (("size", 21), ("name", "abcd")):
        response = cluster.patch(f"{things}/a", {"spec": {field: value}})
        assert refused(response) == (422, "Invalid")
        assert f"spec.{field}" in {cause["field"] for cause in response.json()["details"]["causes"]}


def test_status_changes_only_through_subresource(cluster: Cluster, things: str) -> None:
    made = cluster.create(things, {**thing(things, size=1), "status": {"phase": "Done"}})
    done(cluster.patch(f"{things}/a/status", {"status": {"phase": "New"}, "spec": {"size": 2}}))
    body = cluster.get(f"{things}/a")
    assert "status" not in made
    assert (body["status"], body["spec"]["size"], body["metadata"]["generation"]) == ({"phase": "New"}, 1, 1)
    assert done(cluster.patch(f"{things}/a", {"spec": {"size": 3}}))["metadata"]["generation"] == 2


def test_custom_resource_update_requires_revision(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, size=1))
    response = cluster.http.put(f"{things}/a", json=thing(things, size=2))
    assert refused(response) == (422, "Invalid")
    assert [cause["field"] for cause in response.json()["details"]["causes"]] == ["metadata.resourceVersion"]


def test_status_update_ignores_metadata(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, size=1))
    done(cluster.patch(f"{things}/a/status", {"status": {"phase": "New"}, "metadata": {"labels": {"x": "y"}}}))
    assert "labels" not in cluster.get(f"{things}/a")["metadata"]


def test_scale_follows_the_paths_of_the_definition(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, size=2))
    done(cluster.patch(f"{things}/a/status", {"status": {"replicas": 1}}))
    scale = cluster.get(f"{things}/a/scale")
    assert (scale["spec"], scale["status"]["replicas"]) == ({"replicas": 2}, 1)
    done(cluster.http.put(f"{things}/a/scale", json={**scale, "spec": {"replicas": 3}}))
    assert cluster.get(f"{things}/a")["spec"]["size"] == 3


def test_printer_columns_come_from_crd(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, size=7))
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = done(cluster.http.get(things, headers=accept))
    assert [(one["name"], one["priority"]) for one in table["columnDefinitions"]] == [
        ("Name", 0),
        ("Size", 0),
        ("Phase", 0),
        ("Mode", 1),
    ]
    assert table["rows"][0]["cells"] == ["a", 7, None, "small"]


def test_selectable_fields(cluster: Cluster, things: str) -> None:
    cluster.create(things, thing(things, "a", size=1))
    cluster.create(things, thing(things, "b", size=1, mode="big"))
    assert [one["metadata"]["name"] for one in cluster.get(things, fieldSelector="spec.mode=big")["items"]] == ["b"]


def test_versions_share_their_objects(cluster: Cluster) -> None:
    given = definition()
    (first,) = given["spec"]["versions"]
    given["spec"]["versions"].append({**first, "name": "v1beta1", "storage": False})
    with cluster.defined(given) as path:
        cluster.create(path, thing(path, x=1))
        older = path.replace("/v1/", "/v1beta1/")
        seen_older = cluster.get(f"{older}/a")
        done(cluster.patch(f"{older}/a", {"spec": {"x": 2}}))
        seen_newer = cluster.get(f"{path}/a")
    assert (seen_older["apiVersion"].split("/")[1], seen_older["spec"]) == ("v1beta1", {"x": 1})
    assert (seen_newer["apiVersion"].split("/")[1], seen_newer["spec"]) == ("v1", {"x": 2})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "name"), "other.name.test"),
        (("spec", "scope"), "Everywhere"),
        (("spec", "names", "kind"), ""),
        (("spec", "versions"), []),
    ],
)
def test_invalid_crd_is_rejected(cluster: Cluster, path: tuple[str, ...], value: object) -> None:
    given = definition()
    inner = given
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert refused(cluster.http.post(CRDS, json=given)) == (422, "Invalid")
