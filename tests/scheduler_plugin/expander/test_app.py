"""The whole program: addresses, probes, settings that change while it runs, signals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from protocol.runtime.credentials import CredentialsError
from protocol.runtime.followed_file import FileRefusedError, FollowedFile
from protocol.units import Seconds
from scheduler_plugin.expander import service, texts
from scheduler_plugin.expander.__main__ import main
from scheduler_plugin.expander.app import serving
from scheduler_plugin.expander.service import MOST_AT_ONCE, SERVICE
from scheduler_plugin.expander.settings import ExpanderSettings, parse_settings
from scheduler_plugin.expander.telemetry import PriceExpanderTelemetry
from tests.fake_clock import FakeClock
from tests.plain_http import plain_client
from tests.scheduler_plugin.expander.certificates import make
from tests.scheduler_plugin.expander.questions import container, groups_of, machine, option, pod, question

LOOPBACK = "{listen: '127.0.0.1:0', metricsListen: '127.0.0.1:0', clusterNodes: 4}\n"
PODS = [pod("p", container(cpu="1500m", memory="1Gi"))]
QUESTION = question(
    [option("small", 1, PODS), option("large", 1, PODS)],
    {"small": machine("m-2", "2", "8Gi"), "large": machine("m-32", "32", "128Gi")},
)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(LOOPBACK)
    return file


def _write(file: Path, content: str) -> None:
    file.write_text(content)


def _read(file: Path) -> bytes:
    return file.read_bytes()


async def test_question_ranks_by_price_and_fit(settings: Path) -> None:
    async with serving(settings, FakeClock(), {}) as at:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/BestOptions")
            assert groups_of(await call(QUESTION)) == ["small"]
        async with plain_client(base_url=f"http://127.0.0.1:{at.metrics_port}") as web:
            assert (await web.get("/healthz")).text == "ok\n"
            assert (await web.get("/readyz?verbose")).status_code == 200
            assert (await web.get("/nothing")).status_code == 404
            assert (await web.post("/metrics")).status_code == 405
            page = (await web.get("/metrics")).text
    assert 'autoscale_expander_answers_total{outcome="chosen"} 1.0' in page
    assert "autoscale_expander_cluster_nodes 4.0" in page


@pytest.mark.parametrize("silent", [1, MOST_AT_ONCE, 3 * MOST_AT_ONCE])
async def test_calls_without_request_delay_no_other(settings: Path, silent: int) -> None:
    """Anyone may call; four calls that sent nothing kept the autoscaler's out forever."""
    method = f"/{SERVICE}/BestOptions"
    async with (
        serving(settings, FakeClock(), {}) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.port}") as stranger,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.port}", [("grpc.use_local_subchannel_pool", 1)]) as autoscaler,
    ):
        open_call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = stranger.stream_unary(method)
        calls = [open_call() for _ in range(silent)]
        # Each that arrives displaces another, so all have arrived once only as many are left as one address may have.
        pending = {asyncio.create_task(call.code()) for call in calls}
        while len(pending) > MOST_AT_ONCE // 2:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = autoscaler.unary_unary(method)
        for _ in range(3):
            assert groups_of(await ask(QUESTION, timeout=5.0)) == ["small"]
        for call in calls:
            call.cancel()
        await asyncio.gather(*pending)


async def test_call_without_request_ends(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REQUEST_SECONDS", 0.05)
    async with (
        serving(settings, FakeClock(), {}) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.port}") as stranger,
    ):
        open_call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = stranger.stream_unary(f"/{SERVICE}/BestOptions")
        call = open_call()
        assert await call.details() == texts.NO_REQUEST
        ended = open_call()
        await ended.done_writing()
        assert groups_of(await ended) == []


async def test_whoever_speaks_no_http_is_hung_up_on(settings: Path) -> None:
    async with serving(settings, FakeClock(), {}) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.metrics_port)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_an_address_in_use_stops_the_start(settings: Path) -> None:
    async with serving(settings, FakeClock(), {}) as at:
        _write(settings, f"{{listen: '127.0.0.1:{at.port}', metricsListen: '127.0.0.1:0'}}")
        with pytest.raises(RuntimeError):
            async with serving(settings, FakeClock(), {}):
                pass


async def test_certificates_in_the_settings_are_used(settings: Path, tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "server")
    _write(settings, LOOPBACK[:-2] + f", tls: {{certificate: {certificate}, key: {key}}}}}\n")
    credentials = grpc.ssl_channel_credentials(_read(certificate))
    async with (
        serving(settings, FakeClock(), {}) as at,
        grpc.aio.secure_channel(f"localhost:{at.port}", credentials) as channel,
    ):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/BestOptions")
        assert groups_of(await call(QUESTION)) == ["small"]


async def test_in_a_cluster_the_service_account_is_needed(settings: Path) -> None:
    with pytest.raises(CredentialsError):
        async with serving(settings, FakeClock(), {"KUBERNETES_SERVICE_HOST": "::1"}):
            pass


async def test_it_runs_until_it_is_told_to_stop(settings: Path) -> None:
    async with serving(settings, FakeClock(), {}):
        pass


class _Story(FakeClock):
    """At each pause the file's next content is written; after the last one the story ends."""

    def __init__(self, file: Path, contents: list[str | None]) -> None:
        super().__init__()
        self.file, self.contents = file, contents

    async def sleep(self, duration: Seconds) -> None:
        if not self.contents:
            raise asyncio.CancelledError
        content = self.contents.pop(0)
        if content is None:
            self.file.unlink()
        else:
            self.file.write_text(content)


async def test_new_content_is_applied_or_refused_once(settings: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken: list[ExpanderSettings] = []
    telemetry, file = PriceExpanderTelemetry(), FollowedFile(settings, parse_settings)
    file.load()
    story = _Story(settings, [LOOPBACK, "clusterNodes: 9", "clusterNodes: x", "clusterNodes: x", None, "{}"])
    with pytest.raises(asyncio.CancelledError):
        await file.follow(taken.append, telemetry, story)
    assert [each.cluster_nodes for each in taken] == [9, None]
    page = telemetry.page()
    assert b'settings_reloads_total{outcome="accepted"} 2.0' in page
    assert b'settings_reloads_total{outcome="refused"} 2.0' in page
    reasons = [vars(each)["reason"] for each in caplog.records if each.levelname == "ERROR"]
    assert [each.rpartition("config.yaml: ")[2] for each in reasons] == [
        "clusterNodes: expected int | null, got str",
        "No such file or directory",
    ]


async def test_reloaded_prices_change_answers(settings: Path) -> None:
    dear_dwarf = LOOPBACK[:-2] + ", ranking: {nodePrices: {m-2: 99, m-32: 1}}, failures: {grace: 9}}\n"
    clock = _Ticking()
    async with serving(settings, clock, {}) as at, grpc.aio.insecure_channel(f"127.0.0.1:{at.port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/BestOptions")
        assert groups_of(await call(QUESTION)) == ["small"]
        _write(settings, dear_dwarf)
        clock.go.set()
        await clock.again.wait()
        assert groups_of(await call(QUESTION)) == ["large"]


class _Ticking(FakeClock):
    """A sleep that ends once, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.again = asyncio.Event(), asyncio.Event()

    async def sleep(self, duration: Seconds) -> None:
        if self.go.is_set():
            self.again.set()
            await asyncio.Event().wait()
        await self.go.wait()


def test_settings_that_cannot_be_used_stop_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(FileRefusedError, match=r"missing\.yaml: No such file"):
        FollowedFile(missing, parse_settings).load()
    assert main(["--config", str(missing)]) == 2
    assert "autoscale-expander: cannot start: " in capsys.readouterr().err


def test_help_shows_autoscaler_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--grpc-expander-url" in capsys.readouterr().out


def test_it_ends_cleanly_on_sigterm(settings: Path) -> None:
    command = [sys.executable, "-m", "scheduler_plugin.expander", "--config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any('"msg":"serving"' in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
