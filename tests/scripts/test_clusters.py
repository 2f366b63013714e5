"""The cluster that a command uses: flags first, then running local clusters, then kubectl's files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.runtime.credentials import CredentialsError
from scripts.autoscale import clusters
from scripts.autoscale import main as program
from scripts.autoscale.cluster_flags import complete_context
from scripts.autoscale.clusters import KUBECTL_DEFAULT, ClusterFlags, ReachedCluster, find_cluster
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.site import SiteError
from scripts.autoscale.terminal import completion
from tests.scripts.plugin import completed

LOCAL, OTHER = f"local-{os.getpid()}", f"other-{os.getpid()}"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No local cluster, and no kubeconfig."""
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path / "clusters"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(clusters, "DEFAULT_KUBECONFIG", tmp_path / "usual")
    monkeypatch.setattr(clusters, "LOCAL", LOCAL)  # the machine has one lock for each name


def written(path: Path, server: str = "http://127.0.0.1:1", namespace: str = "", name: str = "x") -> Path:
    """A kubeconfig of one context."""
    content = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "namespace": namespace}}],
        "clusters": [{"name": name, "cluster": {"server": server}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@contextmanager
def running(name: str, server: str) -> Iterator[ClusterFolder]:
    """A local cluster that runs, as far as its folder says."""
    folder = ClusterFolder.of(name)
    folder.write_spec(ClusterSpec())
    written(folder.kubeconfig, server)
    with folder.locked():
        yield folder


def test_flags_name_a_cluster(tmp_path: Path) -> None:
    path = written(tmp_path / "given", name="prod")
    for context, title in (("", f"cluster of {path}"), ("prod", "context 'prod'")):
        cluster = find_cluster(ClusterFlags(kubeconfig=str(path), context=context))
        assert (cluster.kubeconfigs, cluster.title, cluster.folder) == ((path,), title, None)


def test_without_flags_it_is_kubectls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = written(tmp_path / "usual")
    assert find_cluster(ClusterFlags()).kubeconfigs == (usual,)
    second, third = written(tmp_path / "second", "http://second"), written(tmp_path / "third", "http://third")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{second}::{third}:{second}")
    cluster = find_cluster(ClusterFlags())
    assert (cluster.kubeconfigs, cluster.login.server) == ((second, third), "http://second")


@pytest.mark.parametrize("value", ["typo", "typo:other", ":"])
def test_set_variable_never_falls_back(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``KUBECONFIG=/typo`` used to mean the cluster of ``~/.kube/config``, without a word."""
    written(tmp_path / "usual")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", value)
    with running(LOCAL, "http://127.0.0.1:5"):
        for flags in (ClusterFlags(), ClusterFlags(context="x"), ClusterFlags(kubeconfig=KUBECTL_DEFAULT)):
            for chosen in (find_cluster, history_path):
                with pytest.raises(CredentialsError, match=f"KUBECONFIG={value}: no such file"):
                    chosen(flags)


def test_variable_goes_before_a_running_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``autoscale top`` showed ``local`` while the variable led to another cluster."""
    away = written(tmp_path / "away", "https://away")
    monkeypatch.setenv("KUBECONFIG", str(away))
    with running(LOCAL, "http://127.0.0.1:5") as folder:
        cluster = find_cluster(ClusterFlags())
        assert (cluster.kubeconfigs, cluster.folder) == ((away,), None)
        # Its history is a file of its own, too, although `local` has left one.
        assert history_path(ClusterFlags()).parent != folder.root


def test_empty_variable_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = written(tmp_path / "usual")
    monkeypatch.setenv("KUBECONFIG", "")
    assert find_cluster(ClusterFlags()).kubeconfigs == (usual,)


def test_named_files_must_exist(tmp_path: Path) -> None:
    written(tmp_path / "usual")
    with pytest.raises(CredentialsError, match="gone: No such file"):
        find_cluster(ClusterFlags(kubeconfig=str(tmp_path / "gone")))
    with pytest.raises(CredentialsError, match="no context named 'prod'"):
        find_cluster(ClusterFlags(context="prod"))


def test_without_any_cluster_it_is_said() -> None:
    with pytest.raises(CredentialsError, match=r"no kubeconfig .*, and no local cluster is running"):
        find_cluster(ClusterFlags())


def test_error_names_the_running_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--context`` and the kubectl plugin ignore it: users were told that no local cluster was running."""
    monkeypatch.setattr(clusters, "local_folder", lambda _: ClusterFolder.of(clusters.LOCAL))
    for flags, remedy in (
        (ClusterFlags(context="prod"), f"--name {clusters.LOCAL} without --context"),
        (ClusterFlags(kubeconfig=KUBECTL_DEFAULT), f"--name {clusters.LOCAL}"),
    ):
        with pytest.raises(CredentialsError) as refused:
            find_cluster(flags)
        assert str(refused.value) == (
            f"no kubeconfig (--kubeconfig FILE, $KUBECONFIG, or {clusters.DEFAULT_KUBECONFIG});"
            f" to use the running local cluster: {remedy}"
        )


def test_no_home_folder_is_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError(path)

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(CredentialsError, match="no kubeconfig"):
        find_cluster(ClusterFlags())


def test_named_local_cluster_must_run(tmp_path: Path) -> None:
    """It used to be kubectl's cluster then."""
    written(tmp_path / "usual")
    with pytest.raises(
        CredentialsError, match=f"'{OTHER}' is not running; start it: autoscale local up --name {OTHER}"
    ):
        find_cluster(ClusterFlags(OTHER))
    with running(OTHER, "http://127.0.0.1:5") as folder:
        assert find_cluster(ClusterFlags(OTHER)).folder == folder
        assert find_cluster(ClusterFlags(OTHER, KUBECTL_DEFAULT)).folder == folder


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        (ClusterFlags(OTHER, context="x"), "--context"),
        (ClusterFlags(OTHER, KUBECTL_DEFAULT, "x"), "--context"),
        (ClusterFlags(OTHER, "usual"), "--kubeconfig"),
    ],
)
def test_flags_of_two_clusters_are_refused(tmp_path: Path, flags: ClusterFlags, other: str) -> None:
    """``--name`` was ignored: ``migrate --name test --context prod`` moved a VM of prod."""
    written(tmp_path / "usual")
    with running(OTHER, "http://127.0.0.1:5"):
        for chosen in (find_cluster, history_path):
            with pytest.raises(CredentialsError) as refused:
                chosen(flags)
            assert str(refused.value) == f"--name {OTHER} and {other} select different clusters: use only one of them"


def test_running_local_cluster_goes_before_kubectls(tmp_path: Path) -> None:
    written(tmp_path / "usual")
    with running(LOCAL, "http://127.0.0.1:5") as folder:
        assert find_cluster(ClusterFlags()).title == f"local cluster {LOCAL!r}"
        assert find_cluster(ClusterFlags()).folder == folder
        for flags in (ClusterFlags(kubeconfig=KUBECTL_DEFAULT), ClusterFlags(context="x")):
            assert find_cluster(flags).kubeconfigs == (tmp_path / "usual",)


def test_kubeconfig_of_any_local_cluster_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate file, a copy, or merged with others; the default local cluster runs at the same time."""
    with running(OTHER, "http://127.0.0.1:5") as other, running(LOCAL, "http://127.0.0.1:6"):
        copy = tmp_path / "copy"
        copy.write_text(other.kubeconfig.read_text())
        written(tmp_path / "away", "https://away", name="away")
        for value in (other.kubeconfig, copy, f"{copy}:{tmp_path / 'away'}"):
            monkeypatch.setenv("KUBECONFIG", str(value))
            for flags in (ClusterFlags(), ClusterFlags(kubeconfig=KUBECTL_DEFAULT)):
                assert find_cluster(flags).folder == other
        monkeypatch.delenv("KUBECONFIG")
        assert find_cluster(ClusterFlags(kubeconfig=str(copy))).folder == other
        assert find_cluster(ClusterFlags(kubeconfig=str(tmp_path / "away"))).folder is None
        (ClusterFolder.of("odd").root).mkdir()
        (ClusterFolder.of("odd").kubeconfig).write_text("{")
    assert find_cluster(ClusterFlags(kubeconfig=str(copy))).folder is None


def test_namespace_is_the_contexts(tmp_path: Path) -> None:
    for namespace, expected in (("shop", "shop"), ("", "default")):
        path = written(tmp_path / "given", namespace=namespace)
        assert find_cluster(ClusterFlags(kubeconfig=str(path))).namespace == expected
    assert clusters.context_namespace(ClusterFlags()) == "default"


def test_kubectl_is_run_for_the_same_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    monkeypatch.setenv("KUBECONFIG", f"{one}:{two}")
    cluster: ReachedCluster = find_cluster(ClusterFlags(context="x", user="eve", groups=("a", "b")))
    command = ["kubectl", "--context", "x", "--as", "eve", "--as-group=a", "--as-group=b"]
    assert (cluster.kubectl(), cluster.kubectl_environment["KUBECONFIG"]) == (command, f"{one}:{two}")


@pytest.mark.parametrize("command", ["explain", "migrate", "bench"])
def test_vms_are_sought_in_the_contexts_namespace(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kubectl autoscaling migrate vm-1`` in a context of ``shop`` used to move ``default/vm-1``."""
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "config", namespace="shop")))
    asked: list[str] = []
    program.app([command])
    module = sys.modules[program.COMMANDS[command].partition(":")[0]]

    @asynccontextmanager
    async def silent_site(_: ReachedCluster) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(client=SimpleNamespace(get=refuse))

    async def refuse(_: Resource, name: ObjectName) -> None:
        asked.append(str(name))
        raise SiteError("it does not respond")

    monkeypatch.setattr(module, "open_site", silent_site)
    monkeypatch.setattr(module, "find_pgbench", lambda: "", raising=False)
    for spelt, vm in (([], "shop/vm-1"), (["-n", "ops"], "ops/vm-1"), (["-n", "ops", "--context", "x"], "ops/vm-1")):
        found = CliRunner().invoke(program.app([command, "record"]), [command, "vm-1", *spelt])
        assert (found.exit_code, found.output, asked.pop()) == (1, "autoscale: it does not respond\n", vm)


def test_check_without_a_cluster_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 would mean warnings."""
    found = CliRunner().invoke(program.app(["check", "record"]), ["check"])
    assert (found.exit_code, "no kubeconfig" in found.output) == (2, True)
    assert CliRunner().invoke(program.app(["check", "record"]), ["record"]).exit_code == 1


def test_groups_need_a_user(tmp_path: Path) -> None:
    flags = ["--kubeconfig", str(written(tmp_path / "given")), "--as-group", "ops"]
    found = CliRunner().invoke(program.app(["top", "record"]), ["top", "--once", *flags])
    assert (found.exit_code, found.output) == (1, "autoscale: --as-group requires --as\n")


def test_contexts_are_completed_from_selected_kubeconfigs(tmp_path: Path) -> None:
    def contexts(begun: str, **typed: str) -> list[str]:
        context = typer.Context(get_command(typer.Typer(callback=lambda: None)))
        context.params = dict(typed)
        return complete_context(context, begun)

    (tmp_path / "usual").write_text("contexts: [{name: staging}, {name: prod}, {name: preview}, {}]")
    assert (contexts(""), contexts("pr")) == (["preview", "prod", "staging"], ["preview", "prod"])
    for broken in ("{", "[]", "contexts: 3"):
        (tmp_path / "given").write_text(broken)
        assert contexts("", kubeconfig=str(tmp_path / "given")) == []
    assert contexts("", kubeconfig=str(tmp_path / "missing")) == []


def test_kubectls_completion_obeys_flags_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "usual", namespace="shop")
    asked: list[ClusterFlags] = []
    names = [ObjectName("shop", "db"), ObjectName("ops", "vm")]

    def names_of(flags: ClusterFlags, _: Resource) -> list[ObjectName]:
        asked.append(flags)
        return names

    monkeypatch.setattr(completion, "_names_of", names_of)
    for typed, found in (
        (["migrate", ""], ["db", "ops/vm"]),
        (["migrate", "--context", "x", "-n", "ops", ""], ["shop/db", "vm"]),
        (["migrate", "--kubeconfig=f", "--namespace=ops", "v"], ["vm"]),
    ):
        assert completed(monkeypatch, capsys, *typed) == found
    assert [(flags.kubeconfig, flags.context) for flags in asked] == [
        (KUBECTL_DEFAULT, ""),
        (KUBECTL_DEFAULT, "x"),
        ("f", ""),
    ]
