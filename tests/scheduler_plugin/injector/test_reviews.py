"""Parsing of the API server's reviews."""

from __future__ import annotations

import json

import pytest

from scheduler_plugin.injector.admission.reviews import MalformedReviewError, PodReview, read_review


def test_unreadable_pod_is_left_alone() -> None:
    request = b'{"uid": "u", "namespace": "n", "operation": "CREATE", "object": {"spec": 1e999}}'
    asked = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": ' + request + b"}"
    assert read_review(asked) == PodReview("u", "n", None)


@pytest.mark.parametrize("field", ["uid", "namespace"])
def test_repeated_texts_are_bounded(field: str) -> None:
    """Anyone may send a review, and a log line or a response repeats them."""
    request = {"uid": "u", "namespace": "n", "operation": "CREATE", field: "x" * 129}
    asked = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    with pytest.raises(MalformedReviewError, match=f"request.{field}"):
        read_review(json.dumps(asked).encode())
