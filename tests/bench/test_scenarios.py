"""Which server is visited when, and what is measured on it."""

from statistics import mean

from scenarios import OURS, SCENARIOS, SCRIPTED, UNCACHED, UP_ARGS, visits

PEERS = ("vllm", "llamacpp")


def test_every_load_is_measured_once_on_every_server_it_is_meant_for():
    seen = [(visit.server, name, load.name) for visit in visits(SCENARIOS, PEERS, 1) for name, load in visit.loads]
    wanted = {
        (server, name, load.name)
        for name, scenario in SCENARIOS.items()
        for server in (*scenario.servers, *(PEERS if scenario.has_peers else ()))
        for load in scenario.measurements
    }

    assert len(seen) == len(set(seen))
    assert set(seen) == wanted


def test_servers_without_a_load_are_not_started():
    assert [visit.server for visit in visits(["plumbing"], PEERS, 1)] == [SCRIPTED]
    assert [visit.server for visit in visits(["throughput", "prefix"], PEERS, 1)] == [OURS, *PEERS]


def test_two_forms_of_ours_take_turns_in_going_first():
    order = [[visit.server for visit in visits(["reuse"], PEERS, run)] for run in (1, 2)]

    assert order == [[OURS, UNCACHED], [UNCACHED, OURS]]


def test_ours_runs_with_its_defaults():
    assert UP_ARGS[OURS] == ()


def test_the_even_load_is_as_much_work_as_the_mixed_one():
    even, mixed = (load.shape for load in SCENARIOS["mixed"].measurements)

    assert (even.clients, even.num_requests) == (mixed.clients, mixed.num_requests)
    assert (even.words, even.out) == (mean(mixed.words), mean(mixed.out))
