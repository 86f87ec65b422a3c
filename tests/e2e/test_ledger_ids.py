"""A tenant who may read the ledger and the pods of its namespace, and write annotations, pays for every pod."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, eventually
from .objects import JSON, add_node, gpu_node, namespace, pod, quota
from .tenants import tenant
from .test_bursts import names
from .webhooks import configuration, holding_webhook, post_review

RESERVATION = "hami.io/quota-reservation"
POOL = {"pool": "ledger-ids"}
"""Labels of the node whose cards a percentage is of, whatever nodes other tests leave."""


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    node = gpu_node("ids-80g", 81920, 81920)
    node["metadata"]["labels"] = POOL
    add_node(two_replicas.kubectl, node, gpu=20)
    return two_replicas


def create(kubectl: Kubectl, item: JSON) -> subprocess.CompletedProcess[str]:
    return kubectl.run("create", "-f", "-", stdin=json.dumps(item))


def carrying(item: JSON, secret: str) -> JSON:
    item["metadata"]["annotations"] = {RESERVATION: secret}
    return item


def test_the_ids_of_pods_in_flight_pay_for_no_other_pod(
    program: Deployment, plane: ControlPlane, tmp_path: Path
) -> None:
    space = namespace(program.kubectl)
    program.kubectl.apply(quota(space, gpu=3))
    attacker = tenant(program.kubectl, plane, tmp_path, space)
    with ThreadPoolExecutor() as background, holding_webhook(program, space, "held-") as release:
        held: list[Future[subprocess.CompletedProcess[str]]] = [
            background.submit(create, attacker, pod(space, f"held-{number}", gpu=1, gpumem=100)) for number in range(3)
        ]
        eventually(lambda: len(attacker.ledger(space)), 3)
        for number, identity in enumerate(attacker.ledger(space)):
            answer = create(attacker, carrying(pod(space, f"thief-{number}", gpu=1, gpumem=100), identity))
            assert "exceeded quota: gpu-quota" in answer.stderr
        release.set()
        assert [each.result().returncode for each in held] == [0, 0, 0]
    assert names(attacker, space) == {"held-0", "held-1", "held-2"}
    eventually(lambda: (attacker.used(space), attacker.ledger(space)), ({"gpu": "3"}, {}))


def test_an_admission_by_hand_lowers_no_charge(program: Deployment, plane: ControlPlane, tmp_path: Path) -> None:
    """A review with the UID of a pod in flight, of a fraction of what it asks for; nothing but the port is needed."""
    space = namespace(program.kubectl)
    program.kubectl.apply(quota(space, mem=131072))
    attacker = tenant(program.kubectl, plane, tmp_path, space)
    with ThreadPoolExecutor() as background, holding_webhook(program, space, "held") as release:
        asked = pod(space, "held", gpu=2, gpumem_percentage=80)
        asked["spec"]["nodeSelector"] = POOL
        held = background.submit(create, attacker, asked)
        eventually(lambda: attacker.used(space), {"gpumem": "131072"})
        (identity,) = (key for key, entry in attacker.ledger(space).items() if entry["s"] == "admitted")
        forged = pod(space, "held", gpu=1, gpumem=8)
        forged["metadata"]["uid"] = identity
        assert post_review(program, "/validate", forged)["allowed"]
        assert attacker.used(space) == {"gpumem": "131072"}
        assert "exceeded quota" in create(attacker, pod(space, "more", gpu=1, gpumem=1000)).stderr
        release.set()
        assert held.result().returncode == 0
    # once the pod exists, it is no other; if the pod has been counted already, there is no room for one more
    answer = post_review(program, "/validate", forged)
    assert answer["allowed"] or "exceeded quota" in answer["status"]["message"]
    eventually(lambda: {entry["s"] for entry in attacker.ledger(space).values()}, {"floor"})
    assert attacker.used(space) == {"gpumem": "131072"}
    assert post_review(program, "/webhook", forged)["allowed"] is False


@pytest.fixture
def hamis_chart(program: Deployment) -> Iterator[None]:
    """HAMi's own webhook configuration, with our program behind it, in place of ours."""
    program.uninstall()
    url = f"https://127.0.0.1:{program.balancer.port}/webhook"
    more = {
        "name": "vgpu.hami.io",
        "sideEffects": "NoneOnDryRun",
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
    }
    program.kubectl.apply(configuration("Mutating", "hami-chart", url, program.ca.certificate, **more))
    yield
    program.kubectl("delete", "mutatingwebhookconfiguration", "hami-chart")
    program.install()


@pytest.mark.usefixtures("hamis_chart")
def test_the_secret_of_a_pod_that_exists_pays_for_no_other_pod(
    program: Deployment, plane: ControlPlane, tmp_path: Path
) -> None:
    """Behind HAMi's chart a pod carries the secret of its charge, and everybody in the namespace may read it then."""
    space = namespace(program.kubectl)
    program.kubectl.apply(quota(space, gpu=8))
    attacker = tenant(program.kubectl, plane, tmp_path, space)
    eventually(
        lambda: create(attacker, pod(space, "first", gpu=1, gpumem=100)).returncode, 0
    )  # the configuration holds
    for number in range(3):
        assert create(attacker, pod(space, f"mine-{number}", gpu=1, gpumem=100)).returncode == 0
        mine = attacker.get("pod", f"mine-{number}", "-n", space)["metadata"]["annotations"][RESERVATION]
        assert mine not in attacker.ledger(space)
        assert create(attacker, carrying(pod(space, f"copy-{number}", gpu=1, gpumem=100), mine)).returncode == 0
    last = create(attacker, carrying(pod(space, "last", gpu=1, gpumem=100), mine))
    assert last.returncode == 0, last.stderr
    for secret in (mine, *attacker.ledger(space)):
        over = create(attacker, carrying(pod(space, "over", gpu=1, gpumem=100), secret))
        assert "exceeded quota: gpu-quota" in over.stderr
    carried = [item["metadata"]["annotations"][RESERVATION] for item in attacker.get("pods", "-n", space)["items"]]
    assert len(set(carried)) == len(carried) == 8
    eventually(lambda: (attacker.used(space), attacker.ledger(space)), ({"gpu": "8"}, {}))
