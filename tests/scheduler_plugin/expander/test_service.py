"""The expander over a real gRPC channel on loopback: both generations, its own failures, TLS that follows its files."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from protocol.ranking.config import RankingConfig
from protocol.runtime.tls_files import TlsFilesError, TlsParts
from scheduler_plugin.expander.choice import Judgement, Rank, judge
from scheduler_plugin.expander.failures import FailureRules, Failures
from scheduler_plugin.expander.scaleup import ScaleUp
from scheduler_plugin.expander.service import CHANNEL_OPTIONS, SERVICE, Expander, Judge, credentials, followed
from scheduler_plugin.expander.telemetry import PriceExpanderTelemetry
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.expander.certificates import make
from tests.scheduler_plugin.expander.questions import container, fields_of, groups_of, machine, option, pod, question

PODS = [pod(f"p{number}", container(cpu="500m", memory="1Gi")) for number in range(3)]


def asked(groups: str, *, legacy: bool = False) -> bytes:
    return question(
        [option(group, 2, PODS, legacy=legacy) for group in groups],
        {group: machine("m", "4", "16Gi") for group in groups},
        legacy=legacy,
    )


def by_name(scale_up: ScaleUp) -> Mapping[str, Judgement]:
    """The earlier in the alphabet, the better."""
    return {each.group: Rank(False, ord(each.group)) for each in scale_up.options}


def failing(scale_up: ScaleUp) -> Mapping[str, Judgement]:
    raise ZeroDivisionError("a mistake of ours")


@asynccontextmanager
async def serving(
    judge: Judge,
    credentials: grpc.ServerCredentials | None = None,
    telemetry: PriceExpanderTelemetry | None = None,
    clock: FakeClock | None = None,
) -> AsyncIterator[int]:
    """An expander at work on a free port of loopback."""
    expander = Expander(judge, Failures(FailureRules()), telemetry or PriceExpanderTelemetry(), clock or FakeClock())
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((expander.handler(),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def best_options(channel: grpc.aio.Channel, body: bytes) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/BestOptions")
    return await call(body)


def _channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])


@pytest.mark.parametrize("legacy", [True, False])
async def test_best_option_is_passed_on(legacy: bool) -> None:
    async with serving(by_name) as port, _channel(port) as channel:
        answer = await best_options(channel, asked("cab", legacy=legacy))
    assert groups_of(answer) == ["a"]
    assert fields_of(fields_of(answer, 1)[0], 3) == [b"rank 97 is the lowest of 3"]


async def test_internal_error_passes_all_options(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = PriceExpanderTelemetry()
    async with serving(failing, telemetry=telemetry) as port, _channel(port) as channel:
        answer = await best_options(channel, asked("cab"))
    assert groups_of(answer) == ["c", "a", "b"]
    assert [(each.getMessage(), vars(each)["offered"]) for each in caplog.records] == [
        ("internal error; returning all options", 3)
    ]
    assert "a mistake of ours" in caplog.text
    assert b'autoscale_expander_answers_total{outcome="all"} 1.0' in telemetry.page()


async def test_malformed_question_is_client_error() -> None:
    telemetry = PriceExpanderTelemetry()
    async with serving(by_name, telemetry=telemetry) as port, _channel(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await best_options(channel, b"\xff")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert b'autoscale_expander_answers_total{outcome="malformed"} 1.0' in telemetry.page()


async def test_unreadable_groups_and_failed_choices_are_told(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, clock = PriceExpanderTelemetry(), FakeClock()
    caplog.set_level(logging.INFO)
    async with serving(by_name, None, telemetry, clock) as port, _channel(port) as channel:
        await best_options(channel, asked("ab") + question([], {"c": b"\xff"}))
        await clock.advance(60)
        assert groups_of(await best_options(channel, asked("ab"))) == ["b"]
    told = [f"{vars(each).get('group', '')} {vars(each).get('reason', '')}" for each in caplog.records]
    assert any(line.startswith("c cannot decode its node") for line in told)
    assert any("a got no nodes 1 times in a row" in line for line in told)
    assert b"autoscale_expander_failed_choices_total 1.0" in telemetry.page()


def large_question(groups: int) -> bytes:
    names = [f"group-{number}" for number in range(groups)]
    nodes = {name: machine(f"m-{number % 40}", "8", "32Gi") for number, name in enumerate(names)}
    return question([option(name, 1, PODS) for name in names], nodes)


async def test_large_question_takes_linear_time() -> None:
    ranking = RankingConfig(node_prices={f"m-{number}": 1.0 + number for number in range(40)})
    least = {}
    async with serving(partial(judge, ranking, lambda: 100)) as port, _channel(port) as channel:
        for groups in (150, 3000):
            body, took = large_question(groups), []
            for _ in range(3):
                began = time.process_time()
                assert groups_of(await best_options(channel, body))
                took.append(time.process_time() - began)
            least[groups] = min(took)
    assert least[3000] < 100 * least[150]  # 20 times the groups; a quadratic answer takes 400 times as long


async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    old, old_key = make(tmp_path, "old")
    current, current_key = tmp_path / "tls.crt", tmp_path / "tls.key"
    current.write_bytes(old.read_bytes())
    current_key.write_bytes(old_key.read_bytes())
    found = followed(TlsParts(current, current_key))
    async with serving(by_name, credentials(found)) as port:
        assert groups_of(await _call(port, old)) == ["a"]
        new, new_key = make(tmp_path, "new")
        current.write_bytes(new.read_bytes())
        assert groups_of(await _call(port, old)) == ["a"]  # the key does not belong to it yet
        current_key.write_bytes(new_key.read_bytes())
        assert groups_of(await _call(port, new)) == ["a"]
        with pytest.raises(grpc.aio.AioRpcError):
            await _call(port, old)
    assert (found.reloads, found.refusals) == (1, 1)
    assert "invalid certificates; keeping the last valid ones" in caplog.text
    assert "certificates reloaded" in caplog.text


async def test_client_ca_admits_only_its_clients(tmp_path: Path) -> None:
    server, client = make(tmp_path, "server"), make(tmp_path, "client")
    found = followed(TlsParts(*server, authority=client[0]))
    async with serving(by_name, credentials(found)) as port:
        with pytest.raises(grpc.aio.AioRpcError):
            await _call(port, server[0])
        assert groups_of(await _call(port, server[0], client)) == ["a"]


def test_bad_certificate_files_are_refused(tmp_path: Path) -> None:
    certificate, _ = make(tmp_path, "one")
    _, other_key = make(tmp_path, "two")
    for key in (other_key, tmp_path / "missing"):
        with pytest.raises(TlsFilesError, match=r"one\.crt"):
            credentials(followed(TlsParts(certificate, key)))


def _credentials(trusted: Path, client: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
    certificate, key = (None, None) if client is None else (client[0].read_bytes(), client[1].read_bytes())
    return grpc.ssl_channel_credentials(trusted.read_bytes(), key, certificate)


async def _call(port: int, trusted: Path, client: tuple[Path, Path] | None = None) -> bytes:
    async with grpc.aio.secure_channel(f"localhost:{port}", _credentials(trusted, client)) as channel:
        return await best_options(channel, asked("ab"))


async def test_log_names_group_missing_in_price_table(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt key has no effect but that its group comes last."""
    caplog.set_level(logging.INFO)
    ranking = RankingConfig(node_prices={"m-0": 9000.0, "m-typo": 1.0})
    body = question(
        [option(name, 1, PODS) for name in "ab"], {"a": machine("m-0", "8", "8Gi"), "b": machine("m-1", "8", "8Gi")}
    )
    async with serving(partial(judge, ranking, lambda: 100)) as port, _channel(port) as channel:
        assert groups_of(await best_options(channel, body)) == ["a"]
    assert [vars(each).get("not_in_price_table") for each in caplog.records if each.message == "chose node groups"] == [
        ["b"]
    ]
