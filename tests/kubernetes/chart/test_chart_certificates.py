"""The rendered chart with certificates from cert-manager."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.chart.test_chart import OF_RUNNERS, objects, workload

pytestmark = pytest.mark.kubernetes


def test_cert_manager_fills_the_same_secrets() -> None:
    by_cert_manager = {"certificates": {"provider": "cert-manager"}}
    filled = {each["spec"]["secretName"] for each in objects(by_cert_manager) if each["kind"] == "Certificate"}
    assert filled == {each["metadata"]["name"] for each in objects({}) if each["kind"] == "Secret"} - OF_RUNNERS
    assert {each["metadata"]["name"] for each in objects(by_cert_manager) if each["kind"] == "Secret"} == OF_RUNNERS


def test_scheduler_trusts_collected_cert_manager_cas() -> None:
    def sources(values: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
        volumes = workload(values, "autoscaling-scheduler")["spec"]["volumes"]
        parts = {each["name"]: each["projected"]["sources"] for each in volumes if "projected" in each}
        parts |= {each["name"]: [{"secret": each["secret"]}] for each in volumes if "secret" in each}
        return {
            name: [(kind, item["key"]) for part in found for kind, each in part.items() for item in each["items"]]
            for name, found in parts.items()
        }

    shown = [("secret", "tls.crt"), ("secret", "tls.key")]
    by_cert_manager = sources({"certificates": {"provider": "cert-manager"}})
    names = ("certificates", "client-certificate")
    assert by_cert_manager == {name: [*shown, ("configMap", "ca.crt")] for name in names}
    assert sources({}) == {name: [*shown, ("secret", "ca.crt")] for name in names}


def test_ca_keys_outlive_their_certificates() -> None:
    values = {"certificates": {"provider": "cert-manager"}, "expander": {"enabled": True}}
    found = [each["spec"] for each in objects(values) if each["kind"] == "Certificate"]
    policies = {each["secretName"]: each["privateKey"]["rotationPolicy"] for each in found if each.get("isCA")}
    assert policies == {"autoscaling-certificates": "Never", "autoscaling-expander-ca": "Never"}
