"""What the injector may do in the cluster is what it does, object by object: everything but its Lease is by name."""

from __future__ import annotations

from pathlib import Path

from deploy.local.apiserver.apimachinery.selectors import label_matcher
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.resources import VERSION_PATH
from scheduler_plugin.injector.settings import parse_settings
from scheduler_plugin.injector.web import MUTATE
from tests.deploy.manifests import container, documents, one
from tests.deploy.test_rights import right
from tests.scheduler_plugin.injector.injecting import installed
from tests.scheduler_plugin.injector.pods import original, review

Named = tuple[str, str, str, str]
"""API group, resource, verb, and the object's name; empty for all."""

MANIFEST = "deploy/kubernetes/injector.yaml"


def asked(call: ApiCall) -> Named:
    name = call.path.rpartition("/")[2]
    group, resource, verb = right(call.method, call.path, call.query)
    if verb in {"list", "create"}:
        name = call.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return group, resource, verb, name


def may(kind: str) -> set[Named]:
    return {
        (group, resource, verb, name)
        for rule in one(kind, "autoscaling-injector")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


async def test_the_injector_may_do_what_it_does(tmp_path: Path) -> None:
    text = one("ConfigMap", "autoscaling-injector-config")["data"]["settings.yaml"]
    async with installed(tmp_path, "scheduler", "injector", "expander", "kube-scheduler", settings=text) as cluster:
        way = cluster.way()
        program = await cluster.start("first", way)
        await cluster.clock.advance(10)
        await program.injector.answer(review(original()))
        does = {asked(call) for call in way.asked if call.path != VERSION_PATH}
    assert does == may("ClusterRole") | may("Role")


def test_readable_secrets_are_created_empty() -> None:
    made = {each["metadata"]["name"] for each in documents(MANIFEST) if each["kind"] == "Secret"}
    readable = {name for _, resource, _, name in may("Role") if resource == "secrets"}
    assert readable - made == {"autoscaling-certificates-expander"}
    for each in documents():
        if each["kind"] == "Secret" or each["metadata"]["name"] == "autoscaling-ca":
            assert not {"data", "stringData", "binaryData", "type"} & each.keys()


def test_webhook_covers_only_vm_pods() -> None:
    (hook,) = one("MutatingWebhookConfiguration", "autoscaling-injector")["webhooks"]
    settings = parse_settings(one("ConfigMap", "autoscaling-injector-config")["data"]["settings.yaml"])
    found, service = container("injector"), hook["clientConfig"]["service"]
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    served = {port["name"]: port["port"] for port in one("Service", service["name"])["spec"]["ports"]}
    assert (service["path"], service["port"], served) == (MUTATE, ports["webhook"], ports)
    assert f"{service['name']}.{service['namespace']}.svc" in settings.wanted()[1].purpose.dns
    assert "caBundle" not in hook["clientConfig"]
    assert (hook["failurePolicy"], hook["reinvocationPolicy"], hook["sideEffects"]) == ("Ignore", "IfNeeded", "None")
    selector = ",".join(_written(each) for each in hook["objectSelector"]["matchExpressions"])
    matches = label_matcher(selector)
    labels = original()["metadata"]["labels"]
    assert matches({"metadata": {"labels": labels}})
    changes = ({"autoscaling.neon.tech/inject-agent": "false"}, {"autoscaling.neon.tech/enabled": "false"})
    others = ({"app": "web"}, *({**labels, **change} for change in changes))
    assert not any(matches({"metadata": {"labels": each}}) for each in others)


def _written(expression: dict[str, object]) -> str:
    """A requirement as kubectl's ``--selector`` has it."""
    values = ",".join(map(str, expression.get("values", [])))  # type: ignore[call-overload]
    operator = {"In": f" in ({values})", "NotIn": f" notin ({values})", "Exists": ""}[str(expression["operator"])]
    return f"{expression['key']}{operator}"
