"""Pair scores from link types, as the device plugin computes them for `hami.io/node-nvidia-score`.

Source: docs/spec/nvidia.md#3.6.

Pure: what NVML says comes in as values. Per ordered pair of cards there is one PCIe link and at most one NVLink; the
score is their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class PcieLevel(Enum):
    """NVML's common ancestor of two cards, with its score; the name in comments is `nvidia-smi topo -m`'s."""

    SYSTEM = 10  # SYS
    NODE = 20  # NODE
    HOSTBRIDGE = 30  # PHB
    MULTIPLE = 40  # PXB
    SINGLE = 50  # PIX
    INTERNAL = 60  # dual-GPU board


MAX_NVLINKS = 18


class RemoteType(Enum):
    """What is at the other end of an enabled NVLink."""

    GPU = "gpu"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class NvLink:
    """One enabled NVLink of a card: its remote end, and that end's PCI bus id where it is a card."""

    remote: RemoteType
    bus_id: str = ""


@dataclass(frozen=True, slots=True)
class ProbedCard:
    """What NVML says of one card."""

    uuid: str
    bus_id: str
    pcie: Mapping[str, PcieLevel]
    nvlinks: Sequence[NvLink] = ()


def nvlink_count(card: ProbedCard, peer: ProbedCard) -> int:
    """The NVLinks from `card` to `peer`: direct ones, else through NVSwitch the smaller of both cards' counts."""
    direct = sum(1 for link in card.nvlinks if link.remote is RemoteType.GPU and link.bus_id == peer.bus_id)
    if direct or not card.nvlinks:
        return direct
    switched = [sum(1 for link in c.nvlinks if link.remote is RemoteType.SWITCH) for c in (card, peer)]
    return min(switched)


def nvlink_score(links: int) -> int:
    """100 for each link, 0 for none or for more than 18."""
    return 100 * links if 0 < links <= MAX_NVLINKS else 0


def pair_scores(cards: Sequence[ProbedCard]) -> tuple[dict[str, dict[str, int]], list[tuple[str, str]]]:
    """The score table, and the pairs whose two directions have different numbers of links, which score 0 both ways."""
    links = {
        (card.uuid, peer.uuid): (card.pcie.get(peer.uuid), nvlink_count(card, peer))
        for card in cards
        for peer in cards
        if card.uuid != peer.uuid
    }
    records = {pair: (level is not None) + (nvlinks > 0) for pair, (level, nvlinks) in links.items()}
    scores: dict[str, dict[str, int]] = {card.uuid: {} for card in cards}
    asymmetric = []
    for (x, y), (level, nvlinks) in links.items():
        if records[x, y] != records[y, x]:
            scores[x][y] = 0
            if x < y:
                asymmetric.append((x, y))
        else:
            scores[x][y] = (level.value if level else 0) + nvlink_score(nvlinks)
    return scores, asymmetric
