"""For the whole suite: property tests are judged by what they find, not by how busy the machine is.

They take the same examples each time, so that a failure belongs to the change that made it. ``make explore`` takes new
ones. ``tests/examples.py`` says how many.
"""

import atexit
import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from tests.examples import EXPLORES, THOROUGH, examples

if TYPE_CHECKING:
    from tests.kubernetes.real_kubernetes import RealKubernetes

# Tests use no proxy, and compare what programs print: the width is the default, and typer colours nothing.
_PRINTING = {"COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"}
for _name in [name for name in os.environ if name.lower().endswith("_proxy") or name in _PRINTING]:
    del os.environ[_name]

# Tests make Unix sockets below pytest's folder, and a socket's path has at most 107 bytes.
if len(tempfile.gettempdir()) > 16:
    tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"  # noqa: S108 - each run makes a folder of its own there

# Collected modules and tests live to the end: the garbage collector need not look for cycles among
# them all the time (a fifteenth of the suite's CPU, for 40 MB more).
gc.set_threshold(200_000, 50, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare property tests in processes that run tests; the process that only distributes tests skips this."""
    if hasattr(config, "workerinput"):
        # A worker that has told all ends at once: to take its modules apart would take more than half a second.
        atexit.register(os._exit, 0)
    elif config.getoption("numprocesses", None):
        return
    _prepare_property_tests()


def _prepare_property_tests() -> None:
    from hypothesis import HealthCheck, settings  # noqa: PLC0415 - takes a second
    from hypothesis.internal.conjecture import providers  # noqa: PLC0415

    settings.register_profile(
        "suite",
        deadline=None,
        derandomize=not EXPLORES,
        max_examples=examples(12, 100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("suite")
    if not THOROUGH:
        # Hypothesis also tries the constants of every file that is imported. Reading them takes a worker a second or
        # more, and a change anywhere would change the examples everywhere: the runs with many examples have them.
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker of a whole run begins to import the tests at a place of its own.

    pytest compiles a file of tests when it is first imported. In a fresh checkout workers that all begin at the first
    one would all compile every one of them.
    """
    config, here = session.config, Path(__file__).parent
    if hasattr(config, "workerinput") and [Path(each).resolve() for each in config.args] == [here]:
        names = sorted(each.relative_to(here.parent).with_suffix("").parts for each in here.rglob("test_*.py"))
        worker, workers = int(config.workerinput["workerid"][2:]), config.workerinput["workercount"]
        first = len(names) * worker // workers
        for name in (*names[first:], *names[:first]):
            with suppress(Exception, pytest.skip.Exception):  # Collecting it says what is wrong.
                import_module(".".join(name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers with ``--dist loadgroup``: tests of one control plane stay together."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.kubernetes.work_units import SharedControlPlanes  # noqa: PLC0415 - the quick suite has no use for it

    return SharedControlPlanes(config, log)


def pytest_collection_finish() -> None:
    """Collected tests live until the end, so exclude them from garbage collection."""
    gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker reports a test that passes once, not that it starts, is set up, is torn down and ends as well.

    The process that hands out the tests spends most of its time on such messages.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: Any) -> Generator[None, Any, Any]:
    """Of a test that passes, its keywords and its log are not sent along."""
    data = yield
    if data is not None and getattr(report, "passed", False) and "keywords" in data:
        data |= {"keywords": {}, "sections": []}
    return data


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A program's ``main`` sets up the log of its process; the next test finds it as pytest left it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session")
def clusters_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this run's real clusters, if the machine can run any."""
    from tests.kubernetes.real_kubernetes import refuse_unless_possible  # noqa: PLC0415 - the quick suite has no use for it

    folder = tmp_path_factory.mktemp("clusters")
    refuse_unless_possible(folder)
    return folder


@pytest.fixture(scope="session")
def real_kubernetes(clusters_home: Path) -> Iterator["RealKubernetes"]:
    """One real Kubernetes of two nodes for the whole run. A test leaves its nodes Ready and names its own objects."""
    from tests.kubernetes.real_kubernetes import RealKubernetes, running  # noqa: PLC0415 - as above

    asked = ("--nodes", "2", "--with", "vertical-pod-autoscaler")
    with running(RealKubernetes(f"test-{os.getpid()}", clusters_home), *asked) as up:
        yield up
