"""The breaker: silent while open, one probe per pause, closed by an answer."""

import threading

from headrace.shared.cache.breaker import Breaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_open_refuses_until_one_probe_is_due():
    clock = Clock()
    breaker = Breaker(5.0, clock=clock)
    assert breaker.admit()

    breaker.fail()
    clock.now += 4.9
    assert not breaker.is_willing()
    assert not breaker.admit()

    clock.now += 0.2
    assert breaker.is_willing()
    assert [breaker.admit() for _ in range(3)] == [True, False, False]


def test_lost_probe_does_not_block_the_next_one():
    clock = Clock()
    breaker = Breaker(5.0, clock=clock)
    breaker.fail()

    clock.now += 5
    assert breaker.admit()
    clock.now += 5
    assert breaker.admit()


def test_answer_closes_and_changes_are_told_once():
    changes = []
    breaker = Breaker(5.0, clock=Clock(), on_change=changes.append)

    breaker.succeed()
    breaker.fail()
    breaker.fail()
    breaker.succeed()

    assert changes == [True, False]
    assert breaker.admit()


def test_only_one_thread_gets_the_probe():
    clock = Clock()
    breaker = Breaker(5.0, clock=clock)
    breaker.fail()
    clock.now += 6
    admitted = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait(10)
        admitted.append(breaker.admit())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert sorted(admitted) == [False] * 7 + [True]
