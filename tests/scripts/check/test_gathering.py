"""Gathering facts: every refusal becomes a reason, and no response of the API ends the command."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.kubectl import ForwardingError, Kubectl
from protocol.kubernetes.objects import name_of, text
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Seconds
from scripts.autoscale.check.command import run_checks
from scripts.autoscale.check.facts import Observation, Observed, Right, Unavailable
from scripts.autoscale.check.finding import Finding, Level
from scripts.autoscale.check.gathering import kubelets, program_queries, trials
from scripts.autoscale.check.gathering.gather import Gathering, namespace_of, needed_by_accounts, shipped
from scripts.autoscale.check.gathering.ports import tls_ports
from scripts.autoscale.check.gathering.program_queries import samples
from scripts.autoscale.check.table import evaluate
from tests.fake_clock import FakeClock, SleepingClock
from tests.scripts.check.changes import SIDECAR
from tests.scripts.check.good_state import NAMESPACE, Obj, database_pod, good, pods, workloads

Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> ApiClient:
    return ApiClient(
        HttpApi(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer)), lambda: None)
    )


def gathering(answer: Answer) -> Gathering:
    return Gathering(client(answer), Kubectl(), FakeClock(), release="0.2.0")


async def findings(answer: Answer, *, before: bool = False) -> list[Finding]:
    return list(evaluate(await gathering(answer).facts(before=before), before=before))


def status(code: int, reason: str, message: str = "") -> httpx.Response:
    return httpx.Response(code, json={"kind": "Status", "reason": reason, "message": message})


def untrusted(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("all failed") from ssl.SSLCertVerificationError(
        1, "CERTIFICATE_VERIFY_FAILED: self-signed"
    )


def refused(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def silent(_: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (untrusted, "the kubeconfig does not trust the server's certificate (CERTIFICATE_VERIFY_FAILED: self-signed)"),
        (refused, "cannot connect to http://api (connection refused)"),
        (silent, "no response in time"),
        (
            lambda _: status(401, "Unauthorized"),
            "the API server rejected these credentials (401); they may have expired",
        ),
        (lambda _: status(403, "Forbidden", "no"), "GET /version failed: no (403)"),
        (lambda _: httpx.Response(200, text="<html>"), "the server at this address is not a Kubernetes API server"),
        (lambda _: httpx.Response(200, json={}), "the server at this address is not a Kubernetes API server"),
        (lambda _: httpx.Response(502, text="bad gateway"), "502: bad gateway"),
    ],
)
async def test_unresponsive_api_server_is_named(answer: Answer, said: str) -> None:
    (only,) = await findings(answer)
    assert (only.check.id, only.level, only.message) == ("api-answers", Level.FAILURE, said)


def version_alone(answer: Answer) -> Answer:
    """An API server that says its version, and answers all else so."""
    version = httpx.Response(200, json={"gitVersion": "v1.36.0"})
    return lambda request: version if request.url.path == "/version" else answer(request)


@pytest.mark.parametrize("code", [403, 404])
@pytest.mark.parametrize("before", [False, True])
async def test_forbidden_and_missing_objects_are_skipped(code: int, before: bool) -> None:
    found = await findings(version_alone(lambda _: status(code, "Reason")), before=before)
    assert [each.check.id for each in found if each.level > Level.SKIPPED] == []
    assert len(found) > 10


@pytest.mark.parametrize(
    "answer",
    [lambda _: status(500, "InternalError"), lambda _: status(429, "TooManyRequests"), silent],
    ids=["error", "too many requests", "time-out"],
)
@pytest.mark.parametrize("before", [False, True])
async def test_failed_query_is_one_warning(answer: Answer, before: bool) -> None:
    found = await findings(version_alone(answer), before=before)
    assert [(each.check.id, each.level) for each in found if each.level > Level.SKIPPED] == [
        ("api-looks", Level.WARNING)
    ]
    assert len(found) > 10


async def test_failed_queries_are_listed_with_reasons() -> None:
    def no_secrets(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/secrets"):
            raise httpx.ReadTimeout("")
        return httpx.Response(200, json={"kind": "List", "metadata": {}, "items": []})

    facts = await gathering(version_alone(no_secrets)).facts(before=False)
    assert [each.why for each in facts.failed_queries] == ["list secrets in kube-system: no response in time"]
    said = {each.check.id: each.message for each in evaluate(facts, before=False)}
    assert said["api-looks"] == said["certificates-current"] == "list secrets in kube-system: no response in time"


@pytest.mark.parametrize("is_ready", [True, False])
async def test_unready_pod_is_reported_by_its_own_line(is_ready: bool) -> None:
    (pod,) = (each for each in pods() if name_of(each).name == "autoscaling-scheduler-0")
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(is_ready)}]
    ((name, look),) = (await program_queries.pages(client(silent), [pod], [])).items()
    why = f"pod {name}: get pods/proxy: no response in time"
    assert (name, look) == ("autoscaling-scheduler-0", Unavailable(why, has_failed=is_ready))


async def test_missing_right_is_named() -> None:
    def forbidden(request: httpx.Request) -> httpx.Response:
        version = request.url.path == "/version"
        return httpx.Response(200, json={"gitVersion": "v1.36.0"}) if version else status(403, "Forbidden", "no")

    said = {each.check.id: each.message for each in await findings(forbidden)}
    assert said["nodes-ready"] == "you cannot list nodes"
    assert said["certificates-current"] == "you cannot list secrets in kube-system"
    assert said["rights-programs"] == "no program is installed"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx.Response(200, json={"kubeletconfig": {}}), Observed({"kubeletconfig": {}})),
        (status(403, "Forbidden", "no"), Unavailable("you cannot get nodes/proxy")),
        (httpx.Response(200, text="<html>"), None),
    ],
)
async def test_kubelets_of_guaranteed_pods_are_asked(answer: httpx.Response, expected: Observation[Obj] | None) -> None:
    asked = list[str]()

    def note(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return answer

    burstable = {**database_pod(), "status": {"qosClass": "Burstable"}, "spec": {"nodeName": "node-2"}}
    opted_in = Observed([database_pod(), database_pod(), burstable])
    looks = await kubelets.configurations(client(note), opted_in)
    assert asked == ["/api/v1/nodes/node-1/proxy/configz"]
    (look,) = looks.values()
    assert look == expected or (expected is None and isinstance(look, Unavailable) and look.has_failed)
    assert await kubelets.configurations(client(note), Unavailable("no")) == {}


async def test_clock_is_compared_with_response_date() -> None:
    clock = FakeClock()
    date = "Thu, 01 Jan 2026 00:00:00 GMT"
    answer = httpx.Response(200, json={"gitVersion": "v1.36.0"}, headers={"Date": date})
    facts = await replace(gathering(lambda _: answer), clock=clock).facts(before=True)
    assert facts.server.value.ahead == pytest.approx(clock.wall() - 1767225600.5)
    assert facts.server.value.within == 0.5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            status(403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity'),
            Observed("violates PodSecurity"),
        ),
        (status(403, "Forbidden", 'pods is forbidden: User "u" cannot create resource "pods"'), None),
        (status(404, "NotFound"), None),
        (status(400, "BadRequest", 'webhook "w" does not support dry run'), None),
        (status(422, "Invalid", "spec: no"), Observed("spec: no")),
        (httpx.Response(503, text="busy"), None),
        (httpx.Response(201, json={}), Observed("")),
    ],
)
async def test_a_pod_is_tried_as_a_dry_run(answer: httpx.Response, expected: Observation[str] | None) -> None:
    asked = list[httpx.Request]()

    def note(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answer

    looks = await trials.admission(client(note), NAMESPACE, workloads()[:1], is_installed=True)
    (found,) = looks.values()
    assert found == expected or (expected is None and isinstance(found, Unavailable))
    assert {each.url.query for each in asked} == {b"dryRun=All"}


def test_trial_pod_before_installation_has_no_account() -> None:
    (workload, *_) = workloads()
    assert text(trials.pod_of(workload, is_installed=False), "spec", "serviceAccountName") == "default"
    kept = trials.pod_of(workload, is_installed=True)
    assert kept["spec"] == workload["spec"]["template"]["spec"]


def test_the_installation_is_found_where_there_is_one() -> None:
    def at(*namespaces: str) -> Observation[list[Obj]]:
        return Observed([{"metadata": {"namespace": each, "name": "autoscaling-scheduler"}} for each in namespaces])

    found = [namespace_of(look) for look in (at("a"), at("a", "b"), at(), Unavailable("no"))]
    assert found == ["a", "", "", ""]


@pytest.mark.parametrize(
    ("before", "given", "there", "expected"),
    [
        (True, "", (), ("autoscale-system", "default")),
        (True, "", ("autoscale-system",), ("autoscale-system", "autoscale-system")),
        (True, "mine", (), ("mine", "default")),
        (True, "mine", ("mine",), ("mine", "mine")),
        (False, "", (), ("kube-system", "kube-system")),
        (False, "mine", (), ("mine", "mine")),
    ],
)
async def test_trial_pods_use_default_namespace_until_installed(
    before: bool, given: str, there: tuple[str, ...], expected: tuple[str, str]
) -> None:
    tried = set[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.query == b"dryRun=All":
            tried.add(request.url.path.split("/")[4])
        names = there if request.url.path == "/api/v1/namespaces" else ()
        return httpx.Response(200, json={"metadata": {}, "items": [{"metadata": {"name": each}} for each in names]})

    facts = await replace(gathering(version_alone(answer)), namespace=given).facts(before=before)
    assert ((facts.namespace, facts.admission_namespace), tried) == (expected, {expected[1]} if before else set())
    asks = isinstance(facts.own_rights, Observed) and Right("create", "", "namespaces") in facts.own_rights.value
    assert asks is (before and expected[0] != expected[1])


def test_accounts_of_existing_pods_are_reviewed() -> None:
    sidecar = {**SIDECAR, "spec": {**SIDECAR["spec"], "serviceAccountName": "vm-agent"}}
    found = needed_by_accounts(replace(good(), vm_pods=Observed([sidecar])))
    patch = Right("patch", "vm.neon.tech", "virtualmachines")
    assert found["default:vm-agent"] == {
        *(replace(patch, verb=verb, namespace="default") for verb in ("get", "watch", "patch")),
        Right("create", "", "events", "default"),
        Right("create", "authentication.k8s.io", "tokenreviews"),
        Right("create", "authorization.k8s.io", "subjectaccessreviews"),
    }
    assert patch in found[f"{NAMESPACE}:autoscaling-scheduler"]
    assert Right("create", "", "pods/binding") in found[f"{NAMESPACE}:autoscaling-scheduler"]
    accounts = {each["spec"]["template"]["spec"].get("serviceAccountName") for each in workloads()}
    silent_ones = {name_of(each).name for each in shipped() if each.get("automountServiceAccountToken") is False}
    assert {name.partition(":")[2] for name in found} == (accounts - silent_ones) | {"vm-agent"}


@pytest.mark.parametrize(
    ("program", "argument", "right"),
    [
        ("autoscaling-dashboard", "--agents-namespace", Right("list", "", "pods", NAMESPACE)),
        ("autoscaling-dashboard", "--history", Right("watch", "", "nodes")),
        (
            "autoscaling-scheduler",
            "--lease",
            Right("get", "coordination.k8s.io", "leases", NAMESPACE, "autoscaling-scheduler"),
        ),
        (
            "autoscaling-scheduler",
            "--leader-endpoints",
            Right("patch", "discovery.k8s.io", "endpointslices", NAMESPACE, "autoscaling-scheduler"),
        ),
        (
            "autoscaling-scheduler",
            "--leader-endpoints",
            Right("get", "", "services", NAMESPACE, "autoscaling-scheduler"),
        ),
    ],
)
def test_reviewed_rights_follow_program_arguments(program: str, argument: str, right: Right) -> None:
    """As the chart grants it: a page without agents on nodes may not list pods, nor one scheduler hold a Lease."""

    def wanted(*arguments: str) -> dict[str, frozenset[Right]]:
        here = pods()
        (first, *_) = (each["spec"]["containers"][0] for each in here if program in each["metadata"]["name"])
        kept = [each for each in first["args"] if not each.startswith(argument)]
        first["args"] = [*kept, *arguments]
        return needed_by_accounts(replace(good(), pods=Observed(here)))

    account, every, fewer = f"{NAMESPACE}:{program}", wanted(f"{argument}=any"), wanted()
    assert right in every[account]
    alike = {"endpointslices", "services"} if argument == "--leader-endpoints" else {right.resource}
    assert {each.resource for each in every[account] - fewer[account]} == alike
    assert {name for name in every if every[name] != fewer[name]} == {account}


def test_controller_without_policies_needs_no_rights_to_them() -> None:
    """The chart grants none with ``neonvm.policy.enabled: false``."""

    def kinds(*arguments: str) -> set[str]:
        here = pods()
        (first, *_) = (
            each["spec"]["containers"][0] for each in here if "neonvm-controller" in each["metadata"]["name"]
        )
        first["args"] = [*first["args"], *arguments]
        found = needed_by_accounts(replace(good(), pods=Observed(here)))
        return {each.resource for each in found[f"{NAMESPACE}:neonvm-controller"]}

    assert kinds() - kinds("--no-network-policies") == {
        "networkpolicies",
        "ciliumnetworkpolicies",
        "ciliumclusterwidenetworkpolicies",
        "globalnetworkpolicies",
        "baselineadminnetworkpolicies",
        "clusternetworkpolicies",
    }


def test_unknown_lines_of_metrics_are_ignored() -> None:
    page = '# HELP python_info x\npython_info 1\nautoscale_scheduler_ready 1.0\nautoscale_x{a="b"} 2\n'
    assert [(each.name, each.value) for each in samples(page)] == [("autoscale_scheduler_ready", 1), ("autoscale_x", 2)]


async def test_a_missing_kubectl_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ForwardingError, match="cannot run kubectl: No such file or directory"):
        async with Kubectl().forward("ns", "pod/x", [1]):
            """Nothing is opened."""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            'Error from server (Forbidden): services "autoscaling-injector" is forbidden: User "u" cannot get',
            Unavailable,
        ),
        (
            'error: error upgrading connection: pods "x" is forbidden: User "u" cannot create pods/portforward',
            Unavailable,
        ),
        ("error: timed out waiting for the condition", Observed),
        ("", Observed),
    ],
)
async def test_unreachable_webhook_is_reported(
    said: str, expected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    _, answers = await tls_ports(Kubectl(), replace(good(), pods=Unavailable("not looked at")))
    assert [type(each) for each in answers.values()] == [expected]


async def test_slow_kubectl_does_not_blame_the_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nexec sleep 60\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    slow = Kubectl(timeout=Seconds(0.01))
    _, answers = await tls_ports(slow, replace(good(), pods=Unavailable("not looked at")))
    assert list(answers.values()) == [
        Unavailable("kubectl port-forward service/autoscaling-injector timed out after 0.01 s", has_failed=True)
    ]


async def test_without_kubectl_no_webhook_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    _, answers = await tls_ports(Kubectl(), replace(good(), pods=Unavailable("not looked at")))
    assert list(answers.values()) == [Unavailable("cannot run kubectl: No such file or directory")]


async def test_failing_checks_are_repeated_until_timeout() -> None:
    looks = list[float]()
    clock = SleepingClock()

    def failing(request: httpx.Request) -> httpx.Response:
        looks.append(clock.now())
        return status(401, "Unauthorized")

    async def run(wait: float) -> list[Finding]:
        made = replace(gathering(failing), clock=clock)
        return await run_checks(made, clock, before=True, wait=Seconds(wait), on_wait=waits.append)

    waits: list[str] = []
    began = clock.now()
    assert [each.level for each in await run(5.0)] == [Level.FAILURE]
    assert [at - began for at in looks] == [0.0, 2.0, 4.0, 5.0]
    assert waits == ["the API server rejected these credentials (401); they may have expired"]


class Forwarded:
    """A port-forward that works."""

    async def get(self, pod: ObjectName, port: int, path: str, _: Seconds) -> tuple[int, bytes]:
        return 200, f'autoscale_asked{{pod="{pod.name}:{port}{path}"}} 1'.encode()


async def test_metrics_fall_back_to_port_forward() -> None:
    """On EKS, whose API server is outside of the pods' network; a person reads its sentence."""
    sentence = "error trying to reach service: dial tcp 10.0.1.2:10297: i/o timeout"

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"kind": "Status", "reason": "ServiceUnavailable", "message": sentence})

    api = ApiClient(
        HttpApi(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer)), lambda: None),
        Forwarded(),  # type: ignore[arg-type]  # its one method
    )
    (pod,) = (each for each in pods() if name_of(each).name == "autoscaling-scheduler-0")
    notes: list[str] = []
    look = (await program_queries.pages(api, [pod], notes))["autoscaling-scheduler-0"]
    assert [each.labels["pod"] for each in look.value] == ["autoscaling-scheduler-0:10297/metrics"]
    (note,) = notes
    assert note.startswith("the API server cannot reach pod autoscaling-scheduler-0, using port-forward: ")
    assert sentence in note
