"""An ended pod may remain for long, because other programs have finalizers too."""

import pytest

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.vm_facts import VmPlan
from protocol.kubernetes.objects import text
from protocol.kubernetes.resources import PODS
from tests.neonvm.controller.test_controller import Site, site
from tests.neonvm.sample_objects import facts, runner, virtual_machine

__all__ = ["site"]


async def test_foreign_finalizer_delays_no_restart(site: Site) -> None:
    await site.turn(3)
    name = await site.run_pod()
    await site.turn(2)
    await site.client.merge_patch(PODS, name, {"metadata": {"finalizers": ["example.com/billing"]}})
    await site.fail_pod(name)
    await site.turn(3)
    await site.clock.advance(1.1)
    vm = await site.turn(3)
    pods = [(text(pod, "metadata", "name"), text(pod, "status", "phase")) for pod in await site.pods()]
    assert (text(vm, "status", "podName"), pods) == ("db-b", [("db-a", "Failed"), ("db-b", "Pending")])


@pytest.mark.parametrize(
    ("policy", "due", "expected"),
    [("Always", False, VmPlan({}, wait_for_restart=True)), ("Never", True, VmPlan({}))],
)
def test_ended_pod_that_stays_changes_no_policy(policy: str, due: bool, expected: VmPlan) -> None:
    vm = virtual_machine({"phase": "Failed", "podName": "db-x"}, policy)
    assert plan(facts(vm, runner("Failed", leaving=True), due=due)) == expected
