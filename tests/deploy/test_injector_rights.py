"""The injector's rights match its calls, object by object: everything but its Lease by name."""

from __future__ import annotations

from pathlib import Path

from deploy.local.apiserver.apimachinery.selectors import label_matcher
from deploy.local.apiserver.schema.cel import compiled, evaluate
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.resources import PODS, VERSION_PATH
from scheduler_plugin.injector.settings import parse_settings
from scheduler_plugin.injector.web import MUTATE
from tests.deploy.manifests import Document, container, documents, one
from tests.deploy.test_rights import right
from tests.scheduler_plugin.injector.injecting import installed
from tests.scheduler_plugin.injector.pods import original, review

Named = tuple[str, str, str, str]
"""API group, resource, verb, and the object's name; empty for all."""

MANIFEST = "deploy/kubernetes/injector.yaml"
FOR_PODS = "deploy/kubernetes/with-pods/injector.yaml"


def asked(call: ApiCall) -> Named:
    name = call.path.rpartition("/")[2]
    group, resource, verb = right(call.method, call.path, call.query)
    if verb in {"list", "watch", "create"}:
        name = call.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return group, resource, verb, name


def may(kind: str, *files: str) -> set[Named]:
    return {
        (group, resource, verb, name)
        for role in documents(*files or (MANIFEST,))
        if (role["kind"], role["metadata"]["name"]) == (kind, "autoscaling-injector")
        for rule in role["rules"]
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


async def test_with_pods_it_may_follow_them_too(tmp_path: Path) -> None:
    async with installed(tmp_path, "injector") as cluster:
        way = cluster.way()
        await cluster.start("first", way, follows_pods=True)
        await cluster.clock.advance(60)
        does = {asked(call) for call in way.asked if call.path == PODS.path()}
    assert does == may("ClusterRole", FOR_PODS) - may("ClusterRole")
    assert may("Role", FOR_PODS) == may("Role")


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
    labels = original()["metadata"]["labels"]
    assert selects(hook, labels)
    changes = ({"autoscaling.neon.tech/inject-agent": "false"}, {"autoscaling.neon.tech/enabled": "false"})
    others = ({"app": "web"}, *({**labels, **change} for change in changes))
    assert not any(selects(hook, each) for each in others)


def test_webhook_covers_only_pods_that_opted_in() -> None:
    """It must never prevent the creation of a pod, and VM pods have their own webhook."""
    (hooks,) = (each for each in documents(FOR_PODS) if each["kind"] == "MutatingWebhookConfiguration")
    (hook,) = hooks["webhooks"]
    assert (hook["failurePolicy"], hook["reinvocationPolicy"], hook["sideEffects"]) == ("Ignore", "Never", "None")
    service = hook["clientConfig"]["service"]
    assert (service["path"], service["name"], hook["rules"][0]["operations"]) == (
        MUTATE,
        "autoscaling-injector",
        ["CREATE"],
    )
    enabled = {"autoscaling.neon.tech/enabled": "true"}
    assert selects(hook, enabled)
    others: tuple[dict[str, str], ...] = (
        {},
        {"autoscaling.neon.tech/enabled": "false"},
        original()["metadata"]["labels"],
    )
    assert not any(selects(hook, each) for each in others)
    (condition,) = (compiled(each["expression"], ("object",)) for each in hook["matchConditions"])
    owners = {"vm.neon.tech/v1": False, "apps/v1": True}
    for version, is_asked in owners.items():
        metadata = {"ownerReferences": [{"apiVersion": "v1"}, {"apiVersion": version}]}
        assert evaluate(condition, {"object": {"metadata": metadata}}) is is_asked
    assert evaluate(condition, {"object": {"metadata": {}}}) is True


def selects(hook: Document, labels: dict[str, str]) -> bool:
    """True if the API server asks about a pod with these labels."""
    selector = ",".join(_written(each) for each in hook["objectSelector"]["matchExpressions"])
    return label_matcher(selector)({"metadata": {"labels": labels}})


def _written(expression: dict[str, object]) -> str:
    """A requirement in the syntax of kubectl's ``--selector``."""
    values = ",".join(map(str, expression.get("values", [])))  # type: ignore[call-overload]
    operator = {"In": f" in ({values})", "NotIn": f" notin ({values})", "Exists": "", "DoesNotExist": ""}[
        str(expression["operator"])
    ]
    absent = "!" if expression["operator"] == "DoesNotExist" else ""
    return f"{absent}{expression['key']}{operator}"
