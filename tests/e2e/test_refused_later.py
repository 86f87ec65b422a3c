"""Pods that the API server refuses after every webhook: they are refused by us in its words, and leave no charge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, eventually
from .objects import GPU, JSON, accelerator_quota, namespace, pod, quota
from .tenants import tenant

TRIES = 50
LIMIT = 4


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    return two_replicas


@pytest.fixture
def spaces(program: Deployment, plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[Kubectl, str, Kubectl, str]]:
    """Two tenants with their namespaces, under one AcceleratorQuota of four cards."""
    kubectl = program.kubectl
    bad, good = namespace(kubectl), namespace(kubectl)
    for space in (bad, good):
        kubectl("label", "namespace", space, f"org={bad}")
    kubectl.apply(accelerator_quota(bad, {"matchLabels": {"org": bad}}, {"gpu": LIMIT}))
    eventually(lambda: kubectl.get("aq", bad).get("status", {}).get("used", {}).get(GPU), "0")
    yield tenant(kubectl, plane, tmp_path, bad), bad, tenant(kubectl, plane, tmp_path, good), good
    kubectl("delete", "aq", bad)


def native(kubectl: Kubectl, space: str, **hard: Any) -> None:
    """A quota of Kubernetes' own keys, once its controller has counted what is used."""
    kubectl.apply(quota(space, "native", **hard))
    eventually(lambda: set(kubectl.get("resourcequota", "native", "-n", space)["status"].get("used", {})), set(hard))


def words(refusal: str) -> str:
    """A refusal without who gives it, and for which pod."""
    found = re.search(r"(exceeded quota|failed quota): .*", refusal.strip())
    assert found, refusal
    return found[0]


def test_pods_that_a_native_quota_refuses_take_nothing_from_others(
    program: Deployment, spaces: tuple[Kubectl, str, Kubectl, str]
) -> None:
    kubectl = program.kubectl
    attacker, bad, other, good = spaces
    native(kubectl, bad, pods=0)
    expected = words(attacker.refused(pod(bad, "plain", cpu=1)))
    before = int(kubectl.get("aq", bad)["metadata"]["resourceVersion"])
    refusals = attacker.refused(*(pod(bad, f"p{n}", gpu=1) for n in range(TRIES))).splitlines()
    assert [words(line) for line in refusals] == [expected] * TRIES
    other.apply(*(pod(good, f"p{n}", gpu=1) for n in range(LIMIT)))
    assert kubectl.get("aq", bad)["status"]["used"][GPU] == str(LIMIT)
    assert int(kubectl.get("aq", bad)["metadata"]["resourceVersion"]) > before


def test_names_that_exist_take_nothing_from_others(
    program: Deployment, spaces: tuple[Kubectl, str, Kubectl, str]
) -> None:
    kubectl = program.kubectl
    attacker, bad, other, good = spaces
    attacker.apply(pod(bad, "taken", gpu=1, gpumem=10))
    eventually(lambda: kubectl.get("aq", bad)["status"].get("ledger", ""), "")
    again = pod(bad, "taken", gpu=1, gpumem=10)
    for _ in range(5):
        refusals = attacker.refused(*[again] * 10).splitlines()
        assert len(refusals) == 10
        assert all("(AlreadyExists)" in line and 'pods "taken" already exists' in line for line in refusals), refusals
    other.apply(*(pod(good, f"p{n}", gpu=1) for n in range(LIMIT - 1)))
    assert kubectl.get("aq", bad)["status"]["used"][GPU] == str(LIMIT)


def test_a_pod_is_deleted_and_made_anew_as_fast_as_can_be(spaces: tuple[Kubectl, str, Kubectl, str]) -> None:
    """The ordinary day of a StatefulSet: no creation is refused, whatever a cache still shows."""
    user, space, _, _ = spaces
    for _ in range(LIMIT - 1):  # what is deleted is given back by the next recompute
        user.apply(pod(space, "db-0", gpu=1))
        user("delete", "pod", "db-0", "-n", space, "--grace-period=0", "--force")
    user.apply(pod(space, "db-0", gpu=1))


@pytest.mark.parametrize(
    "hard",
    [{"requests.cpu": "1900m"}, {"limits.memory": "3Gi"}, {"cpu": "1900m", "memory": "3Gi"}],
    ids=",".join,
)
@pytest.mark.parametrize("amounts", [{}, {"cpu": "2"}, {"cpu": "900m", "memory": "1.5Gi"}], ids=["none", "cpu", "both"])
def test_the_words_are_those_of_the_api_server(
    program: Deployment, spaces: tuple[Kubectl, str, Kubectl, str], hard: JSON, amounts: JSON
) -> None:
    kubectl = program.kubectl
    user, space, _, _ = spaces
    native(kubectl, space, **hard)
    plain, cards = pod(space, "plain"), pod(space, "cards", gpu=1)
    for made in (plain, cards):
        (main,) = made["spec"]["containers"]
        main["resources"].setdefault("limits", {}).update(amounts)
        made["spec"]["initContainers"] = [{**main, "name": "init"}]
    done = user.run("create", "-f", "-", stdin=json.dumps(plain))
    if done.returncode == 0:
        user.apply(cards)
    else:
        assert words(user.refused(cards)) == words(done.stderr)
        assert kubectl.get("aq", space)["status"]["used"][GPU] == "0"
