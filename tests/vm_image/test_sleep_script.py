"""The guest's side of sleep, as it is in the image, beside a real postgres.

What only a kernel does (freezing, clocks, page cache) is tested in a real guest: ``tests/vm/test_sleep_in_guest.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from deploy.neonvm.network.sockets import connected, tcp_socket
from tests.vm_image.real_database import (
    PROGRAMS,
    RealDatabase,
    database_template,
    real_database,
    reason_to_skip,
    until,
)

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "none")
EVERY = 0.1


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with database_template() as folder:
        yield folder


@pytest.fixture
async def database(template: Path) -> AsyncIterator[RealDatabase]:
    async with real_database(template) as made:
        await made.watch(every=EVERY)
        await until_page(made)
        yield made


async def until_page(database: RealDatabase) -> None:
    async def is_there() -> bool:
        return bool(database.page)

    await until(is_there)


async def until_frozen(database: RealDatabase, answer: str = '{"sessions": 0}') -> None:
    """Returns once the database is frozen.

    That is refused while the kernel has not confirmed a client's answer, a session that has just answered has not gone
    back to wait, or the database looks for tables to vacuum, as it does each second here.
    """
    await until_answered(database, 200, answer)
    assert database.is_frozen


async def until_answered(database: RealDatabase, status: int, answer: str) -> None:
    """Return once an order to freeze has this answer; thaw what another answer has frozen."""

    async def holds() -> bool:
        answers = await database.order("freeze")
        if answers[0] == 200 != status:
            await database.thaw()
        return answers == (status, answer)

    await until(holds)


async def until_reasons(database: RealDatabase, *reasons: str) -> None:
    """Returns once exactly these forbid sleep."""

    async def holds() -> bool:
        return bool(database.page) and database.reasons == set(reasons)

    await until(holds)


async def test_freeze_counts_sessions(database: RealDatabase) -> None:
    """Idle sessions sleep, too, with their temporary tables and channels that they listen to. Every step can be
    repeated.
    """
    async with database.session("CREATE TEMPORARY TABLE t (n int)", "LISTEN news"), database.session("SELECT 1"):
        for _ in range(2):
            await until_frozen(database, '{"sessions": 2}')
        for _ in range(2):
            assert await database.thaw() == (200, "the database runs")
            assert not database.is_frozen


async def test_transaction_forbids_sleep(database: RealDatabase) -> None:
    async with database.session("BEGIN"):
        await until_reasons(database, "transaction")
        await until_answered(database, 409, "the database must not sleep now: transaction")
        assert not database.is_frozen
    await until_reasons(database)


async def test_prepared_transaction_forbids_sleep(database: RealDatabase) -> None:
    await database.query("BEGIN; CREATE TABLE t (n int); PREPARE TRANSACTION 'p'")
    await until_reasons(database, "prepared")
    await database.query("ROLLBACK PREPARED 'p'")
    await until_reasons(database)


async def test_replication_forbids_sleep(database: RealDatabase) -> None:
    """A stream to another server, and a subscription, which has no worker between two attempts."""
    stream = await asyncio.create_subprocess_exec(
        *(PROGRAMS / "pg_receivewal", "-U", "postgres", "-h", database.folder, "-p", str(database.port)),
        *("-D", database.folder),
    )
    try:
        await until_reasons(database, "replication")
    finally:
        stream.kill()
        await stream.wait()
    await until_reasons(database)
    await database.query(
        "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=1' PUBLICATION p WITH (connect = false)"
    )
    await asyncio.sleep(3 * EVERY)
    assert database.reasons == set()
    await database.query("ALTER SUBSCRIPTION s ENABLE")
    await until_reasons(database, "replication")


async def test_archive_behind_forbids_sleep(database: RealDatabase) -> None:
    await database.query("ALTER SYSTEM SET archive_command = '/bin/false'")
    await database.query("SELECT pg_reload_conf()")
    await database.query("CREATE TABLE t (n int)")
    await database.query("SELECT pg_switch_wal()")
    await until_reasons(database, "archiving")
    await database.query("ALTER SYSTEM RESET archive_command")
    await database.query("SELECT pg_reload_conf()")
    await until_reasons(database)


async def test_unarchived_change_forbids_sleep(database: RealDatabase) -> None:
    """Changes are archived within ``archive_timeout``, even if the VM is asleep."""
    await database.query("ALTER SYSTEM SET archive_timeout = 3")
    await database.query("SELECT pg_reload_conf()")
    await until_reasons(database, "archiving")
    await until_reasons(database)
    assert database.page["quiet_seconds"] >= 3


async def test_autovacuum_forbids_sleep(database: RealDatabase) -> None:
    slow = "autovacuum_vacuum_threshold = 1, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    await database.query(f"CREATE TABLE t WITH ({slow}) AS SELECT generate_series(1, 50000) AS n")
    await database.query("DELETE FROM t")
    await until(lambda: has_reason(database, "autovacuum"))
    status, why = await database.order("freeze")
    assert (status, "autovacuum" in why) == (409, True)


async def test_manual_vacuum_forbids_sleep(database: RealDatabase) -> None:
    await database.query("CREATE TABLE t AS SELECT generate_series(1, 50000) AS n")
    async with database.session("SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1") as session:
        session.begin("VACUUM t")
        await until_reasons(database, "autovacuum", "transaction")


async def has_reason(database: RealDatabase, reason: str) -> bool:
    return reason in database.reasons


async def test_backup_by_hand_forbids_sleep(database: RealDatabase) -> None:
    async with database.session("SELECT pg_backup_start('by hand', true)"):
        await until_reasons(database, "backup")
    await until_reasons(database)


async def test_base_backup_forbids_sleep(database: RealDatabase) -> None:
    copy = await asyncio.create_subprocess_exec(
        *(PROGRAMS / "pg_basebackup", "-U", "postgres", "-h", database.folder, "-p", str(database.port)),
        *("-D", database.folder / "copy", "--max-rate=1M"),
    )
    try:
        await until_reasons(database, "backup", "replication")
    finally:
        copy.kill()
        await copy.wait()


async def test_cron_jobs_forbid_sleep(database: RealDatabase) -> None:
    """Nothing would wake the guest for a cron job. Without the extension, a table of that name may belong to anyone."""
    await database.query("CREATE SCHEMA cron; CREATE TABLE cron.job (active bool); INSERT INTO cron.job VALUES (true)")
    await asyncio.sleep(3 * EVERY)
    assert database.reasons == set()
    await database.query("INSERT INTO pg_extension VALUES (99999, 'pg_cron', 10, 11, false, '1.4', NULL, NULL)")
    await until_reasons(database, "cron")
    await database.query("UPDATE cron.job SET active = false")
    await until_reasons(database)
    await database.query("DELETE FROM pg_extension WHERE extname = 'pg_cron'")
    with (database.data / "postgresql.conf").open("a") as file:
        file.write("cron.database_name = 'elsewhere'\n")
    await database.query("SELECT pg_reload_conf()")
    await until_reasons(database, "cron")


async def test_untitled_sessions_forbid_sleep(database: RealDatabase) -> None:
    await database.query("ALTER SYSTEM SET update_process_title = off")
    await database.query("SELECT pg_reload_conf()")
    await until_reasons(database, "untracked")


async def test_standby_never_sleeps(template: Path) -> None:
    async with real_database(template, standby=True) as database:
        await database.watch(every=EVERY)
        await until_reasons(database, "standby")


async def test_quiet_time_grows_until_a_client_acts(database: RealDatabase) -> None:
    """Queries of a long session, and short sessions between two samples."""

    async def is_quiet() -> bool:
        return database.page.get("quiet_seconds", 0) >= 2

    async def is_not_quiet() -> bool:
        return database.page["quiet_seconds"] < 2

    async with database.session() as session:
        await until(is_quiet)
        session.begin("SELECT 1")
        await session.finished()
        await until(is_not_quiet)
        await until(is_quiet)
        await database.query("SELECT 1")
        await until(is_not_quiet)
        await until(is_quiet)


async def test_silent_database_has_no_page(database: RealDatabase) -> None:
    """A stopped psql sends no queries; the next question starts another."""

    async def is_gone() -> bool:
        return not database.page

    await database.end("psql")
    await until(is_gone)
    assert (await database.order("freeze"))[0] == 409
    await database.ask_again()
    await until_page(database)
    await database.end("server")
    await until(is_gone)


@pytest.mark.parametrize(
    ("stopped", "why"),
    [("session", "a client has sent something"), ("server", "a connection is being made")],
)
async def test_work_on_its_way_forbids_freezing(database: RealDatabase, stopped: str, why: str) -> None:
    """The database does not know of it yet: an unread query, or a connection that is not accepted yet."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(database.session("SELECT 1"))
        await until_frozen(database, '{"sessions": 1}')  # so the session waits for its client
        await database.thaw()
        number = max(database.backends()) if stopped == "session" else database.server
        os.kill(number, signal.SIGSTOP)
        stack.callback(os.kill, number, signal.SIGCONT)
        if stopped == "session":
            session.begin("SELECT 1")
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", database.port)
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
        await until_answered(database, 409, why)
        assert not database.is_frozen


async def test_closed_connection_forbids_freezing(database: RealDatabase) -> None:
    async with database.session("SELECT 1"):
        await until_frozen(database, '{"sessions": 1}')
        await database.thaw()
        number = max(database.backends())
        os.kill(number, signal.SIGSTOP)
    try:
        await until_answered(database, 409, "a connection is being closed")
    finally:
        os.kill(number, signal.SIGCONT)


@pytest.mark.parametrize(
    ("call", "why"),
    [("45 0x8", "a session is about to do something"), ("running", "a session is about to do something")],
)
async def test_query_just_read_forbids_freezing(template: Path, tmp_path: Path, call: str, why: str) -> None:
    """The connection is empty and the title says idle, but the session has not gone back to wait for its client."""
    async with real_database(template) as database, database.session("SELECT 1"):
        await until(lambda: is_idle(database))
        number = max(database.backends())
        for path in (Path("/proc") / str(each) for each in (*database.processes(), database.asker, "net")):
            (tmp_path / path.name).symlink_to(path)
        (tmp_path / str(number)).unlink()
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").symlink_to(f"/proc/{number}/cmdline")
        (tmp_path / str(number) / "syscall").write_text(f"{call}\n")
        await database.watch(every=EVERY, proc=tmp_path)
        await until_page(database)
        await until_answered(database, 409, why)


async def is_idle(database: RealDatabase) -> bool:
    return any(database.backends())


async def test_unfreezable_database_is_thawed(database: RealDatabase) -> None:
    database.write("cgroup.events", "populated 1\nfrozen 0\n")
    await until_answered(database, 409, "the database did not stand still within 1 s")
    assert not database.is_frozen


async def test_frozen_database_thaws_by_itself(template: Path) -> None:
    """Its caller never returned, or its keeper died."""
    async with real_database(template) as database:
        await database.watch(every=EVERY, held=0.5)
        await until_page(database)

        async def has_thawed() -> bool:
            return not database.is_frozen

        await until_answered(database, 200, '{"sessions": 0}')
        await until(has_thawed)
        for name in ("sleep", "psql"):
            await database.end(name)
        await database.watch(every=EVERY)
        await until_page(database)
        await until_frozen(database)
        await database.end("sleep")
        assert database.is_frozen
        await database.end("psql")
        await database.watch(every=EVERY)
        await until(has_thawed)


async def test_setting_clock_does_not_thaw(database: RealDatabase) -> None:
    await until_frozen(database)
    refusal = 400, "the time is SECONDS.NANOSECONDS"
    assert (await database.thaw(path="/clock"), database.is_frozen) == (refusal, True)
    assert await database.thaw(path="/date") == (404, "there are PUT /thaw and PUT /clock")
    assert (await database.thaw(), database.is_frozen) == ((200, "the database runs"), False)


NO_CLOCK = """package NoClock;
sub note { open my $file, '>>', $ENV{TIMES}; print $file unpack('q', $_[0]), "\\n" }
BEGIN {
    *CORE::GLOBAL::syscall = sub { $_[0] == 227 ? (note($_[2]), 0)[1] : CORE::syscall($_[0], @_[1 .. $#_]) };
}
1;
"""
"""Leaves the host's clock alone, and notes the seconds that it would be set to."""


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Reads the times that sleep.pl would have set the clock to."""
    (tmp_path / "NoClock.pm").write_text(NO_CLOCK)
    monkeypatch.setenv("PERL5OPT", f"-I{tmp_path} -MNoClock")
    monkeypatch.setenv("TIMES", str(tmp_path / "times"))
    return (tmp_path / "times").read_text


async def test_repeated_clock_interrupts_no_request(times: Callable[[], str], template: Path) -> None:
    """A runner without a response sends the clock again, and the next sleep may follow immediately."""
    async with real_database(template) as database:
        await database.watch(every=EVERY)
        await until_page(database)
        await until_frozen(database)
        for _ in range(2):
            assert await database.thaw("1800000000.000000000") == (200, "the database runs")
        await until_frozen(database)
    assert times() == "1800000000\n" * 2


async def test_clock_of_gone_caller_is_ignored(times: Callable[[], str], template: Path) -> None:
    """It waited while this program asked its database, and is old."""
    async with real_database(template) as database:
        await database.watch(every=EVERY)
        await until_page(database)
        with database.stopped("sleep"):
            late = await connected(tcp_socket(), "127.0.0.1", database.thaw_port)
            with late:
                late.send(b"PUT /clock HTTP/1.1\r\nContent-Length: 20\r\n\r\n1700000000.000000000")
        assert await database.thaw("1800000000.000000000", path="/clock") == (200, "the clock is set")
    assert times() == "1800000000\n"


async def test_invalid_time_is_rejected(database: RealDatabase) -> None:
    for text in ("tomorrow", "1", "1.5", "1.1234567890", "-1.000000000", "12345678901.000000000"):
        for path in ("/thaw", "/clock"):
            assert await database.thaw(text, path=path) == (400, "the time is SECONDS.NANOSECONDS"), text


async def test_spare_drops_caches_compacts_and_fills_free_memory(template: Path, tmp_path: Path) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/vm/drop_caches").touch()
    (tmp_path / "sys/vm/compact_memory").touch()
    (tmp_path / "meminfo").write_text("MemTotal: 99999 kB\nMemFree: 40960 kB\n")
    async with real_database(template) as database:
        await database.watch(every=EVERY, proc=tmp_path)
        assert await database.order("spare") == (200, "what was not needed is gone")
    assert (tmp_path / "sys/vm/drop_caches").read_text() == "3"
    assert (tmp_path / "sys/vm/compact_memory").read_text() == "1"
