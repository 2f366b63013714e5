"""What the page's program may do in the cluster is what it does: it reads, and asks who people are."""

from __future__ import annotations

from tests.deploy.test_rights import granted, right
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.page_cluster import page, put_vm


async def test_it_may_do_what_it_does_and_nothing_else() -> None:
    async with page(on_a_cluster=True) as run:
        put_vm(run.cluster, "db")
        await settle()
        run.cluster.people = {"clerk": {"default"}}
        await run.sign_in("clerk")
        assert (await run.http.get("/api/vms/default/db")).status_code == 200
        asked = {right(each.method, each.path, each.query) for each in run.cluster.calls}
        watched = {(group, plural, "watch") for group, plural, verb in asked if verb == "list"}
        assert asked | watched == granted("ClusterRole", "autoscaling-dashboard")
