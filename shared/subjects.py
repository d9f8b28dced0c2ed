"""Every subject, stream, consumer and key of the system, on one page.

Only validated ids enter a subject; the request id is always the last token, so that existence (`last`), cancel and
clean-up (`purge`) of one request are single calls.
"""

from headrace.shared.messages import Class

CLASSES: tuple[Class, ...] = ("int", "bat")

TOKQ = "TOKQ"
RTEQ = "RTEQ"
PREQ = "PREQ"
DECQ = "DECQ"
RUN = "RUN"
WORKERS = "KV_WORKERS"
IDEM = "KV_IDEM"
CONF = "KV_CONF"
DLQ = "DLQ"
ADV = "ADV"

WORK_STREAMS = (TOKQ, RTEQ, PREQ, DECQ)

OUT_CANCELS = "out.*.*.cancel"
REGISTRY_UPDATES = "reg.>"
CONTROL_SCALE = "ctl.up.scale"
CONTROL_DRAIN = "ctl.up.drain"


def tok(cls: Class, rid: str) -> str:
    """TOKQ item."""
    return f"work.tok.{cls}.{rid}"


def route(cls: Class, rid: str) -> str:
    """RTEQ item that wants a prefill worker or a direct place."""
    return f"work.route.{cls}.{rid}"


def place(cls: Class, rid: str) -> str:
    """RTEQ item that wants a decode worker."""
    return f"work.place.{cls}.{rid}"


def pre(wid: str, rid: str) -> str:
    """PREQ item of one prefill worker."""
    return f"work.pre.{wid}.{rid}"


def dec(wid: str, rid: str) -> str:
    """DECQ item of one decode worker."""
    return f"work.dec.{wid}.{rid}"


def run(ing: str, rid: str, record: str) -> str:
    """One record kind of one request's run log (`*` or `>` select several)."""
    return f"run.{ing}.{rid}.{record}"


def out(ing: str) -> str:
    """What RUN republishes for one ingress."""
    return f"out.{ing}.>"


def out_of(ing: str, rid: str) -> str:
    """What RUN republishes for one request."""
    return f"out.{ing}.{rid}.*"


def worker_key(stage: str, wid: str) -> str:
    """Registry key of one worker."""
    return f"$KV.WORKERS.{stage}.{wid}"


def dead_letter(stage: str, rid: str) -> str:
    """Dead-letter subject of one request."""
    return f"dlq.{stage}.{rid}"


def rpc(op: str) -> str:
    """Core request/reply subject answered by the tokenize queue group."""
    return f"rpc.tok.{op}"


def worker_consumer(stage: str, wid: str) -> str:
    """Durable consumer of one prefill (`pre-…`) or decode (`dec-…`) worker."""
    return f"{'pre' if stage == 'prefill' else 'dec'}-{wid}"


def rid_of(subject: str) -> str:
    """Request id of a work subject (its last token)."""
    return subject.rsplit(".", 1)[-1]


def run_parts(subject: str) -> tuple[str, str, str]:
    """Split `run|out.<ing>.<rid>.<record>` into (ing, rid, record); raises ValueError on any other subject."""
    _, ing, rid, record = subject.split(".")
    return ing, rid, record
