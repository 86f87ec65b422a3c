"""What the dev cluster's nodes register is read as the cards that were asked for, and bad wishes get a sentence."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from tables import in_one_test

from hack.devcluster.boards import MODELS, NoSuchBoard, find
from hack.devcluster.nodes import Refused, add, remove
from hami_webhook.devices.model import Inventory, RegistrationError
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node

from .fit_env import CHART

BOARDS = [(vendor, model) for vendor, models in MODELS.items() for model in models]


def inventory(vendor: Vendor, node: Node) -> Inventory | None:
    try:
        return vendor.inventory(node)
    except RegistrationError:
        return None


@in_one_test(("vendor", "model"), BOARDS)
def test_a_node_registers_as_many_cards_of_the_model_as_it_has(vendor: str, model: str) -> None:
    board = find(vendor, model, None)
    offer = board.offer("n")
    amounts = {name: str(amount) for name, amount in offer.capacity.items()}
    node = Node.from_object(
        {
            "metadata": {"name": "n", "annotations": offer.annotations, "labels": offer.labels},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
    )
    (cards,) = [found.devices for each in CHART.values() if (found := inventory(each, node))]
    assert len(cards) == board.cards
    assert all(card.healthy for card in cards)
    if board.model.memory:
        assert {card.memory for card in cards} == {board.model.memory}


@pytest.mark.parametrize(
    ("vendor", "model", "cards", "sentence"),
    [
        ("nvidia", "A100", None, "nvidia has no model A100 here; did you mean A100-SXM4-40GB? There are: A100-SXM4-40"),
        ("nvidia", "H20O", None, "nvidia has no model H20O here; did you mean H200?"),
        ("kunlun", "x", None, "kunlun has no model x here. There are: P800"),
        ("nvidia", None, 0, "--cards must be 1 to 64, not 0"),
        ("awsneuron", None, 3, "an instance trn1.32xlarge has 16 devices, not 3: leave --cards out"),
    ],
)
def test_a_board_that_isnt_there_is_refused_with_those_that_are(
    vendor: str, model: str | None, cards: int | None, sentence: str
) -> None:
    with pytest.raises(NoSuchBoard) as refused:
        find(vendor, model, cards)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"nodes": 0}, "--nodes must be 1 to 100, not 0"),
        ({"name": "Big_1"}, "--name must be letters a to z, digits and '-', as in gpu-1, and not 'Big_1'"),
        ({"cards": 65}, "--cards must be 1 to 64, not 65"),
        ({}, "no cluster is running: hack/dev-cluster up starts it"),
    ],
)
def test_a_node_that_cant_be_added_is_refused(tmp_path: Path, changed: dict[str, object], sentence: str) -> None:
    wishes = {"vendor": "nvidia", "model": None, "cards": None, "nodes": 1, "name": None}
    with pytest.raises(Refused, match=sentence):
        add(tmp_path, argparse.Namespace(**(wishes | changed)))


def test_no_node_is_removed_where_no_cluster_runs(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no cluster is running"):
        remove(tmp_path, ["gpu-1"])
