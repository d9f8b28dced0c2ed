"""How often workers have died on a request, told from its run log alone. Pure.

A request counts as the possible cause of a death while it adds nothing: every new token clears it. So a request that
kills its worker at once is found after a few deaths, and the innocent ones beside it are not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.shared.runlog import RunLog


@dataclass(frozen=True, slots=True)
class History:
    """What the next holder of a request should know."""

    attempt: int
    """Number of the next lease: 1 + deaths since the last new token."""
    is_suspect: bool
    """The last holder died before it added anything: the request is better run alone."""


def history(run: RunLog, is_registered: Callable[[str], bool]) -> History:
    """Judge a log. A lease that was released, or whose holder is still there, followed no death."""
    lease = run.lease
    if lease is None:
        return History(attempt=1, is_suspect=False)
    if lease.released or is_registered(lease.wid):
        return History(attempt=1 if run.has_progressed else lease.attempt, is_suspect=False)
    if run.has_progressed:
        return History(attempt=2, is_suspect=False)
    return History(attempt=lease.attempt + 1, is_suspect=True)
