"""The response to a permit write is decoded by the short way only if the long way gives the same result."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER, LABEL_ENABLED
from protocol.permits import encode_permit
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts, with_permit
from tests.scheduler_plugin.objects import Obj, vm

PERMIT = Resources.parse(2, "8Gi")
SMALLER = json.dumps({"min": {"cpu": 1, "mem": "1Gi"}, "max": {"cpu": 2, "mem": "8Gi"}})


def known(*, annotations: dict[str, str] | None = None) -> Obj:
    """The VM before the write."""
    obj = vm("db", 1, 4)
    obj["metadata"] |= {"resourceVersion": "7", "generation": 3, "labels": {LABEL_ENABLED: "true"}}
    obj["metadata"]["annotations"] = annotations or {}
    return obj


def answered(obj: Obj) -> Obj:
    """The VM as the API server answers the write of ``PERMIT``."""
    answer = copy.deepcopy(obj)
    written = {ANNOTATION_PERMIT: encode_permit(PERMIT), ANNOTATION_PERMIT_WRITER: "scheduler-0/4"}
    answer["metadata"] |= {"resourceVersion": "9", "annotations": {**answer["metadata"]["annotations"], **written}}
    return answer


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {ANNOTATION_PERMIT: encode_permit(Resources.parse(1, "4Gi")), ANNOTATION_PERMIT_WRITER: "scheduler-0/3"},
        {ANNOTATION_BOUNDS: SMALLER, "team": "a"},
    ],
    ids=["a first permit", "another permit", "bounds of its own"],
)
def test_nothing_but_the_permit_has_changed(annotations: dict[str, str]) -> None:
    obj = known(annotations=annotations)
    before, after = read_vm(obj), read_vm(answered(obj))
    assert with_permit(before, PERMIT, answered(obj)) == after
    assert vm_facts(after) == replace(vm_facts(before), version=9, permit=PERMIT)


def relabelled(obj: Obj) -> None:
    obj["metadata"]["labels"] = {LABEL_ENABLED: "false"}


def bounded(obj: Obj) -> None:
    obj["metadata"]["annotations"][ANNOTATION_BOUNDS] = SMALLER


def permitted_less(obj: Obj) -> None:
    obj["metadata"]["annotations"][ANNOTATION_PERMIT] = encode_permit(Resources.parse(1, "4Gi"))


def respecified(obj: Obj) -> None:
    obj["metadata"]["generation"] += 1
    obj["spec"]["guest"]["cpus"]["use"] = 2


def replaced(obj: Obj) -> None:
    obj["metadata"]["uid"] = "another"


def without_annotations(obj: Obj) -> None:
    del obj["metadata"]["annotations"]


def without_version(obj: Obj) -> None:
    del obj["metadata"]["resourceVersion"]


def without_metadata(obj: Obj) -> None:
    obj["metadata"] = []


CHANGES = (
    *(relabelled, bounded, permitted_less, respecified, replaced),
    *(without_annotations, without_version, without_metadata),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_what_else_has_changed_is_read(change: Callable[[Obj], None]) -> None:
    answer = answered(known())
    change(answer)
    assert with_permit(read_vm(known()), PERMIT, answer) is None


def uncounted(obj: Obj) -> None:
    del obj["metadata"]["generation"]


def with_a_problem(obj: Obj) -> None:
    obj["status"] |= {"cpus": [], "memorySize": "1Gi"}


@pytest.mark.parametrize("change", [uncounted, with_a_problem], ids=lambda each: each.__name__)
def test_partly_known_vm_is_read(change: Callable[[Obj], None]) -> None:
    obj = known()
    change(obj)
    assert with_permit(read_vm(obj), PERMIT, answered(obj)) is None


@given(st.lists(st.sampled_from(CHANGES[:-1]), max_size=3, unique=True), st.booleans())
def test_fast_decoder_matches_slow_one(changes: list[Callable[[Obj], None]], has: bool) -> None:
    obj = known(annotations={ANNOTATION_PERMIT: encode_permit(PERMIT)} if has else None)
    answer = answered(obj)
    for change in changes:
        if "annotations" in answer["metadata"]:
            change(answer)
    found: VirtualMachine | None = with_permit(read_vm(obj), PERMIT, answer)
    assert found is None or found == read_vm(answer)
