"""What the API server asks of the injector, read."""

from __future__ import annotations

from scheduler_plugin.injector.admission.reviews import Question, read_review


def test_a_pod_that_cannot_be_read_is_left_as_it_is() -> None:
    request = b'{"uid": "u", "namespace": "n", "operation": "CREATE", "object": {"spec": 1e999}}'
    asked = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": ' + request + b"}"
    assert read_review(asked) == Question("u", "n", None)
