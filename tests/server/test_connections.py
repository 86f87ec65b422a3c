"""Which connections are closed for the sake of others, against a model that is too simple to be wrong."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.server.connections import Connections, connection_limit


class Client:
    """A connection that notes when it was closed."""

    def __init__(self, source: str, name: int = 0) -> None:
        self.source = source
        self.name = name
        self.held = 0
        self.working = False
        self.open = True

    def abort(self) -> None:
        assert self.open
        assert not self.working
        self.open = False


def filled(most: int, *sources: str, held: int = 100) -> tuple[Connections, list[Client]]:
    connections = Connections(most, held)
    clients = [Client(source, number) for number, source in enumerate(sources)]
    for client in clients:
        assert connections.add(client)
    return connections, clients


@pytest.mark.parametrize(
    ("sources", "used", "working", "closed"),
    [
        ("aaa", [], [], 0),
        ("aaa", [0], [], 1),
        ("aaa", [0, 1, 2, 0], [], 1),
        ("aaa", [], [0, 1], 2),
        ("baa", [], [], 1),
        ("baa", [1, 2], [], 1),
        ("baa", [], [1, 2], 0),
        ("aaa", [], [0, 1, 2], None),
    ],
)
def test_who_gives_way_to_a_new_connection(
    sources: str, used: list[int], working: list[int], closed: int | None
) -> None:
    connections, clients = filled(3, *sources)
    for number in used:
        connections.used(clients[number])
    for number in working:
        clients[number].working = True
    assert connections.add(Client("z")) is (closed is not None)
    assert [client.name for client in clients if not client.open] == ([] if closed is None else [closed])
    assert (len(connections), connections.evicted) == (3, closed is not None)


@pytest.mark.parametrize(
    ("sources", "held", "closed"),
    [
        ("ab", [(0, 60), (1, 50)], [0]),
        ("ab", [(0, 40), (1, 70)], [1]),
        ("abb", [(0, 50), (1, 30), (2, 30)], [1]),
        ("abb", [(0, 50), (2, 30), (1, 30)], [2]),
        ("aab", [(0, 45), (1, 45), (0, -45), (2, 10), (0, 20), (2, 30)], [1]),
        ("a", [(0, 101)], [0]),
        ("aaa", [(0, 40), (1, 40), (2, 100)], [0, 1]),
    ],
)
def test_who_gives_way_when_too_much_is_held(sources: str, held: list[tuple[int, int]], closed: list[int]) -> None:
    connections, clients = filled(9, *sources)
    for number, change in held:
        connections.hold(clients[number], change)
    assert [client.name for client in clients if not client.open] == closed


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "use", "work", "rest", "end", "hold"]), st.integers(0, 50), st.integers(0, 60)
    )
)


@given(steps=STEPS)
def test_neither_bound_is_passed_and_what_works_is_never_closed(steps: list[tuple[str, int, int]]) -> None:
    most, most_held = 5, 100
    connections = Connections(most, most_held)
    clients: list[Client] = []
    for step, number, size in steps:
        alive = [client for client in clients if client.open]
        if step == "open":
            client = Client("abc"[number % 3], number)
            everyone_works = len(alive) == most and all(each.working for each in alive)
            assert connections.add(client) is not everyone_works
            if not everyone_works:
                clients.append(client)
        elif alive:
            client = alive[number % len(alive)]
            if step == "use":
                connections.used(client)
            elif step in ("work", "rest"):
                connections.hold(client, -client.held)  # its body is complete, or was
                client.working = step == "work"
            elif step == "end":
                connections.discard(client)
                client.open = False
            elif not client.working:
                connections.hold(client, size)
        alive = [client for client in clients if client.open]
        assert len(connections) == len(alive) <= most
        assert connections._held == sum(client.held for client in alive) <= most_held
        assert {*connections._holding} == {client for client in alive if client.held}
    for client in clients:
        connections.discard(client)
    assert (len(connections), connections._held, connections._by_source, connections._holding) == (0, 0, {}, {})


def test_what_was_closed_may_go_on_to_send_and_end_without_effect() -> None:
    connections, (client, other) = filled(9, "a", "b")
    connections.hold(client, 200)
    assert not client.open
    for change in (10, -210):
        connections.hold(client, change)
    connections.used(client)
    connections.discard(client)
    assert (len(connections), client.held, other.open) == (1, 0, True)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "limit"),
    [
        (1024, 1 << 20, 4864, 4096),
        (1024, resource.RLIM_INFINITY, 4864, 4096),
        (1 << 20, 1 << 20, None, 4096),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 4096),
        (1024, 4096, 4096, 3328),
        (1024, 1024, None, 512),
        (256, 256, None, 128),
    ],
)
def test_the_limit_follows_the_files_that_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, limit: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert connection_limit() == limit
    assert asked == ([] if raised is None else [(raised, hard)])
