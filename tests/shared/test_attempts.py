from headrace.shared.attempts import History, history
from headrace.shared.packing import pack_ids
from headrace.shared.records import ChoiceChunk, LeaseRecord, TokRecord
from headrace.shared.runlog import RunLog


def log(attempt: int = 1, *, progressed: bool = False, released: bool = False) -> RunLog:
    lease = LeaseRecord(wid="decode-1", attempt=attempt, nonce=b"", released=released)
    before, after = TokRecord(choices=(ChoiceChunk(o=0, t=pack_ids([1])),)), TokRecord(choices=())
    return RunLog(lease=lease, lease_seq=5, toks=[(3, before), *([(6, after)] if progressed else [])])


def gone(_wid: str) -> bool:
    return False


def there(_wid: str) -> bool:
    return True


def test_the_first_lease_is_the_first_attempt() -> None:
    assert history(RunLog(), gone) == History(attempt=1, is_suspect=False)


def test_a_death_without_progress_counts_and_makes_suspect() -> None:
    assert history(log(1), gone) == History(attempt=2, is_suspect=True)
    assert history(log(3), gone) == History(attempt=4, is_suspect=True)


def test_progress_clears_what_happened_before() -> None:
    assert history(log(3, progressed=True), gone) == History(attempt=2, is_suspect=False)


def test_a_hand_over_is_no_death() -> None:
    assert history(log(1, released=True), gone) == History(attempt=1, is_suspect=False)
    assert history(log(2, released=True), gone) == History(attempt=2, is_suspect=False)


def test_a_holder_that_is_still_registered_has_not_died() -> None:
    assert history(log(2), there) == History(attempt=2, is_suspect=False)
