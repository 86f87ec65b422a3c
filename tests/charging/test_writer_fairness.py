"""How writers of a namespace's quotas take turns: which versions count as others'."""

from __future__ import annotations

from builders import quota

from hami_webhook.charging.writer_fairness import WriterFairness
from hami_webhook.kube.objects import ResourceQuota


def version(number: int) -> ResourceQuota:
    made = quota()
    made["metadata"]["resourceVersion"] = str(number)
    return ResourceQuota.from_object(made)


def test_a_watch_that_shows_our_own_last_write_again_shows_no_write_of_others() -> None:
    writers = WriterFairness()
    writers.wrote(version(5), 0.1)
    writers.end()
    for number in (4, 5):
        writers.note(version(number), 1.0)
        assert not writers.others
        assert not writers.changed.is_set()
    writers.note(version(6), 2.0)
    assert writers.others == {6}
    assert writers.heard == 2.0


def test_attack_of_a_flood_of_versions_64_are_counted() -> None:
    writers = WriterFairness()
    for number in range(1000):
        writers.note(version(number + 1), 1.0)
    assert len(writers.others) == 64
