"""Metrics: one prefix, closed label values, gauges that return to zero."""

import re
import urllib.request

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from headrace.shared.telemetry import metrics

REQUIRED = {
    "requests_total", "requests_active", "slots_used", "kv_blocks_used", "kv_blocks_total", "subscriptions", "map_size",
    "ttft_seconds", "itl_seconds", "queue_age_seconds", "lease_takeovers_total", "fenced_publishes_total",
    "gap_replays_total", "publish_retry_total", "kv_get_seconds", "kv_miss_total", "kv_hit_tokens_total",
    "prompt_tokens_total", "completion_tokens_total", "batch_rows", "step_seconds", "breaker_open", "dlq_total",
    "item_failures_total",
    "nats_reconnects_total", "sse_write_timeouts_total", "http_requests_total",
}  # fmt: skip


def test_exporter_serves_every_declared_metric():
    with urllib.request.urlopen(metrics.serve(), timeout=5) as answer:
        text = answer.read().decode()

    names = set(re.findall(r"^# TYPE headrace_(\w+) ", text, re.MULTILINE))
    assert names == REQUIRED


def test_exposition_has_a_content_type():
    body, content_type = metrics.exposition()

    assert b"headrace_slots_used" in body
    assert content_type.startswith("text/plain")


def test_active_returns_to_zero_after_an_error():
    gauge = Gauge("held", "things held", registry=CollectorRegistry())

    def fail() -> None:
        with metrics.active(gauge):
            assert gauge._value.get() == 1
            raise KeyError("inside")

    with pytest.raises(KeyError):
        fail()
    assert gauge._value.get() == 0


def test_outside_text_makes_no_new_series():
    def num_series() -> int:
        return sum(len(metric.samples) for metric in REGISTRY.collect() if metric.name == "headrace_requests")

    metrics.count_request("ingress", "int", "made up")
    before = num_series()
    for n in range(200):
        metrics.count_request("ingress", "int", f"model-{n}")

    assert num_series() == before
    assert metrics.closed("int", metrics.CLASSES) == "int"
    assert metrics.closed("INT", metrics.CLASSES) == "other"


def test_counting_a_request_moves_its_own_series():
    labels = {"stage": "decode", "class": "bat", "outcome": "ok"}
    before = REGISTRY.get_sample_value("headrace_requests_total", labels) or 0

    metrics.count_request("decode", "bat", "ok")

    assert REGISTRY.get_sample_value("headrace_requests_total", labels) == before + 1


def test_cache_meter_counts_closed_reasons_and_shows_the_breaker():
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(f"headrace_{name}", labels) or 0

    meter = metrics.CacheMeter()
    before = [value("kv_miss_total", reason=reason) for reason in ("timeout", "other")]
    num_before = value("kv_get_seconds_count")

    meter.looked_up(0.25, "timeout")
    meter.looked_up(0.01, "strange")
    meter.looked_up(0.01, None)
    meter.breaker_changed(True)

    assert [value("kv_miss_total", reason=reason) for reason in ("timeout", "other")] == [n + 1 for n in before]
    assert value("kv_get_seconds_count") == num_before + 3
    assert value("breaker_open") == 1
    meter.breaker_changed(False)
    assert value("breaker_open") == 0
