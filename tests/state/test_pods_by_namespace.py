"""Pods of Jobs that succeeded, and were deleted, count for the rest of their group (docs/spec/queues.md#5.1)."""

from __future__ import annotations

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import JOB, MOST_PODS, NAME, SIZE
from hami_webhook.state.pods_by_namespace import PodsByNamespace


def member(name: str, *, namespace: str = "team", job: str = "1", phase: str = "Pending") -> Pod:
    labels = {NAME: "train", SIZE: "2", **({JOB: job} if job else {})}
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "labels": labels}
    return Pod.from_object({"metadata": meta, "status": {"phase": phase}})


def there(pods: PodsByNamespace, namespace: str = "team") -> list[str]:
    return [each.name for each in pods.there((namespace, "train"))]


def test_what_succeeded_and_was_deleted_is_there_for_the_members_of_its_job() -> None:
    pods = PodsByNamespace()
    for done in (
        member("a", phase="Succeeded"),
        member("f", phase="Failed"),
        member("plain", job="", phase="Succeeded"),
    ):
        pods.keep(done)
        pods.drop(done)
    assert there(pods) == []  # nobody is left, so nobody asks
    pods.keep(member("b"))
    assert there(pods) == ["b", "a"]
    pods.drop(member("b"))
    pods.keep(member("b", job="2"))  # another run of the same name
    assert there(pods) == ["b"]


def test_attack_very_many_of_one_namespace_displace_none_of_another_and_are_bounded() -> None:
    pods = PodsByNamespace()
    for namespace, count in (("other", 1), ("team", 4 * MOST_PODS)):
        for number in range(count):
            done = member(f"p{number}", namespace=namespace, phase="Succeeded")
            pods.keep(done)
            pods.drop(done)
    pods.keep(member("b", namespace="other"))
    pods.keep(member("b"))
    assert there(pods, "other") == ["b", "p0"]
    assert len(there(pods)) == MOST_PODS + 1
