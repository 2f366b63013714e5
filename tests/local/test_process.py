"""Child processes: kept running, ended for good, and never outliving their owner."""

import asyncio
import sys
from pathlib import Path

from deploy.local.process import ProcessSupervisor, Program, end, start, without_strange_settings
from tests.fake_clock import FakeClock, settle


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def python(code: str, log: Path) -> Program:
    return Program([sys.executable, "-c", code], log, environment={"GREETING": "hello"})


async def test_a_program_gets_its_environment_and_its_output_goes_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "program.log"
    process = await start(python("import os; print(os.environ['GREETING'])", log))
    assert await process.wait() == 0
    assert log.read_text() == "hello\n"


def test_a_program_of_a_cluster_gets_no_proxy_and_no_setting_of_another_store() -> None:
    given = {"PATH": "/bin", "HTTPS_PROXY": "http://p:1", "no_proxy": "x", "ETCD_NAME": "other", "KUBECONFIG": "/x"}
    assert without_strange_settings(given) == {"PATH": "/bin"}


def test_the_order_to_die_comes_first_and_again_behind_what_may_fork(tmp_path: Path) -> None:
    order = ["setpriv", "--pdeathsig", "KILL", "--"]
    program = Program(["sleep", "1"], tmp_path / "log", ["nsenter", "--net=x"])
    assert (program.argv[:4], program.argv[-8:]) == (order, ["nsenter", "--net=x", *order, "sleep", "1"])


async def test_a_program_whose_owner_died_before_it_was_bound_to_it_does_not_run(tmp_path: Path) -> None:
    """Its parent is another one than the process that wrote its command line."""
    program = Program(["touch", str(tmp_path / "ran")], tmp_path / "log")
    orphan = await asyncio.create_subprocess_exec("sh", "-c", '"$@"; exit $?', "sh", *program.argv)
    assert (await orphan.wait(), (tmp_path / "ran").exists()) == (1, False)
    process = await start(program)
    assert (await process.wait(), (tmp_path / "ran").exists()) == (0, True)


async def test_ending_a_process_that_has_ended_is_nothing_special(tmp_path: Path) -> None:
    process = await start(python("", tmp_path / "log"))
    await process.wait()
    await end(process)
    assert process.returncode == 0


async def test_a_program_that_ends_is_started_again_after_a_pause(tmp_path: Path) -> None:
    clock, codes, ended = FakeClock(), list[int](), asyncio.Event()

    def note(code: int) -> None:
        codes.append(code)
        ended.set()

    keeper = ProcessSupervisor(python("raise SystemExit(3)", tmp_path / "log"), clock, note)
    running = asyncio.ensure_future(keeper.run())
    for times in (1, 2):
        async with asyncio.timeout(20):
            await ended.wait()
        ended.clear()
        await settle()
        assert (codes, keeper.restarts, keeper.pid) == ([3] * times, times, None)
        while keeper.pid is None and len(codes) == times:  # no longer: it may end, and be started again, at once
            await clock.advance(0.1)
    running.cancel()
    await asyncio.wait((running,))


async def test_a_program_that_cannot_be_started_counts_as_ended_and_its_log_says_why(tmp_path: Path) -> None:
    clock, codes = FakeClock(), list[int]()
    program = Program(["sleep", "1"], tmp_path / "log", environment={"PATH": "/no/such/folder"})
    running = asyncio.ensure_future(ProcessSupervisor(program, clock, codes.append).run())
    await settle()
    assert codes == [127]
    assert "setpriv cannot be started" in program.log.read_text()
    running.cancel()
    await asyncio.wait((running,))


async def test_a_program_whose_log_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    clock, codes = FakeClock(), list[int]()
    (tmp_path / "file").touch()
    running = asyncio.ensure_future(ProcessSupervisor(python("", tmp_path / "file" / "log"), clock, codes.append).run())
    await settle()
    await clock.advance(1.5)
    assert (codes, running.done()) == ([127, 127], False)
    running.cancel()
    await asyncio.wait((running,))


async def test_a_keeper_that_is_cancelled_ends_its_program(tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"import pathlib,signal; pathlib.Path({str(began)!r}).touch(); signal.pause()"
    keeper = ProcessSupervisor(python(code, tmp_path / "log"), FakeClock(), lambda _: None)
    running = asyncio.ensure_future(keeper.run())
    while keeper.pid is None:
        await settle()
    pid = keeper.pid
    running.cancel()
    await asyncio.wait((running,))
    assert not lives(pid)
