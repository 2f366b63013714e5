"""One small cluster in which any part is the original's or ours: each program in the place of its pod.

A program's pod is an object that says where it is; no kubelet starts anything. The pods of VMs are run by
``runner_pods``.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2 as httpx
import yaml

from deploy.local.kubeconfigs import kubeconfig, token_login
from deploy.local.kubernetes.machine.credentials import INSIDE
from deploy.neonvm.objects.pod_form import FLAT_RESOURCE
from protocol.names import RUNNER_COMMAND, TOKEN_AUDIENCE
from protocol.units import MilliCpu, Resources
from scheduler_plugin.injector.admission.injection import IN_NEONVMS_POD, IN_OUR_POD
from tests import plain_yaml
from tests.deploy.manifests import documents, one
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import faulty_proxy
from tests.kubernetes.failing.fleet import PODS, VMS, Fleet, Obj, permit_on, until
from tests.kubernetes.neon import objects, originals
from tests.kubernetes.neon.placed_program import Program, listens, ours_in, until_up
from tests.kubernetes.neon.places import Places
from tests.kubernetes.neon.runner_pods import Kubelet, RunnerPod, kubelet
from tests.kubernetes.real_kubernetes import PATIENCE

SYSTEM_PODS: Final = "/api/v1/namespaces/kube-system/pods"
MIGRATIONS: Final = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachinemigrations"
WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
AGENTS: Final = 10299
METRICS: Final = 10297
SETTINGS: Final = """
nodeDefaults:
  computeUnit: {vCPUs: 250m, mem: 1Gi}
  cpu: {watermark: 0.9, system: 0}
  memory: {watermark: 0.9, system: 0}
migration: {autoMigration: optIn, settleSeconds: 2, settleDeniedSeconds: 2}
agents:
  nodeAgents: ["kube-system:autoscaling-agent"]
"""
OUR_ADDRESSES: Final = "10.111.0.1-10.111.0.20"
"""Of VMs under our own controller."""

ADMITTING: Final = "  withoutTokens: {namespaces: [kube-system], labels: {name: autoscaler-agent}}\n"
"""What an operator adds so that the original's agents are heard."""


@dataclass(slots=True)
class Stage:
    """Parts of a test. ``stacks`` are by program name, so that each program can be stopped alone."""

    plane: BareControlPlane
    fleet: Fleet
    places: Places
    folder: Path
    binaries: Path
    guests: Kubelet
    stacks: dict[str, AsyncExitStack] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)

    # The cluster -------------------------------------------------------------------------------------------------

    async def node(self) -> str:
        """A node that offers what the original's pods ask for, and ours."""
        name = await self.fleet.node()
        offered = {"neonvm/kvm": "100", "neonvm/vhost-net": "100", FLAT_RESOURCE: "100"}
        await self.fleet.patch(
            f"/api/v1/nodes/{name}/status", {"status": {"allocatable": offered, "capacity": offered}}
        )
        await self.fleet.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"kubernetes.io/os": "linux"}}})
        self.nodes.append(name)
        return name

    async def vm(self, name: str, **more: Any) -> None:
        """Create a VM. The API server may still call the webhooks of the previous controller, and fail."""

        async def is_made() -> bool:
            return bool(await self.fleet.create(VMS, objects.vm(name, **more)))

        await until(is_made, f"{name} is made")

    async def found(self, name: str) -> Obj:
        """The present VM object."""
        found: Obj = (await self.fleet.http.get(f"{VMS}/{name}")).json()
        return found

    async def runs(self, name: str) -> RunnerPod:
        """The guest of a VM, once its controller says that it runs, and where and how large it is."""

        async def is_running() -> bool:
            status = (await self.found(name)).get("status", {})
            return bool(status.get("phase") == "Running" and {"node", "cpus", "memorySize"} <= status.keys())

        await until(is_running, f"{name} runs", PATIENCE)
        return self.guests.pods[(await self.found(name))["status"]["podName"]]

    async def grows(self, name: str, cpu: str) -> None:
        """Wait until the controller reports at least this much CPU for the guest."""

        async def is_so() -> bool:
            has = (await self.found(name))["status"].get("cpus")
            return has is not None and MilliCpu.parse(has) >= MilliCpu.parse(cpu)

        await until(is_so, f"{name} has {cpu} at least", PATIENCE)

    async def has(self, name: str, cpus: str, memory: str, seconds: float = PATIENCE) -> None:
        """Returns once the controller says that the guest has this size."""

        async def is_so() -> bool:
            status = (await self.found(name))["status"]
            return (str(status.get("cpus")), status.get("memorySize")) == (cpus, memory)

        await until(is_so, f"{name} has {cpus} and {memory}", seconds)

    async def permit(self, name: str) -> str:
        """The permit of our scheduler, as stored on the VM."""
        return str(permit_on(await self.found(name)))

    def booked(self, ours: Program) -> dict[str, list[Resources]]:
        """By node: what our scheduler has reserved there for each pod of a VM."""
        nodes = ours.explains(METRICS, "/nodes")[1]["nodes"]
        return {
            node["name"]: [
                Resources.parse(pod["reserved"]["cpu"], pod["reserved"]["mem"]) for pod in node["pods"] if pod["vm"]
            ]
            for node in nodes
        }

    # Programs ----------------------------------------------------------------------------------------------------

    async def end(self, program: Program) -> None:
        """Ends a program and its pod."""
        await self.stacks.pop(program.name).aclose()

    async def close(self) -> None:
        """Ends all programs, the newest first."""
        for stack in reversed(list(self.stacks.values())):
            await stack.aclose()

    def _program(self, name: str, stack: AsyncExitStack) -> Program:
        place = stack.enter_context(self.places.place())
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return Program(name, place, folder)

    async def _pod(self, program: Program, stack: AsyncExitStack, label: str, account: str, node: str) -> Obj:
        """The program's pod, which is Ready where the program is."""
        spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "main", "image": "it"}]}
        metadata = {"name": program.name, "labels": {"name": label}}
        made = await self.fleet.create(SYSTEM_PODS, {"metadata": metadata, "spec": spec})
        ready = [{"type": "Ready", "status": "True"}]
        address = program.place.address
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
        await self.fleet.patch(f"{SYSTEM_PODS}/{program.name}/status", {"status": status})

        async def gone() -> None:
            await self.fleet.http.request("DELETE", f"{SYSTEM_PODS}/{program.name}", json={"gracePeriodSeconds": 0})

        stack.push_async_callback(gone)
        return made

    async def _account(self, namespace: str, name: str) -> dict[str, bytes]:
        token = await self.fleet.token(namespace, name)
        return originals.account_files(token, self.plane.pki.signer.pair.certificate)

    async def original_controller(self) -> Program:
        """NeonVM's controller with its webhooks, once these answer."""
        stack = self.stacks["neonvm-controller"] = AsyncExitStack()
        made = self._program("neonvm-controller", stack)
        signer = self.plane.pki.signer
        files = await self._account("neonvm-system", "neonvm-controller")
        files |= originals.serving_files(signer, made.place.address)
        flags = ("--concurrency-limit=8", "--disable-runner-cgroup", "--default-cpu-scaling-mode=SysfsScaling")
        names = {"IPAM": "overlay-ipam", "RUNNER": "overlay-for-vms"}
        environment = {"VM_RUNNER_IMAGE": "runner", "TMPDIR": "/run"}
        for part, name in names.items():
            environment |= {f"NAD_{part}_NAME": name, f"NAD_{part}_NAMESPACE": "neonvm-system"}
        program = str(self.binaries / "neonvm-controller")
        made.process = await stack.enter_async_context(
            originals.container(made.place, made.folder, files, program, *flags, **environment)
        )

        async def answers() -> bool:
            return made.ask("GET", 8081, "/readyz")[0] == 200 and listens(made.place, 9443)

        await until_up(answers, made)
        for hook in objects.webhooks(self.binaries, made.place.address, signer.pair.certificate):
            path = f"{WEBHOOKS}/{hook['kind'].lower()}s"
            await self.fleet.create(path, hook)
            stack.push_async_callback(self.fleet.http.delete, f"{path}/{hook['metadata']['name']}")
        return made

    async def our_controller(self) -> Program:
        """Our NeonVM controller, once it leads."""
        stack = self.stacks["our-controller"] = AsyncExitStack()
        made = self._program("our-controller", stack)
        config = await self._kubeconfig(made.folder, "neonvm-controller")
        flags = (f"--kubeconfig={config}", f"--addresses={OUR_ADDRESSES}", "--runner-image=ours")
        await stack.enter_async_context(ours_in(made, "-m", "deploy.neonvm.service", *flags))

        async def answers() -> bool:
            return made.ask("GET", 10293, "/readyz")[0] == 200

        await until_up(answers, made)
        return made

    async def original_agent(self, node: str) -> Program:
        """The original's agent of a node."""
        stack = self.stacks[f"autoscaler-agent-{node}"] = AsyncExitStack()
        made = self._program(f"autoscaler-agent-{node}", stack)
        await self._pod(made, stack, "autoscaler-agent", "autoscaler-agent", node)
        files = await self._account("kube-system", "autoscaler-agent")
        files["etc/autoscaler-agent-config/config.json"] = json.dumps(originals.AGENT_CONFIG).encode()
        where = {"K8S_NODE_NAME": node, "K8S_POD_IP": made.place.address}
        where["CONFIG_PATH"] = "/etc/autoscaler-agent-config/config.json"
        program = str(self.binaries / "autoscaler-agent")
        made.process = await stack.enter_async_context(
            originals.container(made.place, made.folder, files, program, **where)
        )
        return made

    async def original_scheduler(self, node: str) -> Program:
        """The original's scheduler, once it answers agents."""
        stack = self.stacks["autoscale-scheduler"] = AsyncExitStack()
        made = self._program("autoscale-scheduler", stack)
        files = await self._account("kube-system", "autoscale-scheduler") | originals.scheduler_files()
        flags = ("--config=/etc/kubernetes/scheduler-config.yaml", "--secure-port=0", "--authentication-skip-lookup")
        made.process = await stack.enter_async_context(
            originals.container(made.place, made.folder, files, str(self.binaries / "autoscale-scheduler"), *flags)
        )

        async def answers() -> bool:
            return made.ask("GET", AGENTS, "/") == (400, "must be POST")

        await until_up(answers, made)
        await self._pod(made, stack, "autoscale-scheduler", "autoscale-scheduler", node)
        return made

    async def our_scheduler(self, node: str, settings: str = SETTINGS, name: str = "") -> Program:
        """Our service and its kube-scheduler, in a pod that the original's agents find by its label. They do not find
        one with a different ``name``, which ``settings`` have too.

        One with a ``name`` of its own, which ``settings`` have too, is found by none of them.
        """
        stack = self.stacks["autoscaling-scheduler"] = AsyncExitStack()
        made = self._program("autoscaling-scheduler", stack)
        (made.folder / "config.yaml").write_text(settings)
        config = await self._kubeconfig(made.folder, "autoscaling-scheduler")
        flags = [f"--config={made.folder / 'config.yaml'}", f"--kubeconfig={config}"]
        await stack.enter_async_context(ours_in(made, "-m", "scheduler_plugin", *flags))
        theirs = plain_yaml.load(one("ConfigMap", "autoscaling-kube-scheduler-config")["data"]["scheduler.yaml"])
        theirs["clientConnection"] = {"kubeconfig": str(config)}
        theirs["profiles"][0]["schedulerName"] = name or theirs["profiles"][0]["schedulerName"]
        (made.folder / "scheduler.yaml").write_text(yaml.safe_dump(theirs))
        program = str(self.plane.programs.kubernetes / "kube-scheduler")
        logins = [f"--{what}-kubeconfig={config}" for what in ("authentication", "authorization")]
        asks = (f"--config={made.folder / 'scheduler.yaml'}", "--secure-port=0", *logins)
        await stack.enter_async_context(ours_in(made, *asks, program=program, log="kube-scheduler.log"))

        async def answers() -> bool:
            return made.ask("GET", METRICS, "/readyz")[0] == 200

        await until_up(answers, made)
        await self._pod(made, stack, name or "autoscale-scheduler", "autoscaling-scheduler", node)
        return made

    async def our_agent(self, node: str, scheduler: Program, **environment: str) -> Program:
        """Our agent of a node."""
        stack = self.stacks[f"autoscaling-agent-{node}"] = AsyncExitStack()
        made = self._program(f"autoscaling-agent-{node}", stack)
        pod = await self._pod(made, stack, "autoscaling-agent", "autoscaling-agent", node)
        for name, audience in (("token", TOKEN_AUDIENCE), ("api-token", "")):
            shown = await self.fleet.token("kube-system", "autoscaling-agent", audience, pod)
            (made.folder / name).write_text(shown)
        (made.folder / "ca.pem").write_bytes(self.plane.pki.signer.pair.certificate)
        where = {
            "AGENT_MODE": "node",
            "NODE_NAME": node,
            "METRICS_URL": "http://{pod_ip}:9100/metrics",
            "DATABASE_URL": "http://{pod_ip}:25183/database",
            "MONITOR_URL": "ws://{pod_ip}:10301/monitor",
            "SCHEDULER_URL": f"http://{scheduler.place.address}:{AGENTS}/",
            "SCHEDULER_TOKEN_FILE": str(made.folder / "token"),
            "KUBERNETES_API_URL": INSIDE,
            "KUBERNETES_TOKEN_FILE": str(made.folder / "api-token"),
            "KUBERNETES_CA_FILE": str(made.folder / "ca.pem"),
        }
        await stack.enter_async_context(ours_in(made, "-m", "agent", **{**where, **environment}))
        return made

    async def our_injector(self, scheduler: Program) -> Program:
        """Our injector, which puts agents that ask ``scheduler`` into the pods of VMs; once it is asked about pods."""
        stack = self.stacks["autoscaling-injector"] = AsyncExitStack()
        made = self._program("autoscaling-injector", stack)
        objects_of_it = {each["kind"]: each for each in documents("deploy/kubernetes/injector.yaml")}
        settings = plain_yaml.load(one("ConfigMap", "autoscaling-injector-config")["data"]["settings.yaml"])
        settings["agent"]["schedulerUrl"] = f"http://{scheduler.place.address}:{AGENTS}/"
        settings["certificates"] = {"provider": "files"}
        (made.folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        signer, address = self.plane.pki.signer, made.place.address
        for name, content in originals.serving_files(signer, address).items():
            (made.folder / Path(name).name).write_bytes(content)
        (made.folder / "ca.crt").write_bytes(signer.pair.certificate)
        config = await self._kubeconfig(made.folder, "autoscaling-injector")
        flags = (f"--settings={made.folder / 'settings.yaml'}", f"--tls-folder={made.folder}")
        await stack.enter_async_context(
            ours_in(made, "-m", "scheduler_plugin.injector", *flags, f"--kubeconfig={config}")
        )

        async def answers() -> bool:
            return listens(made.place, 10293) and made.ask("GET", 10292, "/readyz")[0] == 200

        await until_up(answers, made)
        hook = copy.deepcopy(objects_of_it["MutatingWebhookConfiguration"])
        bundle = base64.b64encode(signer.pair.certificate).decode()
        hook["webhooks"][0]["clientConfig"] = {"url": f"https://{address}:10293/mutate", "caBundle": bundle}
        path = f"{WEBHOOKS}/mutatingwebhookconfigurations"
        await self.fleet.create(path, hook)
        stack.push_async_callback(self.fleet.http.delete, f"{path}/{hook['metadata']['name']}")
        return made

    async def sidecar(self, vm: str) -> Program:
        """The agent that was injected into the pod of a VM, as the kubelet would start it."""
        name = (await self.found(vm))["status"]["podName"]
        pod: Obj = (await self.fleet.http.get(f"{PODS}/{name}")).json()
        (container,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "autoscaler-agent")
        stack = self.stacks[f"sidecar-{name}"] = AsyncExitStack()
        made = self._program(f"sidecar-{name}", stack)
        for file, audience in (("token", TOKEN_AUDIENCE), ("api-token", "")):
            account = pod["spec"]["serviceAccountName"]
            (made.folder / file).write_text(await self.fleet.token("default", account, audience, pod))
        (made.folder / "ca.pem").write_bytes(self.plane.pki.signer.pair.certificate)
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        is_ours = pod["spec"]["containers"][0]["command"] == [RUNNER_COMMAND]
        at = IN_OUR_POD if is_ours else IN_NEONVMS_POD
        of_guest = {key: variables[key] for key in ("METRICS_URL", "DATABASE_URL", "MONITOR_URL")}
        assert {urlsplit(each).hostname for each in of_guest.values()} == {at}
        here = variables | {key: text.replace(at, pod["status"]["podIP"]) for key, text in of_guest.items()}
        here |= {"POD_NAME": name, "POD_NAMESPACE": "default", "KUBERNETES_API_URL": INSIDE, "SCHEDULER_CA_FILE": ""}
        here |= {"SCHEDULER_TOKEN_FILE": str(made.folder / "token"), "KUBERNETES_CA_FILE": str(made.folder / "ca.pem")}
        here["KUBERNETES_TOKEN_FILE"] = str(made.folder / "api-token")
        await stack.enter_async_context(ours_in(made, "-m", "agent", **here))
        return made

    async def _kubeconfig(self, folder: Path, account: str) -> Path:
        token = await self.fleet.token("kube-system", account)
        made = folder / "kubeconfig"
        made.write_text(kubeconfig(INSIDE, self.plane.pki.signer.pair.certificate, account, token_login(token)))
        return made


@asynccontextmanager
async def stage(plane: BareControlPlane, places: Places, binaries: Path, folder: Path) -> AsyncIterator[Stage]:
    """A cluster without nodes, whose runner pods run; empty again afterwards."""
    headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
    async with faulty_proxy(plane) as way, AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        client = httpx.AsyncClient(
            base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False, timeout=20.0, limits=limits
        )
        fleet = Fleet(await stack.enter_async_context(client))
        place = stack.enter_context(places.place(more=12))
        guests = await stack.enter_async_context(kubelet(fleet, place))
        made = Stage(plane, fleet, places, folder, binaries, guests)
        try:
            yield made
        finally:
            await made.close()
            await _clear(fleet)


async def _clear(fleet: Fleet) -> None:
    """Delete all VMs, migrations, pods and nodes, including those with finalizers."""
    for path in (MIGRATIONS, VMS):
        for each in await fleet.list(path):
            name = each["metadata"]["name"]
            await fleet.http.delete(f"{path}/{name}")
            await fleet.http.patch(
                f"{path}/{name}",
                json={"metadata": {"finalizers": None}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
    for each in await fleet.list(PODS):
        name = each["metadata"]["name"]
        await fleet.http.request("DELETE", f"{PODS}/{name}", json={"gracePeriodSeconds": 0})
    await fleet.clear()
