"""Every Prometheus metric of headrace, declared once, and the exporter each process serves.

Label values come from closed sets only: a model name, a tenant, a path or an error text from outside never becomes a
label. Where a value arrives as free text, pass it through `closed`. Gauges of things held are zero when idle.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from headrace.shared import reports

_NAMESPACE = "headrace"
OTHER = "other"

STAGES = frozenset(reports.STAGES)
CLASSES = frozenset({"int", "bat"})
OUTCOMES = frozenset({"ok", "failed", "refused", "cancelled", "timeout", "rerouted"})
TAKEOVER_REASONS = frozenset({"death", "drain", "stall", "duplicate"})
MISS_REASONS = frozenset({"absent", "corrupt", "timeout", "error", "refused", "breaker"})

_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_FETCH_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, namespace=_NAMESPACE)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, labels, namespace=_NAMESPACE)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(name, text, labels, namespace=_NAMESPACE, buckets=buckets)


# Requests
REQUESTS_TOTAL = _counter(
    "requests_total", "Requests a stage has finished with, by outcome.", "stage", "class", "outcome"
)
REQUESTS_ACTIVE = _gauge("requests_active", "Requests a stage holds now.", "stage")
HTTP_REQUESTS_TOTAL = _counter(
    "http_requests_total", "HTTP answers, by route template and status code.", "route", "status"
)
TTFT_SECONDS = _histogram("ttft_seconds", "From acceptance to the first token sent.", _WAIT_S)
ITL_SECONDS = _histogram("itl_seconds", "Between two chunks of one stream.", _STEP_S)
PROMPT_TOKENS_TOTAL = _counter("prompt_tokens_total", "Prompt tokens of requests that began to run.")
COMPLETION_TOKENS_TOTAL = _counter("completion_tokens_total", "Generated tokens, as logged.")
SSE_WRITE_TIMEOUTS_TOTAL = _counter("sse_write_timeouts_total", "Streams closed because the client did not read.")

# Queues and run log
QUEUE_AGE_SECONDS = _histogram("queue_age_seconds", "Age of a work item when a stage fetched it.", _WAIT_S, "stage")
LEASE_TAKEOVERS_TOTAL = _counter("lease_takeovers_total", "Requests taken over from another worker.", "reason")
FENCED_PUBLISHES_TOTAL = _counter("fenced_publishes_total", "Writes refused because another worker holds the lease.")
GAP_REPLAYS_TOTAL = _counter("gap_replays_total", "Run logs read back because a live record was missed.")
PUBLISH_RETRY_TOTAL = _counter(
    "publish_retry_total", "Repeated publishes, by the server's error number or `timeout`.", "err_code"
)
ITEM_FAILURES_TOTAL = _counter("item_failures_total", "Deliveries whose handler broke unexpectedly.", "stage")
DLQ_TOTAL = _counter("dlq_total", "Work items given up to the dead-letter stream.", "stage")
NATS_RECONNECTS_TOTAL = _counter("nats_reconnects_total", "Reconnects to the queue server.")
SUBSCRIPTIONS = _gauge("subscriptions", "Live per-request subscriptions.")
MAP_SIZE = _gauge("map_size", "Entries of a per-request map of this process, by the map's name in the code.", "name")

# Engine
SLOTS_USED = _gauge("slots_used", "Places of this worker in use.")
BATCH_ROWS = _histogram("batch_rows", "Sequences computed together in one step.", _ROWS)
STEP_SECONDS = _histogram("step_seconds", "Time of one engine step.", _STEP_S)
KV_BLOCKS_USED = _gauge("kv_blocks_used", "KV blocks held by sequences.")
KV_BLOCKS_TOTAL = _gauge("kv_blocks_total", "KV blocks there are.")

# Shared KV cache
KV_HIT_TOKENS_TOTAL = _counter("kv_hit_tokens_total", "Prompt tokens whose KV was found rather than computed.")
KV_GET_SECONDS = _histogram("kv_get_seconds", "Time of one look-up of a prompt's blocks.", _FETCH_S)
KV_MISS_TOTAL = _counter("kv_miss_total", "Look-ups that ended before the last block, by reason.", "reason")
BREAKER_OPEN = _gauge("breaker_open", "1 while the block store is left alone after a failure.")


def closed(value: str, allowed: frozenset[str]) -> str:
    """`value` if it belongs to the set, else `other`: text from outside cannot make new series."""
    return value if value in allowed else OTHER


def count_request(stage: str, cls: str, outcome: str) -> None:
    """Count one request as finished by `stage`."""
    values = (closed(stage, STAGES), closed(cls, CLASSES), closed(outcome, OUTCOMES))
    REQUESTS_TOTAL.labels(*values).inc()


@contextmanager
def active(gauge: Gauge) -> Iterator[None]:
    """Hold one unit of a gauge that must return to zero, whatever happens inside."""
    gauge.inc()
    try:
        yield
    finally:
        gauge.dec()


def serve(host: str = "127.0.0.1", port: int = 0) -> str:
    """Start this process's exporter on a daemon thread and return its URL; port 0 takes a free one. Raises OSError."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it unannotated
    server, _thread = prometheus_client.start_http_server(port, host)
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{server.server_port}/metrics"


def exposition() -> tuple[bytes, str]:
    """All metrics of this process in text form, with its content type."""
    return prometheus_client.generate_latest(), prometheus_client.CONTENT_TYPE_LATEST


class CacheMeter:
    """Feeds the cache metrics; handed to the block store, which knows no metrics."""

    def looked_up(self, seconds: float, cut: str | None) -> None:
        """One look-up: its time, and the reason why it ended early, if it did."""
        KV_GET_SECONDS.observe(seconds)
        if cut is not None:
            KV_MISS_TOTAL.labels(closed(cut, MISS_REASONS)).inc()

    def breaker_changed(self, is_open: bool) -> None:
        """The breaker opened or closed."""
        BREAKER_OPEN.set(is_open)
