"""Each service's rights match its calls: none is missing, none is superfluous."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, NewType, get_args, get_type_hints

import httpx2 as httpx
import msgspec
import pytest

import scheduler_plugin
from agent.adapters.kubernetes_api import LightKubernetesApi as AgentApi
from agent.adapters.neonvm import NeonVm
from agent.adapters.node_pods import NodePods
from agent.adapters.token import no_token
from agent.ports import PortError
from protocol.kubernetes import resources
from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from protocol.kubernetes.refusals import classify
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.names import MIGRATION_PLURAL, VM_GROUP
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import Kind
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scheduler_plugin import cluster
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.expander.cluster_size import ClusterSize
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.term import Term
from tests.agent.adapters.answering import client
from tests.deploy.manifests import one
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.objects import vm

Right = tuple[str, str, str]
"""API group, resource (with its subresource), verb."""

VM: Final = parse_virtual_machine(vm("db"))
GONE: Final = 410
WRITES: Final[Mapping[str, str]] = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def right(method: str, path: str, query: Mapping[str, str]) -> Right:
    """The right that a request needs, as in Kubernetes' authorizer."""
    _, root, *rest = path.split("/")
    group, rest = ("", rest[1:]) if root == "api" else (rest[0], rest[2:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource, name, subresource = [*rest, "", ""][:3]
    reads = "watch" if query.get("watch") in ("1", "true") else "get" if name else "list"
    return group, f"{resource}/{subresource}" if subresource else resource, WRITES.get(method, reads)


def granted(kind: str, name: str) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in one(kind, name)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/nodes", {"limit": "1"}, ("", "nodes", "list")),
        ("GET", "/api/v1/nodes", {"watch": "true"}, ("", "nodes", "watch")),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, ("", "pods", "get")),
        ("POST", "/api/v1/namespaces/a/pods/b/binding", {}, ("", "pods/binding", "create")),
        ("PATCH", "/apis/g/v1/namespaces/a/things/b", {}, ("g", "things", "patch")),
    ],
)
def test_requests_need_what_kubernetes_says(method: str, path: str, query: Mapping[str, str], expected: Right) -> None:
    assert right(method, path, query) == expected


class Refused(AbstractAsyncContextManager[AsyncIterator[bytes]]):
    """A watch from a version that the server has forgotten."""

    async def __aenter__(self) -> AsyncIterator[bytes]:
        raise ApiRefusedError(classify(GONE))

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""


class Recorder:
    """An API for the scheduler that records requests; lists are empty, watches are refused."""

    def __init__(self) -> None:
        self.rights: set[Right] = set()

    async def call(self, call: ApiCall) -> JsonObject:
        self.rights.add(right(call.method, call.path, call.query))
        return {}

    async def page(self, call: ApiCall) -> Page:
        await self.call(call)
        return Page("1", "", [], [])

    def stream(self, call: ApiCall) -> Refused:
        self.rights.add(right(call.method, call.path, call.query))
        return Refused()


class StopWaitingError(Exception):
    """Ends code that would run forever."""


class ImpatientClock(FakeClock):
    """A clock for whom the first pause is the end."""

    async def sleep(self, duration: Seconds) -> None:
        raise StopWaitingError


SAMPLES: Final[Mapping[object, object]] = {
    VirtualMachine: VM,
    ObjectName: VM.name,
    Resources: VM.use,
    Bytes: VM.use.mem,
    str: "text",
    bool: True,
    int: 1,
    float: 1.0,
}


def sample(kind: Any) -> Any:
    """Some value of a type that a write takes."""
    if kind in SAMPLES:
        return SAMPLES[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: sample(hints[each.name]) for each in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return sample(kind.__supertype__ if isinstance(kind, NewType) else get_args(kind)[0])


def kinds() -> list[Kind[Any]]:
    """The kinds that the scheduler watches: those named in modules of ``scheduler_plugin.cluster``."""
    modules = (import_module(f"{cluster.__name__}.{each.name}") for each in iter_modules(cluster.__path__))
    return list(
        {found.name: found for each in modules for found in vars(each).values() if isinstance(found, Kind)}.values()
    )


def public(of: type) -> dict[str, Callable[..., Any]]:
    """The methods of a class that others call."""
    return {name: found for name, found in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def read_alone() -> list[dict[str, Resource]]:
    """The kinds of which the scheduler's code reads single objects."""
    code = "".join(path.read_text() for path in Path(scheduler_plugin.__path__[0]).rglob("*.py"))
    return [{"kind": getattr(resources, each)} for each in sorted(set(re.findall(r"writer\.read\((\w+),", code)))]


async def test_the_scheduler_may_do_what_it_does() -> None:
    api, clock = Recorder(), ImpatientClock()
    writer = ClusterWriter(api, "test", Term(clock).writing)
    for name, method in public(ClusterWriter).items():
        wanted = {each: sample(kind) for each, kind in get_type_hints(method).items() if each != "return"}
        for each in read_alone() if name == "read" else [{}]:
            await method(writer, **wanted | each)
    await TokenReviews(api).review("token", "audience")
    for kind in kinds():
        informer: FactInformer[Any] = FactInformer(kind, lambda _: None, Telemetry(clock.now))
        with pytest.raises((StopWaitingError, ApiError)):
            await informer.run(api, clock, lambda: None)
    moving = {(VM_GROUP, MIGRATION_PLURAL, verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    assert api.rights | moving == granted("ClusterRole", "autoscaling-scheduler")


async def calls_of_vm(api: AgentApi) -> None:
    of_vm = NeonVm(api, ObjectName("default", "db"))
    assert set(public(NeonVm)) == {"get", "watch", "patch", "order_sleep", "write_event"}
    event = of_vm.write_event("ResizeRefused", "", 0.0)
    sleeps = of_vm.order_sleep("2026-01-02T03:04:05Z", 1)
    for ask in (of_vm.get(), of_vm.patch(VM.use, Bytes(1024**3), 1), anext(of_vm.watch()), sleeps, event):
        with pytest.raises(PortError):
            await ask


async def calls_of_node(api: AgentApi) -> None:
    assert set(public(NodePods)) == {"sets"}
    assert [found async for found in NodePods(api, "node-1").sets()] == [frozenset()]


@pytest.mark.parametrize(
    ("role", "calls"),
    [
        (("Role", "vm-agent"), (calls_of_vm,)),
        (("ClusterRole", "autoscaling-agent"), (calls_of_vm, calls_of_node)),
    ],
)
async def test_an_agent_may_do_what_it_does(
    role: tuple[str, str], calls: tuple[Callable[[AgentApi], Any], ...]
) -> None:
    used: set[Right] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        needed = right(request.method, request.url.path, request.url.params)
        used.add(needed)
        if needed[1:] == ("pods", "list"):
            return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": []})
        return httpx.Response(GONE, json={"message": "gone"})

    async with client(answer) as http:
        for call in calls:
            await call(AgentApi(http, "http://api", no_token, Seconds(1.0)))
    assert used == granted(*role)


async def test_the_expander_may_do_what_it_does() -> None:
    used: set[Right] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        used.add(right(request.method, request.url.path, request.url.params))
        return httpx.Response(200, json={"metadata": {}, "items": []})

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://api", transport=transport) as http:
        with pytest.raises(StopWaitingError):
            await ClusterSize(None, HttpApi(http, lambda: "token")).follow(ImpatientClock())
    assert used == granted("ClusterRole", "autoscaling-expander")


@pytest.mark.parametrize("account", ["autoscaling-dashboard", "autoscaling-groups"])
def test_program_makes_only_own_tokens(account: str) -> None:
    """It shows them to those that explain something to it; a token of another account would make it that account."""
    (rule,) = one("Role", f"{account}-tokens")["rules"]
    assert (rule["resources"], rule["verbs"], rule["resourceNames"]) == (
        ["serviceaccounts/token"],
        ["create"],
        [account],
    )


@pytest.mark.parametrize(
    "name",
    [
        "autoscaling-scheduler-explains",
        "autoscaling-groups-explains",
        "autoscaling-agent-explains",
        "vm-agent-explains-default",
    ],
)
def test_who_explains_may_ask_who_reads(name: str) -> None:
    binding = one("ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == "system:auth-delegator"
    assert [f"{each['name']}-explains" for each in binding["subjects"]] == [name.removesuffix("-default")]
