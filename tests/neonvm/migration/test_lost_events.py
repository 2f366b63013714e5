"""Events may have their own etcd, which may be down for hours: migrations and VMs end without them."""

from protocol.kubernetes.objects import child
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from tests.neonvm.runtime_fixture import DB, RuntimeFixture


async def test_lost_events_do_not_keep_migration(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    runtime.api.refused, runtime.api.fault = "POST .*/events$", 500
    source, _ = await runtime.begin_to_move()
    source.arrive()
    await runtime.pass_time(5)
    ended = await runtime.migration()
    assert ended is not None
    assert child(ended, "metadata")["finalizers"], "Events may come back soon"
    await runtime.pass_time(90, 5)
    ended = await runtime.migration()
    assert ended is not None
    assert "finalizers" not in child(ended, "metadata")
    await runtime.client.delete(VIRTUAL_MACHINES, DB)
    await runtime.pass_time(60, 5)
    assert (await runtime.migration(), await runtime.pods(), runtime.network.released) == (None, {}, [DB])
