"""``autoscale local``: starts and stops a whole cluster on this machine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.config import PolicyError, read_policy
from agent.core.policy import Policy
from deploy.local.cluster.control import START_KUBELET, STOP_KUBELET, ControlError, ControlResponse, ask_cluster
from deploy.local.cluster.folder import AlreadyRunningError, ClusterFolder, clusters_root
from deploy.local.cluster.launch import launch, stop
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec, SpecError, default_node_cpu
from deploy.local.kubernetes.machine.installation import ImageLoadError, load_image
from deploy.local.kubernetes.programs.versions import ADD_ONS, SUPPORTED
from deploy.neonvm.network.chooser import NetworkKind
from protocol.runtime.clock import SystemClock
from scripts.autoscale.cluster_flags import VmArgument, VmNamespace, check_cluster_name, parse_vm, vm_host, vm_table
from scripts.autoscale.clusters import DEFAULT_NAMESPACE, ClusterFlags, find_cluster
from scripts.autoscale.history.finding import FILE
from scripts.autoscale.history.recording import recording, site_sources
from scripts.autoscale.running import runs
from scripts.autoscale.site import open_site
from scripts.autoscale.stages import StepView, show_failure
from scripts.autoscale.terminal.completion import complete_node
from scripts.autoscale.terminal.plain_command import PlainCommand
from scripts.autoscale.terminal.printing import Output, OutputFormat, print_table, show

_EXAMPLE: Final = Path(__file__).parents[2] / "vm-deploy.yaml"
"""Exists only in a checkout."""

Name = Annotated[
    str,
    typer.Option(
        "--name", callback=check_cluster_name, help="The cluster's name; clusters with different names are independent."
    ),
]
KubernetesVersion = Annotated[str, typer.Option(help=f"With --kubernetes: its version, {' or '.join(SUPPORTED)}.")]

GuestKind = Literal["qemu", "simulated"]
AgentForm = Literal["auto", "sidecar", "node"]


def app() -> typer.Typer:
    """The commands of ``autoscale local``."""
    group = typer.Typer(help="Run a whole cluster on this machine.", no_args_is_help=True)
    group.command("up", cls=PlainCommand)(up)
    group.command("down", cls=PlainCommand)(down)
    group.command("status", cls=PlainCommand)(status)
    group.command("address", cls=PlainCommand)(address)
    group.command("kubelet", cls=PlainCommand)(kubelet)
    group.command("load", cls=PlainCommand)(load)
    return group


def _check_policy(path: str) -> str:
    """Refuses a policy file that the agents would reject; an empty path selects the default policy."""
    if path:
        try:
            read_policy(Path(path).read_text(encoding="utf-8"), Policy())
        except OSError as error:
            raise typer.BadParameter(f"{path}: {error.strerror}") from None
        except (UnicodeDecodeError, PolicyError) as error:
            raise typer.BadParameter(f"{path}: {error}") from None
    return path


def _check_load(load: str) -> str:
    """Refuses a load that simulated guests could not read, before anything starts."""
    from deploy.local.cluster.guests import load_of  # noqa: PLC0415 - takes a fifth of a second to import

    try:
        load_of(load)
    except StepFailedError as error:
        raise typer.BadParameter(str(error)) from None
    return load


@runs
async def up(  # noqa: PLR0913, PLR0917 - each is an option of the command
    guests: Annotated[GuestKind, typer.Option(help="Real QEMU guests, or simulated ones that replay a load.")] = "qemu",
    nodes: Annotated[int, typer.Option(min=1, max=200, help="Number of nodes.")] = 2,
    node_cpu: Annotated[
        str, typer.Option(help="CPU of each node, as a quantity (default: 8, more for many VMs).")
    ] = "",
    node_memory: Annotated[str, typer.Option(help="Memory of each node, as a quantity.")] = "16Gi",
    vms: Annotated[int, typer.Option(min=0, max=5000, help="Number of small VMs to create.")] = 0,
    agents: Annotated[AgentForm, typer.Option(help="Agents in each VM's pod, or one per node.")] = "auto",
    network: Annotated[NetworkKind, typer.Option(help="How nodes are networked.")] = NetworkKind.AUTO,
    load: Annotated[
        str,
        typer.Option(
            callback=_check_load,
            help="Load of simulated VMs: idle, waves, or a recording (seconds,cpu_cores[,mem_bytes]).",
        ),
    ] = "",
    policy: Annotated[str, typer.Option(callback=_check_policy, help="Policy file of the agents.")] = "",
    node_label: Annotated[
        list[str] | None, typer.Option(help="NODE=KEY=VALUE, such as node-2=zone=b; repeatable.")
    ] = None,
    node_taint: Annotated[
        list[str] | None, typer.Option(help="NODE=KEY[=VALUE]:EFFECT, such as node-1=gpu=yes:NoSchedule; repeatable.")
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="Also run groups: primaries with read replicas.")] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Real Kubernetes (as root): kubelets and containerd in namespaces.")
    ] = False,
    kubernetes_version: KubernetesVersion = SUPPORTED[0],
    with_: Annotated[
        list[str] | None, typer.Option("--with", help=f"With --kubernetes: install {', '.join(ADD_ONS)}.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Also record this label of VMs; repeatable.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the cluster is up; `down` stops it.")
    ] = False,
    name: Name = "local",
) -> int:
    """Start a cluster, and run it until Ctrl-C."""
    spec = ClusterSpec(
        guests=guests,
        nodes=nodes,
        node_cpu=node_cpu or default_node_cpu(vms, nodes),
        node_memory=node_memory,
        agents=agents,
        network=network.value,
        vms=vms,
        policy=policy,
        load=load,
        node_labels=node_label or [],
        node_taints=node_taint or [],
        groups=groups,
        kubernetes=kubernetes_version if kubernetes else "",
        add_ons=with_ or [],
    )
    try:
        spec.check()
    except SpecError as error:
        raise typer.BadParameter(str(error)) from None
    return await _up(ClusterFolder.of(name), spec, label or [], detach=detach)


async def _up(folder: ClusterFolder, spec: ClusterSpec, labels: Sequence[str], *, detach: bool) -> int:
    console = Console()
    try:
        # An attached cluster is recorded by this process; a detached one needs a process that outlives it.
        recorder = recorder_command(folder, labels) if detach and not spec.kubernetes else ()
        cluster = await launch(folder, spec, attached=not detach, recorder=recorder)
    except AlreadyRunningError as error:
        hint = "" if error.elsewhere else f"; see it: autoscale local status --name {folder.name}"
        typer.echo(f"autoscale: {error}{hint}", err=True)
        return 1
    # Until the cluster is up, any error or Ctrl-C must take it down again.
    keep = False
    try:
        with StepView(console) as view:
            await cluster.follow(view.show)
        print_ready(console, folder, spec)
        keep = detach
        if detach:
            return 0
        console.print("Ctrl-C stops it.")
        async with _recorded(folder, spec, labels):
            await cluster.wait()
        console.print(f"The cluster has ended; its log: {folder.log('cluster')}", soft_wrap=True)
    except StepFailedError as error:
        show_failure(console, error)
    finally:
        if not keep:
            await cluster.end()
    return 1


def recorder_command(folder: ClusterFolder, labels: Sequence[str]) -> list[str]:
    """The command that records the history of a detached cluster."""
    # `-P` keeps the current folder out of the module path, where a file could shadow a module.
    command = [sys.executable, "-P", "-m", "scripts.autoscale.main", "record", "--name", folder.name]
    return [*command, *(f"--label={label}" for label in labels)]


@asynccontextmanager
async def _recorded(folder: ClusterFolder, spec: ClusterSpec, labels: Sequence[str]) -> AsyncIterator[None]:
    """Records the cluster's history, except on a real Kubernetes, which has no VMs until something is installed."""
    if spec.kubernetes:
        yield
        return
    async with (
        open_site(find_cluster(ClusterFlags(folder.name))) as site,
        site_sources(site) as sources,
        recording(site.client.api, sources, folder.root / FILE, Console(), labels),
    ):
        yield


def print_ready(console: Console, folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Prints commands to start with, which can be pasted into a shell."""
    name = "" if folder.name == "local" else f" --name {folder.name}"
    console.print(f"[bold green]The cluster {folder.name!r} is up.[/bold green]")
    console.print(f"  export KUBECONFIG={quote(str(folder.kubeconfig))}", soft_wrap=True)
    if spec.kubernetes:
        console.print("  kubectl get nodes,pods --all-namespaces --output wide")
        return
    applied = f"kubectl apply -f {quote(str(_EXAMPLE))} && " if _EXAMPLE.is_file() else ""
    console.print(f"  {applied}kubectl get neonvm -w", soft_wrap=True)
    console.print(f"  autoscale top{name}")
    console.print(f"  autoscale web{name}   # the same in a browser")


@runs
async def down(name: Name = "local") -> int:
    """Stop a cluster and remove it, in any state."""
    folder, console = ClusterFolder.of(name), Console()
    if not folder.exists():
        console.print(f"There is no cluster {folder.name!r} in {clusters_root()}.", soft_wrap=True)
        # Not a failure: `down` can be repeated.
        return 0
    ran = await stop(folder, SystemClock())
    console.print(f"The cluster {folder.name!r} {'has ended' if ran else 'was not running; removed its files'}.")
    return 0


KubeletAction = Literal["stop", "start"]


@runs
async def kubelet(
    action: Annotated[KubeletAction, typer.Argument(metavar="stop|start", help="stop or start")],
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The node, such as node-1.", autocompletion=complete_node)
    ],
    name: Name = "local",
) -> int:
    """Stop a node's kubelet as if its machine hung (NotReady within a minute; guests keep running), or start it."""
    return await order_kubelet(ClusterFolder.of(name), action, node)


async def order_kubelet(folder: ClusterFolder, action: KubeletAction, node: str) -> int:
    """Stops or starts the kubelet of ``node``, and prints the consequence. Raises ``ControlError``."""
    stops = action == "stop"
    await ask_cluster(folder, STOP_KUBELET if stops else START_KUBELET, node)
    then = (
        "has stopped: its node becomes NotReady within a minute, and its guests keep running"
        if stops
        else "is running: its node becomes Ready in a few seconds"
    )
    Console().print(f"The kubelet of {node} {then}.", soft_wrap=True)
    return 0


@runs
async def status(name: Name = "local", output: OutputFormat = Output.TEXT) -> int:
    """Show a cluster's state and processes. Exits 3 if it is not running."""
    folder, console = ClusterFolder.of(name), Console()
    try:
        answer = await ask_cluster(folder, "status")
    except ControlError as error:
        show([f"The {error}"], {"name": folder.name, "running": False, "why": str(error)}, output)
        return 3
    if output.is_for_scripts:
        # `error`, `port` and `host` belong to other requests.
        answered = msgspec.to_builtins(answer)
        facts = {name: answered[name] for name in ("network", "guests", "agents", "parts", "unreadable")}
        show([], {"name": folder.name, "running": True, "kubeconfig": str(folder.kubeconfig), **facts}, output)
        return 0
    _print_status(console, folder, answer)
    print_table(console, await vm_table(folder.kubeconfig))
    return 0


def _print_status(console: Console, folder: ClusterFolder, answer: ControlResponse) -> None:
    console.print(f"[bold]The cluster {folder.name!r} is running.[/bold]")
    for line in (answer.network, answer.guests, answer.agents):
        console.print(f"  {line}", soft_wrap=True)
    console.print(f"  kubeconfig: {folder.kubeconfig}", soft_wrap=True)
    table = Table("process", "pid", "restarts", box=None)
    for part in answer.parts:
        table.add_row(part.name, str(part.pid or "-"), str(part.restarts))
    print_table(console, table)
    for line in answer.unreadable:
        console.print(f"  [yellow]unreadable, left unchanged:[/yellow] {escape(line)}", soft_wrap=True)


@runs
async def address(
    vm: VmArgument,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port in the VM.")] = 5432,
    name: Name = "local",
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = DEFAULT_NAMESPACE,
) -> int:
    """Print HOST:PORT on this machine that forwards to a VM; with -o wide also its target."""
    folder = ClusterFolder.of(name)
    await ask_cluster(folder, "status")  # raises ControlError if the cluster is not running
    host = await vm_host(folder.kubeconfig, parse_vm(vm, namespace))
    answer = await ask_cluster(folder, "expose", host, port)
    local = f"127.0.0.1:{answer.port}"
    fields = {"vm": vm, "host": "127.0.0.1", "port": answer.port, "vmHost": host, "vmPort": port}
    show([f"{local}  {vm}  {host}:{port}" if output is Output.WIDE else local], fields, output)
    return 0


@runs
async def load(
    archives: Annotated[
        list[Path], typer.Argument(metavar="ARCHIVE", exists=True, dir_okay=False, help="Image archives.")
    ],
    name: Name = "local",
) -> int:
    """Load images onto every node of a cluster with --kubernetes."""
    try:
        for archive in archives:
            nodes = await load_image(ClusterFolder.of(name).nodes, archive)
            print(f"{archive}: on {', '.join(nodes)}")
    except ImageLoadError as error:
        typer.echo(f"autoscale: {error}", err=True)
        return 1
    return 0
