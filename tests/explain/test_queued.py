"""A pod that waits for quota: its first line, then what would let it in, the reader's own first."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, bound_pod, card, node, pod, quota
from scheduling.placer_env import GPU, MEM

from hami_webhook.console import SafeConsole
from hami_webhook.explain.report import Explanation
from hami_webhook.explain.tables import changes_of, show

from .contexts import explained

OWN, OTHERS = "namespace default:", "an administrator:"
NODES = [node(f"a100-{index}", *(card(f"GPU-{index}-{each}") for each in range(4))) for index in range(31)]
GATE = ("hami.io/quota",)
SAID = "Waits for quota gpu-quota: needs 2 nvidia.com/gpu, 0 free of 6; first in line"
"""What the condition says since before the limit was raised from 6."""


def holding(name: str, count: int, **meta: Any) -> JSON:
    """A pod on a node that has so many cards, of which the quotas see the number alone."""
    held = ":".join(f"GPU-0-{each},NVIDIA,100,1" for each in range(count))
    return bound_pod(name, "a100-0", f"{held}:;", **meta)


def gated(*objects: JSON, said: str = SAID, count: int = 2, **more: Any) -> Explanation:
    return explained(pod("train", gpu=count, mem=100), *objects, gates=GATE, waits_for=said, **more)


def lines(found: Explanation) -> list[str]:
    console = SafeConsole(width=250, force_terminal=False)
    with console.capture() as capture:
        show(found, console)
    return [line.rstrip() for line in capture.get().splitlines()]


def changes(found: Explanation) -> dict[str, list[str]]:
    """The sentences by the last words of their heading, in the order in which they are shown."""
    return {heading.split(", in ")[-1].split(", by ")[-1]: [*shown] for heading, shown, _ in changes_of(found)}


FULL = [holding("serve-1", 4), holding("serve-2", 4), quota("gpu-quota", gpu=8, used={GPU: 8})]


def test_the_first_line_says_what_it_waits_for_with_the_numbers_of_now() -> None:
    shown = lines(gated(*NODES, *FULL))
    assert shown[0] == "Waits for quota gpu-quota: needs 2 nvidia.com/gpu, 0 free of 8; first in line"
    assert not any("fits on none" in line for line in shown)
    assert any("Once its quotas have room it fits on a100-0 (and 30 more)" in line for line in shown)


def test_what_to_change_stands_before_the_details_each_once_and_the_readers_own_first() -> None:
    found = gated(*NODES, *FULL)
    assert changes(found) == {
        OWN: ["free 2 nvidia.com/gpu in default (held by serve-1, serve-2)"],
        OTHERS: ["raise nvidia.com/gpu of quota gpu-quota from 8 to 10"],
    }
    shown = lines(found)
    assert [*changes(found)] == [OWN, OTHERS]
    assert shown.index("This would change it, by an administrator:") < shown.index("Nodes") < shown.index("Quotas")
    assert "LEFT FOR POD" in "".join(shown)


@pytest.mark.parametrize("sees_nodes", [True, False])
def test_where_some_are_free_it_can_ask_for_these(*, sees_nodes: bool) -> None:
    found = gated(*NODES, holding("serve-1", 4), quota("gpu-quota", gpu=5, used={GPU: 4}), sees_nodes=sees_nodes)
    asked = (
        "1 card instead of 2 in container main: it fits on a100-0" if sees_nodes else "1 nvidia.com/gpu instead of 2"
    )
    assert found.title == "Waits for quota gpu-quota: needs 2 nvidia.com/gpu, 1 free of 5; first in line"
    assert changes(found)[OWN] == ["free 1 nvidia.com/gpu in default (held by serve-1)", f"ask for {asked}"]
    assert ("which nodes it fits on can't be seen" in found.notes) != sees_nodes


def test_where_no_node_has_room_either_both_are_said() -> None:
    full = [node("n", card("G", 8000)), bound_pod("busy", "n", "G,NVIDIA,7950,50:;", namespace="team-b")]
    found = gated(*full, quota("gpu-quota", gpu=0, used={GPU: 0}), count=1, said="")
    assert (
        found.title
        == "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, limited to 0; it waits until the limit is raised"
    )
    assert "Even if its quotas had room it doesn't fit on n, the only node" in found.notes
    assert changes(found)[OTHERS] == [
        "raise nvidia.com/gpu of quota gpu-quota from 0 to 1; and free 50Mi on G of n (held by team-b/busy)"
    ]


def test_nobody_is_to_free_what_a_limit_below_its_cost_would_not_give_it() -> None:
    found = gated(*NODES, holding("serve-1", 4), quota("gpu-quota", gpu=1, used={GPU: 4}), said="")
    assert changes(found) == {OTHERS: ["raise nvidia.com/gpu of quota gpu-quota from 1 to 6"]}


def test_what_is_above_a_lowered_limit_has_to_be_freed_too() -> None:
    found = gated(*NODES, *FULL[:2], quota("gpu-quota", gpu=4, used={GPU: 8}))
    assert changes(found) == {
        OWN: ["free 6 nvidia.com/gpu in default (held by serve-1, serve-2)"],
        OTHERS: ["raise nvidia.com/gpu of quota gpu-quota from 4 to 10"],
    }


def test_pods_of_other_namespaces_are_neither_named_nor_to_be_freed() -> None:
    theirs = [holding("secret-1", 4, namespace="team-b"), holding("secret-2", 4, namespace="team-b")]
    found = gated(*NODES, *theirs, quota("gpu-quota", gpu=8, used={GPU: 8}))
    assert changes(found) == {OTHERS: ["raise nvidia.com/gpu of quota gpu-quota from 8 to 10"]}
    assert "secret" not in "".join((found.title, *found.notes, *changes(found)[OTHERS]))


def test_two_quotas_and_two_keys_are_one_line() -> None:
    objects = [quota("a", gpu=1, used={GPU: 1}), quota("b", gpu=4, mem=250, used={GPU: 3, MEM: 100})]
    found = gated(*NODES, *objects, said="Waits for quota a: x; room is kept for first; 2 pods wait before it")
    assert found.title == (
        "Waits for quota a: needs 2 nvidia.com/gpu, limited to 1, and for quota b: needs 2 nvidia.com/gpu, "
        "limited to 4 and 200 nvidia.com/gpumem, limited to 250; it waits until the limit is raised"
    )
    found = gated(
        *NODES,
        quota("b", gpu=4, mem=250, used={GPU: 3, MEM: 100}),
        said="x; room is kept for first; 2 pods wait before it",
    )
    assert found.title == (
        "Waits for quota b: needs 2 nvidia.com/gpu, 1 free of 4 and 200 nvidia.com/gpumem, 150 free of 250; "
        "room is kept for first; 2 pods wait before it"
    )


def test_what_a_tenant_cannot_see_is_as_the_condition_says() -> None:
    """Its own quota has room, and the one of all teams, which it may not read, has none."""
    own = quota("gpu-quota", gpu=8, used={GPU: 0})
    said = "Waits for AcceleratorQuota all: needs 2 nvidia.com/gpu, 0 free of 60; 3 pods wait before it"
    assert gated(*NODES, own, said=said, sees_nodes=False, sees_quotas=False).title == said
    assert gated(*NODES, own, said=said).title == "Waits for its turn; 3 pods wait before it"


def test_with_room_it_waits_for_its_turn() -> None:
    found = gated(*NODES, quota("gpu-quota", gpu=8, used={GPU: 0}), said="")
    assert found.title == "Waits for its turn"
    assert changes(found)[OWN][0] == "its quotas must have room for it, in its turn"


def test_a_refused_charge_is_said_as_the_condition_says_it() -> None:
    said = "others are charged before it until its charge succeeds: forbidden"
    assert gated(*NODES, *FULL, said=said).title == said[0].upper() + said[1:]
