"""What Volcano and its plugin write: registrations, allocations (docs/spec/volcano.md#3 and #9)."""

from __future__ import annotations

from datetime import datetime

import pytest
from devices.fit_env import NOW
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.integrations.sections import PLUGIN_MIG_GEOMETRIES, VolcanoSection
from hami_webhook.integrations.volcano.geometry import Geometries, InstancePlace
from hami_webhook.integrations.volcano.ids_annotation import AllocationEntry, decode, encode
from hami_webhook.integrations.volcano.registration import Registry, VolcanoCard, decode_cards

from .volcanoes import A40GB, CORES, MEMORY, NUMBER, T4, a40, t4, volcano_node

SEED = (
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,40960,NVIDIA-NVIDIA A100-PCIE-40GB,true,mig:"
    "GPU-b97db201-0442-8531-56d4-367e0c7d6edd,10,40960,NVIDIA-NVIDIA A100-PCIE-40GB,true,mig:"
)


def test_the_pages_registration() -> None:
    cards = decode_cards(SEED)
    assert [card.uuid[:12] for card in cards] == ["GPU-0fc3eda5", "GPU-b97db201"]
    assert {(card.slots, card.memory, card.type, card.healthy, card.mode) for card in cards} == {
        (10, 40960, A40GB, True, "mig")
    }


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("", []),
        ("GPU-a,10,16384,NVIDIA-T4,true,hami-core", []),  # no colon, no registration
        ("GPU-a,1,2,T,true,m:", [VolcanoCard("GPU-a", 1, 2, "T", True, "m")]),
        ("junk:GPU-a,1,2,T,true,m:", [VolcanoCard("GPU-a", 1, 2, "T", True, "m")]),
        ("GPU-a,1,2,T,true,m,more,fields:", [VolcanoCard("GPU-a", 1, 2, "T", True, "m")]),
        ("GPU-a,1,2,T,true,m:GPU-b,1,2,T,true:", []),  # five fields make the whole node invalid
        ("GPU-a,1,2,T,F,m:", [VolcanoCard("GPU-a", 1, 2, "T", False, "m")]),  # booleans are Go's
        ("GPU-a,x,1.5,T,true,m:", [VolcanoCard("GPU-a", 0, 0, "T", True, "m")]),
        ("GPU-a,-1,-2,T,true,m:", [VolcanoCard("GPU-a", 0, 0, "T", True, "m")]),
    ],
)
def test_registrations_are_decoded_as_volcano_does(text: str, cards: list[VolcanoCard]) -> None:
    assert decode_cards(text) == cards


@pytest.mark.parametrize(
    ("cards", "mode"),
    [
        ([a40("a"), a40("b", "hami-core")], "hami-core"),
        ([a40("a", "hami-core"), a40("b")], "mig"),
        ([a40("a", "mps")], "hami-core"),
        ([f"a,10,16384,{T4},true,mig"], "hami-core"),  # no geometry for it
        ([f"a,10,16384,{T4},true,mig", a40("b")], "mig"),
    ],
)
def test_the_last_card_tells_the_nodes_mode(cards: list[str], mode: str) -> None:
    registered = Registry(VolcanoSection()).registration(volcano_node("n", *cards))
    assert registered is not None
    assert {device.mode for device in registered.devices} == {registered.mode} == {mode}


@in_one_test(
    ("offered", "takes_part"),
    [({}, True), *(({name: value}, False) for name in (NUMBER, MEMORY, CORES) for value in (0, None, "x"))],
)
def test_a_node_takes_part_while_the_kubelet_offers_all_three(offered: dict[str, object], takes_part: bool) -> None:
    node = volcano_node("n", t4("a"), offered=offered)
    assert (Registry(VolcanoSection()).taking_part(node, NOW) is not None) is takes_part


def _written(seconds_ago: int) -> str:
    """A time as the scheduler writes it, in the local zone."""
    return datetime.fromtimestamp(NOW - seconds_ago).strftime("%Y.%m.%d %H:%M:%S")  # noqa: DTZ006


@pytest.mark.parametrize(
    ("handshake", "takes_part"),
    [
        (f"Reported {_written(500)}", True),
        (f"Requesting_{_written(0)}", True),
        (f"Requesting_{_written(60)}", True),
        (f"Requesting_{_written(61)}", False),
        ("Requesting_whenever", True),
        (f"Deleted_{_written(0)}", False),
        ("", True),
    ],
)
def test_an_old_handshake_is_read(handshake: str, takes_part: bool) -> None:
    node = volcano_node("n", t4("a"), handshake=handshake)
    assert (Registry(VolcanoSection()).taking_part(node, NOW) is not None) is takes_part


def test_a_node_is_read_once() -> None:
    registry, node = Registry(VolcanoSection()), volcano_node("n", t4("a"))
    assert registry.registration(node) is registry.registration(node)
    assert Registry(VolcanoSection()).registration(node) is not registry.registration(node)


@pytest.mark.parametrize(
    ("card_type", "kinds"),
    [
        ("NVIDIA-NVIDIA A30", [["1g.6gb"], ["2g.12gb"], ["4g.24gb"]]),
        ("NVIDIA-NVIDIA RTX A3000", [["1g.6gb"], ["2g.12gb"], ["4g.24gb"]]),  # the text A30 is in it, too
        (A40GB, [["1g.5gb"], ["1g.5gb", "2g.10gb"], ["3g.20gb"], ["7g.40gb"]]),
        ("NVIDIA-NVIDIA A100-SXM4-80GB", [["1g.10gb"], ["1g.10gb", "2g.20gb"], ["3g.40gb"], ["7g.80gb"]]),
        ("NVIDIA-nvidia a100-pcie-40gb", None),  # the case counts
        (T4, None),
    ],
)
def test_a_type_has_the_geometry_of_the_first_model_in_it(card_type: str, kinds: list[list[str]] | None) -> None:
    geometry = Geometries(PLUGIN_MIG_GEOMETRIES).of(card_type)
    found = geometry and [[kind.name for kind in group.kinds] for group in geometry.groups]
    assert found == kinds


# allocations


def test_the_pages_allocations() -> None:
    text = "GPU-b,NVIDIA,2000,50:GPU-a,NVIDIA,2000,50:;GPU-b,NVIDIA,3000,0:"
    rows = [
        [AllocationEntry("GPU-b", 2000, 50), AllocationEntry("GPU-a", 2000, 50)],
        [AllocationEntry("GPU-b", 3000, 0)],
    ]
    assert (decode(text), encode(rows)) == (rows, text)
    mig = "GPU-a[group2-0],NVIDIA,8000,0:"
    row = [[AllocationEntry("GPU-a", 8000, 0, InstancePlace("group2", 0))]]
    assert (decode(mig), encode(row)) == (row, mig)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [[]]),
        ("junk", [[]]),
        ("a,NVIDIA,1:b,NVIDIA,1,2:", [[AllocationEntry("b", 1, 2)]]),
        ("a,NVIDIA,-1,0:b,NVIDIA,1,-2:c,NVIDIA,x,0:d,NVIDIA,1,2:", [[AllocationEntry("d", 1, 2)]]),
        ("a,NVIDIA,1,2,more:", [[AllocationEntry("a", 1, 2)]]),
        ("a,NVIDIA,1,2:;;b,NVIDIA,3,4:", [[AllocationEntry("a", 1, 2)], [], [AllocationEntry("b", 3, 4)]]),
        ("a[odd],NVIDIA,1,2:", [[AllocationEntry("a", 1, 2)]]),
        ("a[my_group-12],NVIDIA,1,2:", [[AllocationEntry("a", 1, 2, InstancePlace("my_group", 12))]]),
    ],
)
def test_allocations_are_decoded_as_volcano_does(text: str, rows: list[list[AllocationEntry]]) -> None:
    assert decode(text) == rows


_PLAIN = st.text(st.characters(whitelist_categories=("Ll", "Nd"), max_codepoint=127), min_size=1, max_size=8)
_PLACES = st.none() | st.builds(InstancePlace, _PLAIN, st.integers(0, 20))
_ENTRIES = st.builds(AllocationEntry, _PLAIN, st.integers(0, 2**24), st.integers(0, 100), _PLACES)


@given(st.lists(st.lists(_ENTRIES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_what_is_written_reads_back(rows: list[list[AllocationEntry]]) -> None:
    assert decode(encode(rows)) == rows


@given(st.text(alphabet="GPUab,:;[]-0123456789x", max_size=60))
def test_any_text_is_read_without_fail(text: str) -> None:
    assert all(entry.memory >= 0 and entry.cores >= 0 for row in decode(text) for entry in row)
    assert all(card.slots >= 0 and card.memory >= 0 for card in decode_cards(text))
