"""The page, installed by the chart and reached by port-forward: who may sign in, and what users see."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import pytest

from tests.kubernetes.adoption.release import NAMESPACE, Release, telling
from tests.kubernetes.installed import bring_image
from tests.kubernetes.page.tokens import dated, forged
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually, running
from tests.scheduler_plugin.objects import vm

pytestmark = pytest.mark.kubernetes
CHROMIUM: Final = Path("/usr/bin/chromium")
PAGE_ALONE: Final = {
    "dashboard": {"enabled": True, "title": "a real cluster"},
    "scheduler": {"enabled": False},
    "agent": {"node": {"enabled": False}},
    "neonvm": {"enabled": False},
    "certificates": {"enabled": False},
    "policies": {"enabled": False},
}
SHOP, BANK = "page-shop", "page-bank"
VMS: Final = {SHOP: "orders", BANK: "ledger"}
MAY_LIST: Final = [{"apiGroups": ["vm.neon.tech"], "resources": ["virtualmachines"], "verbs": ["list"]}]
RBAC: Final = "rbac.authorization.k8s.io"
EXPIRED: Final = 300.0
"""Seconds: the API server takes a token for a minute after its end, because clocks differ."""
CHECKED: Final = 90.0
"""Seconds: sessions are judged again twice a minute, and the API server remembers its own verdicts for a while."""


def made(kind: str, name: str, api: str = "v1", namespace: str = "", **more: Any) -> dict[str, Any]:
    about = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": about, **more}


def allowed(kind: str, person: str, namespace: str = "") -> list[dict[str, Any]]:
    """The person may list VMs: of a namespace, or of all."""
    api, name = f"{RBAC}/v1", f"page-{person}"
    role, binding = (kind, f"{kind}Binding")
    subject = {"kind": "ServiceAccount", "name": person, "namespace": SHOP}
    reference = {"apiGroup": RBAC, "kind": role, "name": name}
    return [
        made(role, name, api, namespace, rules=MAY_LIST),
        made(binding, name, api, namespace, roleRef=reference, subjects=[subject]),
    ]


WORLD: Final = [
    *(made("Namespace", each) for each in VMS),
    *(made("ServiceAccount", each, namespace=SHOP) for each in ("clerk", "admin", "guest", "leaver")),
    *allowed("Role", "clerk", SHOP),
    *allowed("Role", "leaver", SHOP),
    *allowed("ClusterRole", "admin"),
]


@dataclass(frozen=True, slots=True)
class Page:
    """The page at ``url``, and how people get tokens."""

    cluster: RealKubernetes
    url: str

    def token(self, person: str) -> str:
        """As people get theirs."""
        return self.cluster.kubectl("create", "token", person, f"--namespace={SHOP}", "--duration=1h").strip()

    @contextmanager
    def visitor(self) -> Iterator[httpx.Client]:
        """A browser without a session."""
        with httpx.Client(base_url=self.url, trust_env=False, timeout=30.0) as http:
            yield http

    @contextmanager
    def signed_in(self, token: str) -> Iterator[httpx.Client]:
        with self.visitor() as http:
            assert sign_in(http, token) == 200
            yield http


def sign_in(http: httpx.Client, token: str) -> int:
    return http.post("/api/session", json={"token": token}).status_code


def snapshot(http: httpx.Client) -> str:
    """The first event: all that there is for this visitor."""
    with http.stream("GET", "/api/events") as answer:
        assert answer.status_code == 200
        return next(line for line in answer.iter_lines() if line.startswith("data: "))


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[RealKubernetes]:
    """One node and the CRDs of VMs, without our programs."""
    with running(RealKubernetes("page", home), "--nodes", "1") as up:
        yield up


@pytest.fixture(scope="module")
def page(cluster: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    values = tmp_path_factory.mktemp("values") / "values.json"
    values.write_text(json.dumps(PAGE_ALONE))
    bring_image(cluster, "autoscale-dashboard", tmp_path_factory.mktemp("images"))
    cluster.apply(*WORLD)
    for namespace, name in VMS.items():
        spec = vm(name, 1)["spec"]
        cluster.apply(made("VirtualMachine", name, "vm.neon.tech/v1", namespace, spec=spec))
    with telling(cluster):
        Release(cluster).helm("install", "--create-namespace", f"--values={values}", "--wait", "--timeout=4m")
    with forwarded(cluster) as url:
        yield Page(cluster, url)


@contextmanager
def forwarded(cluster: RealKubernetes) -> Iterator[str]:
    """As docs/page.md has people reach it."""
    target = (f"--namespace={NAMESPACE}", "port-forward", "service/autoscaling-dashboard", ":10290")
    with subprocess.Popen(cluster.kubectl_command(*target), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None
        try:
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


def test_users_see_only_permitted_namespaces(page: Page) -> None:
    paths = [f"/api/vms/{namespace}/{name}" for namespace, name in VMS.items()]
    with page.signed_in(page.token("clerk")) as clerk:
        seen = snapshot(clerk)
        assert (f"{SHOP}/orders" in seen, BANK in seen) == (True, False)
        answers = [clerk.get(path) for path in (*paths, f"/api/vms/{BANK}/none")]
        assert [each.status_code for each in answers] == [200, 404, 404]
        assert answers[1].content == answers[2].content
        assert clerk.get("/api/settings").status_code == 404
    with page.signed_in(page.token("admin")) as admin:
        seen = snapshot(admin)
        assert (f"{SHOP}/orders" in seen, f"{BANK}/ledger" in seen) == (True, True)
        assert [admin.get(path).status_code for path in paths] == [200, 200]


def test_invalid_tokens_see_nothing(page: Page) -> None:
    token, key = page.token("clerk"), page.cluster.folder / "kubernetes" / "pki" / "service-accounts.key"
    with page.visitor() as http:
        assert sign_in(http, dated(token, key, 600.0)) == 200, "the cluster's key signs what it takes"
    for bad in (forged(token), dated(token, key, -EXPIRED), page.token("guest"), "nonsense"):
        with page.visitor() as http:
            assert sign_in(http, bad) == 401
            paths = ("/api/events", f"/api/vms/{SHOP}/orders", "/api/costs", "/api/settings")
            assert {http.get(path).status_code for path in paths} == {401}
            assert http.get("/").status_code == 200, "the page's own files are no secret"


def test_session_ends_when_rights_are_revoked(page: Page) -> None:
    with page.signed_in(page.token("leaver")) as http:
        assert http.get(f"/api/vms/{SHOP}/orders").status_code == 200
        page.cluster.kubectl("delete", "rolebinding", "page-leaver", f"--namespace={SHOP}")
        eventually(lambda: http.get(f"/api/vms/{SHOP}/orders").status_code == 401, "the session's end", CHECKED)


def test_history_is_recorded_in_the_pod(page: Page) -> None:
    with page.signed_in(page.token("clerk")) as http:
        path = f"/api/past/{SHOP}/orders?seconds=900"
        eventually(lambda: bool(http.get(path).json()["at"]), "a past")
        found = http.get("/api/costs?seconds=3600&by=namespace").json()
        assert {each["name"] for each in found["lines"]} <= {SHOP}
        assert found["kept"]


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium")
async def test_browser_signs_in_with_token(page: Page) -> None:
    pytest.importorskip("playwright")
    from tests.browser.chromium import browsing, visit  # noqa: PLC0415 - needs playwright

    async with browsing() as browser, visit(browser, page.url) as seen:
        await seen.tab.get_by_label("Token").fill(page.token("clerk"))
        await seen.tab.get_by_role("button", name="Sign in").click()
        await seen.shows("a real cluster")
        await seen.shows("1 database on")
        await seen.tab.evaluate(f"location.hash = '#/vm/{SHOP}/orders'")
        await seen.shows("Guest size")
        assert seen.complaints == []
