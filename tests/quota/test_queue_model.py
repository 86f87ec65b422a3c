"""The model of quota with pods that wait: they cost nothing, and nobody passes who costs the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import NAME
from hami_webhook.quota.enforcement import Enforcement

from .model import ACCIDENTS, KINDS_OF_POD, VENDORS, Accident, QuotaModel
from .objects import TEAM, account_of, pod
from .test_model import EXAMPLES, accident

SIZE = 3
"""Pods of each pod group."""
GROUPS = ("a", "b")


class QueueModel(QuotaModel):
    """Two replicas of the controller release pods: each takes itself for the leader, as after a lease was lost."""

    enforcement = Enforcement.QUEUE

    @rule(group=st.sampled_from(GROUPS), replica=st.integers(0, 1), accident=ACCIDENTS, late=st.booleans())
    def user_creates_a_member(self, group: str, replica: int, accident: Accident, late: bool) -> None:
        """Of a group, which may have its pods already, or lose one later."""
        self.names += 1
        labels = {"hami.io/pod-group": group, "hami.io/pod-group-size": str(SIZE)}
        made = pod(f"p{self.names}", gpu=1, mem=2500, labels=labels)
        self.create(made, replica, accident, dry_run=False, stored=True, late=late)

    @rule(replica=st.integers(0, 1), accident=ACCIDENTS)
    def controller_releases(self, replica: int, accident: Accident) -> None:
        process = self.replicas[replica]
        waiting = {each.uid for each in self.pods() if each.queued}  # the replica may see more of them
        before = {each.uid: each for each in process.core.caches.queued() if len(each.gates) == 1}
        members = process.core.state.by_namespace.members
        running = {group: sum(not each.queued for each in members((TEAM, group))) for group in GROUPS}
        charged, ledgers = self.charged(), self.ledgers()
        self.do(process.releaser.step, accident, replica)
        after = {pod.uid: pod for pod in self.pods()}
        if accident[2] in ("recompute", "admit"):  # somebody else charges and releases meanwhile
            return
        for was, now in zip(ledgers, self.ledgers(), strict=True):
            added = Counter(before[uid].labels.get(NAME, "") for uid in now - was if uid in before)
            for group in added.keys() & set(GROUPS):
                assert running[group] + added[group] >= SIZE, "a group is charged whole"
        for uid, released in before.items():
            if uid in waiting & after.keys() and not after[uid].queued and uid not in charged:
                self.passed_nobody(released, before, after)

    def passed_nobody(self, released: Pod, before: dict[str, Pod], after: dict[str, Pod]) -> None:
        """Who came before a pod that was released, and costs the same, is released or charged by now."""
        charged = self.charged()
        for other in before.values():
            same = (other.containers, other.annotations) == (released.containers, released.annotations)
            if (
                same
                and NAME not in other.labels
                and other.priority_class == released.priority_class
                and (other.created, other.uid) < (released.created, released.uid)
            ):
                stored = after.get(other.uid)
                assert stored is None or not stored.queued or other.uid in charged or stored.ended(self.now)

    def charged(self) -> set[str]:
        return set().union(*self.ledgers())

    def ledgers(self) -> list[set[str]]:
        return [set(account_of(item, VENDORS).ledger) for item in self.quotas()]

    @invariant()
    def gated_pods_hold_nothing(self) -> None:
        assert not any(pod.queued and (pod.node_name or "hami.io/vgpu-node" in pod.annotations) for pod in self.pods())


QueueModel.TestCase.settings = settings(
    max_examples=max(2, EXAMPLES // 8),
    stateful_step_count=50,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
)
TestQueueModel = QueueModel.TestCase


@pytest.mark.parametrize("seed", range(EXAMPLES // 4))
def test_a_long_random_walk_of_pods_that_wait(seed: int) -> None:
    dice = random.Random(seed)
    machine = QueueModel()

    def number() -> int:
        return dice.randrange(20)

    def create() -> None:
        kind, low, replica = dice.choice([*["big"] * 5, *KINDS_OF_POD]), dice.random() < 0.1, dice.randrange(2)
        machine.user_creates(kind, low, replica, accident(dice), False, dice.random() < 0.9, False)

    moves: list[tuple[int, Callable[[], None]]] = [
        (15, create),
        (10, lambda: machine.user_creates_a_member(dice.choice(GROUPS), dice.randrange(2), accident(dice), False)),
        (8, lambda: machine.controller_releases(dice.randrange(2), accident(dice))),
        (4, lambda: machine.extender_places(number(), accident(dice))),
        (2, lambda: machine.pod_is_bound(number())),
        (4, lambda: machine.kubelet_reports(number(), dice.choice(["Running", "Succeeded"]))),
        (2, lambda: machine.user_deletes(number(), dice.choice([None, 30]))),
        (1, lambda: machine.admin_changes_hard(dice.choice([8000, 20000, 30000]))),
        (5, lambda: machine.cache_catches_up(dice.randrange(2))),
        (4, lambda: machine.controller_works(accident(dice))),
        (4, lambda: machine.time_passes(dice.choice([0.3, 1, 5, 20, 50]))),
    ]
    machine.start()

    try:
        for _ in range(80):
            dice.choices([move for _, move in moves], [weight for weight, _ in moves])[0]()
            machine.covers()
            machine.gated_pods_hold_nothing()
        machine.all_comes_to_rest()

    finally:
        machine.teardown()
