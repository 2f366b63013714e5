"""Changes that each cause a single fault in a healthy cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.kubernetes.timestamps import micro_timestamp
from scripts.autoscale.check.facts import ApiServerFacts, CheckFacts, Observed, Right, Served, Unavailable
from scripts.autoscale.check.finding import Level
from tests.scripts.check.good_state import (
    HOOK,
    NAMESPACE,
    NOW,
    Authority,
    Obj,
    authority,
    encoded,
    lease,
    named,
    page,
    pem,
    secret,
    stamp,
)

STARTED_LONG_AGO = {"running": {"startedAt": stamp(9000.0)}}


@dataclass(frozen=True)
class Fault:
    """``change`` makes a fault; ``check`` must name it with the words of ``said``."""

    check: str
    said: str
    change: Callable[[CheckFacts], CheckFacts]
    level: Level = Level.FAILURE
    before: bool = False
    name: str = field(default="")

    def __str__(self) -> str:
        return self.name or f"{self.check}: {self.said}"


def both(
    first: Callable[[CheckFacts], CheckFacts], second: Callable[[CheckFacts], CheckFacts]
) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: second(first(facts))


def changed(**looks: Any) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: replace(facts, **looks)


def put(facts: CheckFacts, **looks: Any) -> CheckFacts:
    """The facts with other observations in some places."""
    return replace(facts, **looks)


def in_list(kind: str, name: str, change: Callable[[Obj], object]) -> Callable[[CheckFacts], CheckFacts]:
    """Changes one object of a list."""

    def change_list(facts: CheckFacts) -> CheckFacts:
        change(named(getattr(facts, kind).value, name))
        return facts

    return change_list


def without(kind: str, *names: str) -> Callable[[CheckFacts], CheckFacts]:
    def change_list(facts: CheckFacts) -> CheckFacts:
        kept = [each for each in getattr(facts, kind).value if each["metadata"]["name"] not in names]
        return put(facts, **{kind: Observed(kept)})

    return change_list


def added(kind: str, *objects: Obj) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: put(facts, **{kind: Observed([*getattr(facts, kind).value, *objects])})


def server(version: str = "v1.36.2", ahead: float = 0.1) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: replace(facts, now=facts.now + ahead, server=Observed(ApiServerFacts(version, ahead, 0.6)))


def settings(name: str, key: str, text: str) -> Callable[[CheckFacts], CheckFacts]:
    return in_list("config_maps", name, lambda each: each["data"].update({key: text}))


def settings_of(deployment: str, config_map: str) -> Callable[[CheckFacts], CheckFacts]:
    """Has the Deployment mount a ConfigMap of the operator's own."""

    def change(each: Obj) -> None:
        (volume,) = (v for v in each["spec"]["template"]["spec"]["volumes"] if v["name"] == "config")
        volume["configMap"]["name"] = config_map

    return in_list("deployments", deployment, change)


def edited(name: str, key: str, old: str, new: str) -> Callable[[CheckFacts], CheckFacts]:
    def edit(each: Obj) -> None:
        assert old in each["data"][key]
        each["data"][key] = each["data"][key].replace(old, new)

    return in_list("config_maps", name, edit)


def kube_scheduler(tag: str) -> Callable[[CheckFacts], CheckFacts]:
    def change(pod: Obj) -> None:
        (found,) = (each for each in pod["spec"]["containers"] if each["name"] == "kube-scheduler")
        found["image"] = f"registry.k8s.io/kube-scheduler:{tag}"

    return in_list("pods", "autoscaling-scheduler-0", change)


def state(pod: str, **status: object) -> Callable[[CheckFacts], CheckFacts]:
    return in_list("pods", pod, lambda each: each["status"]["containerStatuses"][0].update(status))


def agents_image(tag: str) -> Callable[[CheckFacts], CheckFacts]:
    def change(pod: Obj) -> None:
        pod["spec"]["containers"][0]["image"] = f"r/autoscaler-agent:{tag}"

    return in_list("pods", "autoscaling-agent-0", change)


def evicted(program: str) -> Callable[[CheckFacts], CheckFacts]:
    """A pod of an old release, evicted while its images were pulled, is still there after it was replaced."""

    def change(facts: CheckFacts) -> CheckFacts:
        old = {**named(facts.pods.value, f"{program}-0")}
        old["metadata"] = {**old["metadata"], "name": f"{program}-9"}
        images = [{**each, "image": f"r/{each['name']}:0.0.9"} for each in old["spec"]["containers"]]
        old["spec"] = {**old["spec"], "containers": images}
        pulls = [{"name": each["name"], "state": {"waiting": {"reason": "ImagePullBackOff"}}} for each in images]
        unplaced = [{"type": "PodScheduled", "status": "False"}]
        old["status"] = {
            "phase": "Failed",
            "reason": "Evicted",
            "containerStatuses": [*pulls[1:], {"name": "kube-scheduler", "state": STARTED_LONG_AGO}],
            "initContainerStatuses": pulls[:1],
            "conditions": unplaced,
        }
        return added("pods", old)(facts)

    return change


def workload(kind: str, namespace: str, name: str) -> Obj:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name}, "spec": {"replicas": 1}}


def refused(program: str, said: str) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: replace(facts, admission={**facts.admission, program: Observed(said)})


def own(right: Right) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: replace(facts, own_rights=Observed({**facts.own_rights.value, right: False}))


def of_account(account: str, right: Right) -> Callable[[CheckFacts], CheckFacts]:
    def change_list(facts: CheckFacts) -> CheckFacts:
        known = facts.account_rights.value
        assert right in known[account]
        return replace(facts, account_rights=Observed({**known, account: {**known[account], right: False}}))

    return change_list


def metrics(**pods: Observed) -> Callable[[CheckFacts], CheckFacts]:  # type: ignore[type-arg]  # of samples
    """Pods are spelt with underscores for hyphens."""
    return lambda facts: replace(facts, metrics={name.replace("_", "-"): look for name, look in pods.items()})


def certificates(*secrets: Obj) -> Callable[[CheckFacts], CheckFacts]:
    return lambda facts: replace(facts, secrets=Observed(list(secrets)))


def leafs(days: tuple[float, float], signer: Authority | None = None) -> Callable[[CheckFacts], CheckFacts]:
    def change_list(facts: CheckFacts) -> CheckFacts:
        ca, made = encoded(authority().certificate), (signer or authority()).leaf(days)
        found = certificates(secret("autoscaling-certificates-scheduler", tls_crt=encoded(made), ca_crt=ca))(facts)
        return replace(found, served={"autoscaling-scheduler:10299": Observed(Served(pem(made)))})

    return change_list


def served(certificate: bytes, why: str = "") -> Callable[[CheckFacts], CheckFacts]:
    served = Served(certificate, {HOOK: why} if why else {})
    return lambda facts: replace(facts, served={"autoscaling-injector:10293": Observed(served)})


def bundle(text: str) -> Callable[[CheckFacts], CheckFacts]:
    return in_list(
        "webhooks", "autoscaling-injector", lambda each: each["webhooks"][0]["clientConfig"].update(caBundle=text)
    )


def of_vm(**status: object) -> Callable[[CheckFacts], CheckFacts]:
    return in_list("vms", "db", lambda each: each["status"].update(status))


def migration(**more: object) -> Obj:
    return {
        "metadata": {"namespace": "default", "name": "away", "creationTimestamp": stamp(500.0), **more},
        "spec": {"vmName": "db", "completionTimeout": 300},
        "status": {"phase": "Running"},
    }


def waiting(*conditions: Obj, age: float = 100.0) -> Obj:
    meta = {"namespace": "default", "name": "p", "creationTimestamp": stamp(age)}
    return {"metadata": meta, "status": {"conditions": list(conditions)}}


def no_answer(facts: CheckFacts) -> CheckFacts:
    return replace(facts, server=Unavailable("cannot connect (connection refused)"))


def not_ready(each: Obj) -> None:
    each["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no network"}]


def drop_slot_size(each: Obj) -> None:
    del guest_schema(each)["memorySlotSize"]


def guest_schema(definition: Obj) -> Obj:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: Obj = schema["properties"]["spec"]["properties"]["guest"]["properties"]
    return found


LIMITED = [{"type": "LimitedByPod", "status": "True", "message": "its memory limit of 512Mi caps the guest at 256Mi"}]
EMULATED = [{"type": "Accelerated", "status": "False", "message": "software emulation: there is no /dev/kvm"}]
SIDECAR: Obj = {
    "metadata": {"namespace": "default", "name": "db-x", "labels": {"vm.neon.tech/name": "db"}},
    "spec": {
        "nodeName": "node-1",
        "initContainers": [{"name": "autoscaler-agent", "image": "r/agent:0.2.0"}],
        "containers": [{"name": "neonvm-runner", "env": [{"name": "RUNNER_AUTHORITIES", "value": "PEM"}]}],
    },
}
OPEN: Obj = {
    "metadata": {"namespace": "default", "name": "db-x", "labels": {"vm.neon.tech/name": "db"}},
    "spec": {"nodeName": "node-1", "containers": [{"name": "neonvm-runner"}]},
}


def nothing(facts: CheckFacts) -> CheckFacts:
    """A cluster before anything is installed."""
    none = Observed(list[Obj]())
    ours = ("deployments", "daemon_sets", "pods", "config_maps", "secrets", "leases", "webhooks")
    kinds = (*ours, "vms", "vm_pods", "database_pods")
    bare = put(facts, **dict.fromkeys(kinds, none), admission={}, metrics={}, served={}, reviews={})
    return replace(bare, account_rights=Observed({}), agents=Observed({}))


def yet_to_come(facts: CheckFacts) -> CheckFacts:
    """A cluster in which the chart has not yet created the namespace: pods were tested in another one."""
    bare = without("namespaces", NAMESPACE)(nothing(facts))
    elsewhere: Obj = {"metadata": {"name": "default"}}
    return replace(bare, namespaces=Observed([elsewhere]), admission=facts.admission, admission_namespace="default")


def errors(facts: CheckFacts) -> CheckFacts:
    (look,) = facts.metrics.values()
    found = [each._replace(value=91.0) if each.labels.get("outcome") == "error" else each for each in look.value]
    return replace(facts, metrics={"autoscaling-scheduler-0": Observed(found)})


def led_by(holder: str, ago: float = 1.0, ahead: float = 0.0) -> Callable[[CheckFacts], CheckFacts]:
    now = lease("neonvm-controller", holder, ago=ago, ahead=ahead)
    return both(without("leases", "neonvm-controller"), added("leases", now))


def held_idly(seconds: float) -> Callable[[CheckFacts], CheckFacts]:
    """The scheduler has held its Lease for so long, renews it, and does not lead."""
    now = lease("autoscaling-scheduler", "autoscaling-scheduler-0-1a2b3c4d")
    now["spec"]["acquireTime"] = micro_timestamp(NOW - seconds)
    change = both(without("leases", "autoscaling-scheduler"), added("leases", now))
    return both(change, metrics(autoscaling_scheduler_0=page(leads=False)))


def two_lead(facts: CheckFacts) -> CheckFacts:
    other = {**named(facts.pods.value, "autoscaling-scheduler-0")}
    other["metadata"] = {**other["metadata"], "name": "autoscaling-scheduler-9"}
    return replace(added("pods", other)(facts), metrics={**facts.metrics, "autoscaling-scheduler-9": page()})


def not_served(change: Callable[[CheckFacts], CheckFacts]) -> Callable[[CheckFacts], CheckFacts]:
    """The change, without the observation that would be reported as well."""
    return both(change, changed(served={}, webhooks=Observed([])))


def node_lease(ahead: float) -> Callable[[CheckFacts], CheckFacts]:
    return changed(node_leases=Observed([lease("node-1", "node-1", ahead=ahead)]))


def heard(account: Obj | None) -> Callable[[CheckFacts], CheckFacts]:
    return changed(agents=Observed({"default/db": account}))


def permit(text: str) -> Callable[[CheckFacts], CheckFacts]:
    permits = {"autoscaling.neon.tech/permit": text}
    return in_list("vms", "db", lambda vm: vm["metadata"]["annotations"].update(permits))


def placed(**condition: str) -> Callable[[CheckFacts], CheckFacts]:
    return added("waiting_pods", waiting({"type": "PodScheduled", "status": "False", **condition}))


def leaves_two_unready(facts: CheckFacts) -> CheckFacts:
    return both(in_list("nodes", "node-1", not_ready), in_list("nodes", "node-2", not_ready))(facts)


def kubelet(version: str) -> Callable[[CheckFacts], CheckFacts]:
    return in_list("nodes", "node-1", lambda each: each["status"]["nodeInfo"].update(kubeletVersion=version))


def kubelet_has(**settings: str) -> Callable[[CheckFacts], CheckFacts]:
    return changed(kubelets={"node-1": Observed({"kubeletconfig": settings})})


def of_pod(change: Callable[[Obj], object]) -> Callable[[CheckFacts], CheckFacts]:
    return in_list("database_pods", "pg-1", change)


def restarts(pod: Obj) -> None:
    pod["spec"]["containers"][0]["resizePolicy"] = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]


def deferred(pod: Obj) -> None:
    condition = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "not enough cpu"}
    pod["status"]["conditions"] = [condition]


def serves_no_pods(agents: Obj) -> None:
    agents["spec"]["template"]["spec"]["containers"][0]["env"] = []


def no_network(each: Obj) -> None:
    each["status"]["allocatable"]["autoscaling.neon.tech/flat-network"] = "0"


def no_devices(each: Obj) -> None:
    each["status"]["allocatable"]["autoscaling.neon.tech/guest-devices"] = "0"
