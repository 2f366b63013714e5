"""Child processes: kept running, ended for good, and never outliving their owner."""

import asyncio
import sys
from pathlib import Path

from deploy.local.process import LocalProgram, ProcessSupervisor, end, start, without_misleading_variables
from tests.fake_clock import FakeClock, settle


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def python(code: str, log: Path) -> LocalProgram:
    return LocalProgram([sys.executable, "-c", code], log, environment={"GREETING": "hello"})


async def test_program_has_environment_and_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "program.log"
    process = await start(python("import os; print(os.environ['GREETING'])", log))
    assert await process.wait() == 0
    assert log.read_text() == "hello\n"


def test_cluster_program_gets_clean_environment() -> None:
    given = {"PATH": "/bin", "HTTPS_PROXY": "http://p:1", "no_proxy": "x", "ETCD_NAME": "other", "KUBECONFIG": "/x"}
    assert without_misleading_variables(given) == {"PATH": "/bin"}


def test_pdeathsig_is_set_before_and_after_fork(tmp_path: Path) -> None:
    order = ["setpriv", "--pdeathsig", "KILL", "--"]
    program = LocalProgram(["sleep", "1"], tmp_path / "log", ["nsenter", "--net=x"])
    assert (program.argv[:4], program.argv[-8:]) == (order, ["nsenter", "--net=x", *order, "sleep", "1"])


async def test_program_of_dead_owner_does_not_run(tmp_path: Path) -> None:
    """Its parent is another one than the process that wrote its command line."""
    program = LocalProgram(["touch", str(tmp_path / "ran")], tmp_path / "log")
    orphan = await asyncio.create_subprocess_exec("sh", "-c", '"$@"; exit $?', "sh", *program.argv)
    assert (await orphan.wait(), (tmp_path / "ran").exists()) == (1, False)
    process = await start(program)
    assert (await process.wait(), (tmp_path / "ran").exists()) == (0, True)


async def test_ending_ended_process_is_fine(tmp_path: Path) -> None:
    process = await start(python("", tmp_path / "log"))
    await process.wait()
    await end(process)
    assert process.returncode == 0


async def test_ended_program_restarts_after_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    keeper = ProcessSupervisor(python("raise SystemExit(3)", tmp_path / "log"), clock)
    running = asyncio.ensure_future(keeper.run())
    for times in (1, 2):
        async with asyncio.timeout(20):
            while keeper.restarts < times:
                await settle()
        assert (keeper.restarts, keeper.pid) == (times, None)
        while keeper.pid is None and keeper.restarts == times:  # no longer: it may end, and be started again, at once
            await clock.advance(0.1)
    running.cancel()
    await asyncio.wait((running,))


async def test_failed_start_is_logged_as_end(tmp_path: Path) -> None:
    program = LocalProgram(["sleep", "1"], tmp_path / "log", environment={"PATH": "/no/such/folder"})
    keeper = ProcessSupervisor(program, FakeClock())
    running = asyncio.ensure_future(keeper.run())
    await settle()
    assert keeper.restarts == 1
    assert "setpriv cannot be started" in program.log.read_text()
    running.cancel()
    await asyncio.wait((running,))


async def test_unwritable_log_is_retried(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "file").touch()
    keeper = ProcessSupervisor(python("", tmp_path / "file" / "log"), clock)
    running = asyncio.ensure_future(keeper.run())
    await settle()
    await clock.advance(1.5)
    assert (keeper.restarts, running.done()) == (2, False)
    running.cancel()
    await asyncio.wait((running,))


async def test_a_keeper_that_is_cancelled_ends_its_program(tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"import pathlib,signal; pathlib.Path({str(began)!r}).touch(); signal.pause()"
    keeper = ProcessSupervisor(python(code, tmp_path / "log"), FakeClock())
    running = asyncio.ensure_future(keeper.run())
    while keeper.pid is None:
        await settle()
    pid = keeper.pid
    running.cancel()
    await asyncio.wait((running,))
    assert not lives(pid)
