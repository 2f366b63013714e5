"""Each check on a cluster in order, and on one with a single fault: the right line names it, and no other does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509

from protocol.kubernetes.objects import name_of, text
from scripts.autoscale.check.facts import ApiServerFacts, CheckFacts, Objects, Observed, Served, Unavailable
from scripts.autoscale.check.finding import Finding, Level
from scripts.autoscale.check.gathering.gather import shipped
from scripts.autoscale.check.judges.access import install_rights
from scripts.autoscale.check.table import CHECKS, evaluate
from tests.scripts.check.changes import (
    SIDECAR,
    Fault,
    added,
    both,
    certificates,
    changed,
    edited,
    evicted,
    held_idly,
    in_list,
    no_answer,
    of_pod,
    of_vm,
    permit,
    refused,
    server,
    settings_of,
    waiting,
    without,
    yet_to_come,
)
from tests.scripts.check.faults import FAULTS
from tests.scripts.check.good_state import (
    LEASE,
    NAMESPACE,
    NOW,
    Authority,
    Obj,
    authority,
    encoded,
    good,
    lease,
    pem,
    secret,
)
from tests.scripts.check.program_faults import KUBE_CONFIG


def wrong(facts: CheckFacts, *, before: bool = False) -> dict[str, Finding]:
    return {each.check.id: each for each in evaluate(facts, before=before) if each.level >= Level.WARNING}


@pytest.mark.parametrize("before", [False, True])
def test_nothing_is_wrong_with_a_cluster_in_order(before: bool) -> None:
    assert wrong(good(), before=before) == {}


def test_percentage_zero_leaves_sampling_to_kube_scheduler() -> None:
    zero = edited(*KUBE_CONFIG, "percentageOfNodesToScore: 20", "percentageOfNodesToScore: 0")
    assert wrong(zero(good())) == {}


def test_complete_cluster_skips_no_check() -> None:
    assert [each.check.id for each in evaluate(good(), before=False) if each.level is Level.SKIPPED] == []


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_reported_by_one_check(fault: Fault) -> None:
    found = wrong(fault.change(good()), before=fault.before)
    assert {name: each.problems for name, each in found.items() if name != fault.check} == {}
    finding = found[fault.check]
    assert (fault.said in " ".join(finding.problems), finding.level, bool(finding.remedy)) == (
        True,
        fault.level,
        True,
    ), finding
    assert "{" not in finding.remedy.replace("{}", "")


def test_missing_namespace_names_namespace_of_trial() -> None:
    found = {each.check.id: (each.level, each.message) for each in evaluate(yet_to_come(good()), before=True)}
    assert {name: each for name, each in found.items() if name.startswith("namespace-")} == {
        "namespace-exists": (Level.OK, f"{NAMESPACE} does not exist yet; helm install --create-namespace creates it"),
        "namespace-pod-security": (Level.OK, "tested 9 pods in default"),
        "namespace-quota": (Level.SKIPPED, f"{NAMESPACE} does not exist yet, so it has no quota"),
        "namespace-admission": (Level.OK, "tested 9 pods in default"),
    }
    assert wrong(yet_to_come(good()), before=True) == {}


def test_quota_of_trial_namespace_is_ignored() -> None:
    full = refused("autoscaling-agent", "exceeded quota: few, used: pods=1")
    assert wrong(both(yet_to_come, full)(good()), before=True) == {}


@pytest.mark.parametrize("change", [yet_to_come, changed()], ids=["yet to come", "there"])
def test_priority_class_without_quota_suggests_value(change: Callable[[CheckFacts], CheckFacts]) -> None:
    lacks = refused("autoscaling-agent", "insufficient quota to match these scopes: [{PriorityClass In [x]}]")
    found = wrong(both(change, lacks)(good()), before=True)
    assert [(name, "--set priorityQuota=true" in each.remedy) for name, each in found.items()] == [
        ("namespace-quota", True)
    ]


def test_pod_security_of_trial_namespace_is_ignored() -> None:
    own = {"metadata": {"name": "default", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    refuses = refused("neonvm-devices", 'violates PodSecurity "restricted:latest"')
    facts = both(both(yet_to_come, refuses), changed(namespaces=Observed([own])))(good())
    found = {each.check.id: (each.level, each.message) for each in evaluate(facts, before=True)}
    assert found["namespace-pod-security"] == (
        Level.SKIPPED,
        f"{NAMESPACE} does not exist yet, and default has a label pod-security.kubernetes.io/enforce of its own",
    )


def test_pod_security_remedy_creates_labelled_namespace() -> None:
    facts = both(yet_to_come, refused("neonvm-devices", 'violates PodSecurity "baseline:latest"'))(good())
    assert wrong(facts, before=True)["namespace-pod-security"].remedy == (
        f"kubectl create namespace {NAMESPACE}; "
        f"kubectl label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=privileged"
    )


def test_installing_needs_rights_for_shipped_kinds() -> None:
    foreign = {"Certificate", "Issuer", "Cluster"}  # cert-manager's, and what kind reads
    made = {
        (text(each, "apiVersion").rpartition("/")[0], plural(text(each, "kind")))
        for each in shipped()
        if text(each, "kind") not in foreign
    }
    rights = install_rights(NAMESPACE, makes_namespace=True)
    for verb in ("create", "patch"):
        assert made - {(each.group, each.resource) for each in rights if each.verb == verb} == set()


def plural(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def test_a_scheduler_that_acts_alone_needs_no_lease() -> None:
    assert wrong(without("leases", "autoscaling-scheduler")(good())) == {}


def test_single_scheduler_ignores_old_lease() -> None:
    stale = lease("autoscaling-scheduler", "gone-1", ago=9000.0)
    alone = in_list(
        "deployments",
        "autoscaling-scheduler",
        lambda each: each["spec"]["template"]["spec"]["containers"][0]["args"].remove(LEASE),
    )
    left = both(without("leases", "autoscaling-scheduler"), added("leases", stale))(good())
    assert list(wrong(left)) == ["leases-held"]
    assert wrong(alone(left)) == {}


def test_new_leader_may_still_prepare() -> None:
    assert list(wrong(held_idly(60.0)(good()))) == ["leases-acted-on"]
    assert wrong(held_idly(3.0)(good())) == {}


def test_own_config_map_of_operator_is_read() -> None:
    (shipped,) = (each for each in good().config_maps.value if name_of(each).name == "autoscaling-scheduler-config")
    mine = {**shipped, "metadata": {"namespace": NAMESPACE, "name": "mine"}}
    moved = both(settings_of("autoscaling-scheduler", "mine"), added("config_maps", mine))
    assert wrong(both(moved, without("config_maps", "autoscaling-scheduler-config"))(good())) == {}


def test_intermediate_certificate_completes_the_chain() -> None:
    middle, ca = authority().intermediate(), encoded(authority().certificate)
    own = middle.leaf()

    def found(*chain: x509.Certificate) -> list[str]:
        kept = secret("autoscaling-certificates-scheduler", tls_crt=encoded(*chain), ca_crt=ca)
        return list(wrong(both(certificates(kept), changed(served={}))(good())))

    assert (found(own, middle.certificate), found(own)) == ([], ["certificates-signed"])


@pytest.mark.parametrize("program", ["autoscaling-scheduler", "autoscaling-agent", "neonvm-controller"])
def test_evicted_and_replaced_pods_are_ignored(program: str) -> None:
    assert wrong(evicted(program)(good())) == {}


def test_pods_of_ended_guests_have_no_agents() -> None:
    ended_guest = {**SIDECAR, "status": {"phase": "Succeeded"}}
    assert wrong(added("vm_pods", ended_guest)(good())) == {}
    without_agents = both(without("pods", "autoscaling-agent-0", "autoscaling-agent-1"), added("vm_pods", ended_guest))
    assert list(wrong(without_agents(good()))) == ["vms-agents", "pods-agents"]


@pytest.mark.parametrize(("ahead", "age", "found"), [(90.0, 5.0, False), (-90.0, 100.0, True), (0.0, 20.0, False)])
def test_waits_are_measured_by_server_time(ahead: float, age: float, found: bool) -> None:
    facts = both(added("waiting_pods", waiting(age=age)), server(ahead=ahead))(good())
    assert ("extender-asked" in wrong(facts)) is found


def test_expander_secret_of_cert_manager_is_checked() -> None:
    other = Authority.make("expander")
    own, ca = other.leaf(), encoded(other.certificate)
    filled = added(
        "secrets",
        secret("autoscaling-expander-ca", tls_crt=ca, ca_crt=ca),
        secret("autoscaling-expander-tls", tls_crt=encoded(own), ca_crt=ca),
    )
    shows = changed(served={"autoscaling-expander:10296": Observed(Served(pem(own)))})
    assert wrong(both(filled, shows)(good())) == {}
    assert list(wrong(shows(good()))) == ["certificates-served"]


def test_every_line_has_a_fault_that_it_names() -> None:
    assert {each.id for each in CHECKS} - {each.check for each in FAULTS} == set()


def test_fatal_check_ends_evaluation() -> None:
    assert [each.check.id for each in evaluate(no_answer(good()), before=False)] == ["api-answers"]


def test_unscheduled_and_other_pods_pass() -> None:
    pending = of_pod(lambda pod: (pod["spec"].pop("nodeName"), pod["status"].update(phase="Pending")))
    assert wrong(both(pending, changed(kubelets={"node-1": Unavailable("you cannot get nodes/proxy")}))(good())) == {}
    of_a_vm = of_pod(lambda pod: pod["metadata"]["labels"].update({"vm.neon.tech/name": "db"}))
    found = {each.check.id: each.message for each in evaluate(of_a_vm(good()), before=False)}
    assert found["pods-readable"] == found["pods-agents"] == "no pod has opted in"


def test_unavailable_facts_skip_with_reason() -> None:
    assert good().now == NOW
    found = list(evaluate(CheckFacts(NAMESPACE, NOW, Observed(ApiServerFacts("v1.36.2")), "0.2.0"), before=False))
    assert {each.level for each in found[3:]} == {Level.SKIPPED}
    refused_look = Unavailable("you cannot list secrets in autoscale-system")
    skipped = {each.check.id: each.message for each in evaluate(replace(good(), secrets=refused_look), before=False)}
    assert skipped["certificates-current"] == "you cannot list secrets in autoscale-system"


def test_unguarded_ports_of_vms_are_named() -> None:
    """A cluster without NetworkPolicies is in order, and its line says in which namespaces there are none."""
    facts = both(without("pods", "autoscaling-agent-0", "autoscaling-agent-1"), added("vm_pods", SIDECAR))(good())
    ended: Obj = {"metadata": {"namespace": "old", "name": "db-y"}, "status": {"phase": "Succeeded"}}
    facts = added("vm_pods", ended)(facts)

    def line(policies: Objects) -> str:
        changed_facts = replace(facts, network_policies=policies)
        return next(each.message for each in evaluate(changed_facts, before=False) if each.check.id == "vms-closed")

    def policy(namespace: str, **spec: Any) -> Objects:
        return Observed([{"metadata": {"name": "any", "namespace": namespace}, "spec": spec}])

    runners = {"matchExpressions": [{"key": "vm.neon.tech/name", "operator": "Exists"}]}
    alone = "1 pods require a certificate"
    bare = f"{alone}; no NetworkPolicy also protects them in default"
    assert {line(policy("default", podSelector=each)) for each in (runners, {})} == {alone}
    assert line(Unavailable("")) == alone
    assert line(policy("other", podSelector=runners)) == bare
    assert line(policy("default", podSelector={"matchLabels": {"app": "web"}})) == bare
    assert line(policy("default", podSelector={}, policyTypes=["Egress"])) == bare


def test_sleepers_keep_no_permit() -> None:
    """The spec of a sleeping VM has the size with which it wakes; its permit may be empty until then."""
    asleep = both(permit('{"vCPUs":"0","mem":"0"}'), of_vm(phase="Asleep", cpus=None, memorySize=None))
    assert "vms-permits" not in wrong(asleep(good()))


@pytest.mark.parametrize("config", ["{", "{sleep: {after: soon}}", "[]", "{sleep: {after: 0}}", ""])
def test_settings_without_sleep_are_left_out(config: str) -> None:
    """An unreadable policy does not mean that the VM should sleep; its agent reports the problem."""
    annotation = {"autoscaling.neon.tech/config": config}
    facts = in_list("vms", "db", lambda vm: vm["metadata"]["annotations"].update(annotation))(good())
    found = {finding.check.id: finding.level for finding in evaluate(facts, before=False)}
    assert found["vms-sleep"] is Level.SKIPPED
