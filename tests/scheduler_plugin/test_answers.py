"""The check that an installation responds: accepted responses, and how long it waits for one."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from protocol.messages import ObjectName
from scheduler_plugin.answers import CHECK_TIMEOUT, ask_for_permit, main, review_test_pod, until_passed

POD = ObjectName("autoscale-system", "autoscaling-answers")


def client(status: int, content: str) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=content)))


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (400, '{"error": "pod.name: expected the pod of a VM, a/b runs none"}', ""),
        (400, '{"error": "pod: missing"}', "400 pod: missing"),
        (401, '{"error": "a bearer token is required"}', "401 a bearer token is required"),
        (502, "<html>", "502 with a response that is not the scheduler's"),
    ],
)
def test_pod_without_vm_is_answered_so(status: int, content: str, problem: str) -> None:
    assert ask_for_permit(client(status, content), "http://scheduler/", POD, "token") == problem


def test_question_is_valid_agent_request() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(400, json={"error": "expected the pod of a VM"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as asking:
        assert ask_for_permit(asking, "http://scheduler/", POD, "token") == ""
    assert seen[0].headers["authorization"] == "Bearer token"
    assert json.loads(seen[0].content)["pod"] == {"namespace": "autoscale-system", "name": "autoscaling-answers"}


def webhook(**changed: object) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        uid = json.loads(request.content)["request"]["uid"]
        return httpx.Response(200, json={"response": {"uid": uid, "allowed": True, **changed}})

    return httpx.Client(transport=httpx.MockTransport(answer))


def test_webhook_admits_foreign_objects() -> None:
    assert review_test_pod(webhook(), "https://injector/") == ""
    assert review_test_pod(webhook(allowed=False), "https://injector/").startswith("refused a pod")
    assert review_test_pod(webhook(uid="another"), "https://injector/").startswith("refused a pod")
    assert review_test_pod(client(404, ""), "https://injector/") == "404 with an answer that is not an AdmissionReview"


def test_an_installation_that_starts_is_waited_for() -> None:
    problems, pauses = ["503 not yet", "503 not yet", ""], list[float]()
    assert until_passed(lambda: problems.pop(0), lambda: sum(pauses), pauses.append) == ""
    assert pauses == [1.0, 1.0]


def test_silent_webhook_is_reported() -> None:
    pauses: list[float] = []

    def refused() -> str:
        raise httpx.ConnectError("connection refused")

    assert until_passed(refused, lambda: sum(pauses), pauses.append) == "no response: connection refused"
    assert sum(pauses) == CHECK_TIMEOUT


def test_agents_port_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--agents", "http://scheduler/", "--namespace", POD.namespace, "--pod", POD.name])
    assert (ended.value.code, "--agents needs --token-file" in capsys.readouterr().err) == (2, True)
