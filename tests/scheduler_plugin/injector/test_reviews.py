"""What the API server asks of the injector, read."""

from __future__ import annotations

from scheduler_plugin.injector.admission.reviews import PodReview, read_review


def test_unreadable_pod_is_left_alone() -> None:
    request = b'{"uid": "u", "namespace": "n", "operation": "CREATE", "object": {"spec": 1e999}}'
    asked = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": ' + request + b"}"
    assert read_review(asked) == PodReview("u", "n", None)
