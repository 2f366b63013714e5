"""A real postgres with the guest's sleep.pl, and files instead of a control group."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.neonvm.network.sockets import connected, free_ports, tcp_socket
from deploy.neonvm.qemu.daemon import ask
from scripts.database_client import DatabaseSession
from vm_image import recipe

PROGRAMS: Final = Path("/usr/lib/postgresql/15/bin")
DEADLINE: Final = 20.0
_FIFOS: Final = ("ask", "quiet", "sleep", "freeze", "spare")
_IDLE: Final = re.compile(rb"postgres: .*\(\d+\) idle\0*")
_SETTINGS: Final = """
fsync = off
shared_buffers = 16MB
wal_level = logical
max_prepared_transactions = 2
autovacuum_naptime = 1s
archive_mode = on
archive_command = '/bin/true'
"""


def reason_to_skip() -> str:
    """The reason why no database can run here; empty if one can."""
    if shutil.which("perl") is None or not (PROGRAMS / "postgres").exists():
        return "needs perl and postgresql-15"
    # Postgres refuses to run as root.
    return "needs the user postgres" if os.getuid() == 0 and not _is_user("postgres") else ""


def _is_user(name: str) -> bool:
    return any(user.pw_name == name for user in pwd.getpwall())


@dataclass
class RealDatabase:
    """The database, what sleep.pl reads and writes, and the processes of both."""

    folder: Path
    port: int
    thaw_port: int
    _running: dict[str, Process] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        """The database's folder."""
        return self.folder / "data"

    async def start(self) -> None:
        """Starts the server; returns when it serves."""
        await self._spawn("asker", "sleep", "infinity")
        await self._spawn("server", *_as_postgres(), str(PROGRAMS / "postgres"), "-D", str(self.data))
        await until(self.serves)

    async def serves(self) -> bool:
        """Return True if the server accepts connections."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()[7].startswith("ready")
        except (OSError, IndexError):
            return False

    async def watch(self, **settings: object) -> None:
        """Starts the psql that stays and sleep.pl, with the settings of that script (``AUTOSCALE_…``)."""
        await self.ask_again()
        given = {f"AUTOSCALE_{name.upper()}": str(value) for name, value in settings.items()}
        paths = {"RUN": self.folder, "GROUP": self.folder, "DATA": self.data}
        env = {f"AUTOSCALE_{name}": str(path) for name, path in paths.items()}
        env |= {
            "AUTOSCALE_QUERY": str(recipe.HERE / "rootfs/quiet.sql"),
            "AUTOSCALE_CLOCK": "/nowhere",
            "AUTOSCALE_AT": f"127.0.0.1:{self.thaw_port}",
        }
        env |= given
        await self._spawn("sleep", "perl", str(recipe.HERE / "rootfs/sleep.pl"), env=env)

    async def ask_again(self) -> None:
        """Starts the psql that answers questions."""
        questions = os.open(self.folder / "autoscale.ask", os.O_RDWR)
        try:
            await self._spawn("psql", *self._psql(), "-v", "ON_ERROR_STOP=1", stdin=questions)
        finally:
            os.close(questions)

    async def query(self, text: str) -> str:
        """The result of a query in a separate session."""
        process = await asyncio.create_subprocess_exec(*self._psql(), "-c", text, stdout=PIPE, stderr=PIPE)
        answer, refusal = await process.communicate()
        assert process.returncode == 0, refusal.decode()
        return answer.decode().strip()

    @asynccontextmanager
    async def session(self, *queries: str) -> AsyncIterator[DatabaseSession]:
        """A session over TCP that has done these queries."""
        session = await DatabaseSession.open("127.0.0.1", self.port, "")
        try:
            for query in queries:
                session.begin(query)
                await session.finished()
            yield session
        finally:
            session.close()
            await asyncio.sleep(0)  # the loop closes it in its next round

    async def thaw(self, time: str = "", word: str = "", path: str = "/thaw") -> tuple[int, str]:
        """Status and text of sleep.pl's response to the order to thaw the database."""

        async def dial() -> socket.socket:
            return await connected(tcp_socket(), "127.0.0.1", self.thaw_port)

        answer = await ask(dial, "PUT", f"{path}{word}", time, DEADLINE)
        return answer.status, answer.text

    async def order(self, kind: str, text: str = "") -> tuple[int, str]:
        """Status and text with which sleep.pl answers an order."""
        self.write("cgroup.procs", "".join(f"{number}\n" for number in self.processes()))
        answers = os.open(self.folder / f"autoscale.{kind}", os.O_RDWR | os.O_NONBLOCK)
        try:
            # Open until the answer is here: what nobody has open is empty.
            with (self.folder / "autoscale.sleep").open("r+b", buffering=0) as orders:
                asker = self.asker
                orders.write(f"{kind} {asker} {text}\n".encode())
                status, answer = (await _line(answers)).removeprefix(f"{asker} ").split(" ", 1)
            return int(status), answer
        finally:
            os.close(answers)

    def order_for(self, asker: Process, kind: str) -> None:
        """Pass on the order of a process, as daemon.sh does, without waiting for the answer."""
        self.write("cgroup.procs", "".join(f"{number}\n" for number in self.processes()))
        orders = os.open(self.folder / "autoscale.sleep", os.O_WRONLY)
        try:
            os.write(orders, f"{kind} {asker.pid} \n".encode())
        finally:
            os.close(orders)

    def write(self, name: str, text: str) -> None:
        """Writes a file that the kernel would."""
        (self.folder / name).write_text(text)

    @property
    def is_frozen(self) -> bool:
        """Return True if sleep.pl has the control group frozen."""
        return (self.folder / "cgroup.freeze").read_text() == "1"

    def processes(self) -> list[int]:
        """The server and its children."""
        server = self._running["server"].pid
        return [server, *(number for number in _numbers() if _parent(number) == server)]

    def backends(self) -> list[int]:
        """The processes that serve a client over TCP and say that they are idle."""
        return [number for number in self.processes() if _IDLE.fullmatch(_title(number))]

    @property
    def server(self) -> int:
        """The server's process."""
        return self._running["server"].pid

    @property
    def asker(self) -> int:
        """A process that imitates the one that serves a request in a guest; sleep.pl may end it."""
        return self._running["asker"].pid

    @property
    def page(self) -> dict[str, float]:
        """The samples for node_exporter; empty if there is no page."""
        try:
            text = (self.folder / "autoscale.metrics/database.prom").read_text()
        except FileNotFoundError:
            return {}
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("autoscale_database_"): float(value) for name, value in samples}

    @property
    def reasons(self) -> set[str]:
        """The reasons on the page that forbid sleep."""
        return set(re.findall(r'reason="(\w+)"', " ".join(self.page)))

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Within the context, ``server``, ``psql`` or ``sleep`` is stopped."""
        process = self._running[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    async def end(self, name: str) -> None:
        """Ends ``server``, ``psql`` or ``sleep``."""
        process = self._running.pop(name)
        # Postgres lets its children go at SIGQUIT, and under setpriv it is that very process.
        # A client whose server ended first has ended by itself.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGQUIT if name == "server" else signal.SIGKILL)
        await process.wait()

    async def end_all(self) -> None:
        """Ends all that runs."""
        for name in ("sleep", "psql", "server", "asker"):
            if name in self._running:
                await self.end(name)

    def _psql(self) -> list[str]:
        return [str(PROGRAMS / "psql"), "-XAtq", "-U", "postgres", "-h", str(self.folder), "-p", str(self.port)]

    async def _spawn(self, name: str, *command: str, stdin: int = DEVNULL, env: dict[str, str] | None = None) -> None:
        self._running[name] = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=DEVNULL, stderr=DEVNULL, env={**os.environ, **(env or {})}
        )


@contextmanager
def database_template() -> Iterator[Path]:
    """The folder of a new database, for copies."""
    with _folder() as folder:
        initdb = (str(PROGRAMS / "initdb"), "--no-sync", "-A", "trust", "-U", "postgres")
        subprocess.run([*_as_postgres(), *initdb, str(folder / "data")], check=True, capture_output=True)
        yield folder / "data"


@asynccontextmanager
async def real_database(template: Path, *, standby: bool = False) -> AsyncIterator[RealDatabase]:
    """A serving database, with no other program yet."""
    with _folder() as folder:
        port, thaw_port = free_ports(2)
        await asyncio.to_thread(_copy, template, folder / "data")
        where = f"port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{folder}'\n"
        with (folder / "data/postgresql.conf").open("a") as file:
            file.write(where + _SETTINGS)
        if standby:
            (folder / "data/standby.signal").touch()
        for name in _FIFOS:
            os.mkfifo(folder / f"autoscale.{name}")
        (folder / "autoscale.metrics").mkdir()
        (folder / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        (folder / "cgroup.freeze").write_text("")
        database = RealDatabase(folder, port, thaw_port)
        try:
            await database.start()
            yield database
        finally:
            await database.end_all()


def _copy(template: Path, data: Path) -> None:
    subprocess.run(["cp", "--archive", template, data], check=True)  # with its owner


@contextmanager
def _folder() -> Iterator[Path]:
    # Not below pytest's folder, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="autoscale-", dir="/tmp"))
    try:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        yield folder
    finally:
        shutil.rmtree(folder)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns once that holds."""
    async with asyncio.timeout(DEADLINE):
        while not await holds():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)


def _as_postgres() -> list[str]:
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []


async def _line(answers: int) -> str:
    text = b""
    async with asyncio.timeout(DEADLINE):
        while not text.endswith(b"\n"):
            try:
                text += os.read(answers, 4096)
            except BlockingIOError:
                await asyncio.sleep(0.01)
    return text.decode().strip()


def _numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _parent(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rsplit(") ", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0  # it has just ended


def _title(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""
