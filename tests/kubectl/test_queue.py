"""Where pods stand that wait for quota: `kubectl hami queue`, `explain pod`, and the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import accelerator_quota, card, node
from simulate.files import GPU, JSON, pod, quota

from hami_webhook.kube.objects import format_time
from hami_webhook.queueing.words import ahead_in

from .apiserver import ApiServer
from .conftest import Hami
from .test_ui import entered
from .test_verbs import DEPLOYED, SPACES, with_uid

SAID = "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 2; 7 pods wait before it"


def queueing(namespace: str, **more: Any) -> JSON:
    made = quota(gpu="2", namespace=namespace, used={GPU: "2"}, **more)
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"}
    return made


def gated(name: str, namespace: str = "team-a", said: str = "", **spec: Any) -> JSON:
    made = with_uid(pod(name, gpu=1, namespace=namespace, schedulingGates=[{"name": "hami.io/quota"}], **spec))
    if said:
        made["status"] = {"conditions": [{"type": "hami.io/QuotaReserved", "status": "False", "message": said}]}
    return made


def cluster() -> list[JSON]:
    above = accelerator_quota(spec={"enforcement": "queue"}, status={"used": {GPU: "4"}}, gpu=9)
    other = gated("parked")
    other["spec"]["schedulingGates"].append({"name": "example.com/mine"})
    return [
        *(node("n1", card("GPU-1")), queueing("team-a"), queueing("team-b"), above, *SPACES, *DEPLOYED),
        *(gated("later", said=SAID), gated("first", priority=5), gated("theirs", "team-b"), other),
    ]


def rows(run: Any) -> list[tuple[str, int | None, str]]:
    return [(each["quota"], each["place"], f"{each['namespace']}/{each['name']}") for each in run.result]


def test_who_is_owed_what_others_hold_stands_first_with_what_is_reclaimed(hami: Hami) -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "team-b"}}
    team = accelerator_quota("b", selector, {"nominal": {GPU: 1}}, status={"used": {GPU: 0}}, gpu=9)
    above = {**cluster()[3], "status": {"used": {GPU: "9"}}}
    note = f"1 pod of AcceleratorQuota/a evicted for {GPU} of AcceleratorQuota/all"
    said = f"Waits for its turn; {note}; first in line"
    spaces = [
        {"kind": "Namespace", "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/metadata.name": name}}}
        for name in ("team-a", "team-b")
    ]
    pods = [gated("old", priority=9), gated("owed", "team-b", said)]
    run = hami(
        ApiServer([node("n1", card("GPU-1")), above, team, *spaces, *DEPLOYED, *pods]), "queue", "-A", "-o", "json"
    )
    shown = [each for each in run.result if each["quota"] == "AcceleratorQuota/all"]
    assert [each["name"] for each in shown] == ["owed", "old"]
    assert note in shown[0]["waits_for"]


def test_who_sees_all_sees_every_quota_s_queue(hami: Hami) -> None:
    run = hami(ApiServer(cluster()), "queue", "-A", "-o", "json")
    assert run.err == ""
    assert rows(run) == [
        ("", None, "team-a/parked"),
        ("AcceleratorQuota/all", 1, "team-a/first"),
        ("AcceleratorQuota/all", 2, "team-a/later"),
        ("AcceleratorQuota/all", 3, "team-b/theirs"),
        ("team-a/gpu-quota", 1, "team-a/first"),
        ("team-a/gpu-quota", 2, "team-a/later"),
        ("team-b/gpu-quota", 1, "team-b/theirs"),
    ]
    texts = {each["name"]: each["waits_for"] for each in run.result}
    assert texts["parked"] == "has other scheduling gates: example.com/mine"
    assert texts["later"] == ("Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 2; 1 pod waits before it")
    table = hami(ApiServer(cluster()), "queue").out.splitlines()
    assert table[0].split() == ["QUOTA", "PLACE", "POD", "PRIORITY", "WAITS", "FOR"]
    assert not any("team-b" in line for line in table)


def test_a_tenant_sees_its_own_pods_with_what_their_conditions_say(hami: Hami) -> None:
    tenant = ApiServer(cluster(), only="team-a")
    run = hami(tenant, "queue", "-o", "json")
    places = {each["name"]: (each["place"], each["waits_for"]) for each in run.result}
    assert places["later"] == (8, SAID)
    assert places["first"] == (None, "its condition doesn't say yet")


FULL = "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 2"


@pytest.mark.parametrize("only", [None, "team-a"])
@pytest.mark.parametrize(
    ("told", "at", "shown"),
    [
        ("starts by {} at the latest; 1 pod waits before it", timedelta(hours=25.5), "starts within 25h at the latest"),
        ("its start isn't known: 3 pods without an end", timedelta(0), "its start isn't known: 3 pods without an end"),
        (
            "nobody is evicted for it: they are young, earliest at {}; first in line",
            timedelta(hours=9.5),
            "they are young, earliest in 9h",
        ),
    ],
)
def test_a_time_of_a_condition_is_told_as_how_long_that_is(
    hami: Hami, only: str | None, told: str, at: timedelta, shown: str
) -> None:
    """To who sees all, and to a tenant, in the table and as JSON; `explain` says the same."""
    said = f"{FULL}; {told.format(format_time((datetime.now(UTC) + at).timestamp()))}"
    pods = [gated("next", said=said), gated("first", priority=5)]
    api = ApiServer([node("n1", card("GPU-1")), queueing("team-a"), *SPACES, *DEPLOYED, *pods], only=only)
    rows = {each["name"]: each["waits_for"] for each in hami(api, "queue", "-n", "team-a", "-o", "json").result}
    assert rows["next"].startswith(FULL)
    assert shown in rows["next"]
    for arguments in (("queue", "-n", "team-a"), ("explain", "pod", "next", "-n", "team-a")):
        assert shown in " ".join(hami(api, *arguments).out.split())


def test_a_group_is_one_row_with_one_place(hami: Hami) -> None:
    labels = {"hami.io/pod-group": "train", "hami.io/pod-group-size": "3"}
    pods = [gated("alone", priority=-1), *(gated(f"train-{number}") for number in range(3))]
    for each in pods[1:]:
        each["metadata"]["labels"] = labels
    api = ApiServer([node("n1", card("GPU-1")), queueing("team-a"), *SPACES, *DEPLOYED, *pods])
    found = hami(api, "queue", "-o", "json").result
    assert [(each["place"], each["name"], each["group"], each["pods"]) for each in found] == [
        (1, "train-0", "train", 3),
        (2, "alone", "", 1),
    ]
    assert "team-a/train (group of 3)" in hami(api, "queue").out


def test_what_stands_in_the_queue_has_a_column(hami: Hami) -> None:
    out = hami(ApiServer(cluster()), "quota", "-A").out.splitlines()
    assert out[0].split("  ")[-1] == "LEFT"
    assert [each for each in ("CHARGED, UNPLACED", "QUEUED") if each in out[0]] == ["CHARGED, UNPLACED", "QUEUED"]
    (found,) = [
        each
        for each in hami(ApiServer(cluster()), "quota", "-A", "-o", "json").result
        if each["name"].startswith("Acc")
    ]
    assert [(each["queued"], each["waiting"], each["nominal"]) for each in found["keys"]] == [(4, 0, None)]


def lending_cluster() -> list[JSON]:
    def above(name: str, team: str, used: int, **spec: Any) -> JSON:
        selector = {"matchLabels": {"team": team}} if team else {}
        return accelerator_quota(name, selector, spec, status={"used": {GPU: str(used)}}, gpu=20)

    teams = [above(team, team, used, nominal={GPU: 8}) for team, used in (("a", 2), ("b", 15))]
    spaces = [
        {"kind": "Namespace", "metadata": {"name": f"team-{team}", "uid": team, "labels": {"team": team}}}
        for team in "ab"
    ]
    return [node("n1", card("GPU-1")), above("all", "", 17, enforcement="queue"), *teams, *spaces, *DEPLOYED]


def test_lending_shows_what_is_own_borrowed_and_lent(hami: Hami) -> None:
    """Of 20 cards 4 are nobody's own: of the 7 that B borrows these come first, and 3 are A's."""
    api = ApiServer(lending_cluster())
    found = {each["name"]: each["keys"][0] for each in hami(api, "quota", "-A", "-o", "json").result}
    assert {name: (key["nominal"], key["borrowed"], key["lent"]) for name, key in found.items()} == {
        "AcceleratorQuota/a": (8, 0, 3),
        "AcceleratorQuota/all": (None, None, None),
        "AcceleratorQuota/b": (8, 7, 0),
    }
    lines = hami(api, "quota", "-A").out.splitlines()
    assert lines[0].split()[-3:] == ["OWN", "BORROWED", "LENT"]
    assert [line.split()[-3:] for line in lines[1:]] == [["8", "0", "3"], ["-", "-", "-"], ["8", "7", "0"]]


def test_explain_and_the_list_of_pods_say_what_a_pod_waits_for(hami: Hami) -> None:
    api = ApiServer(cluster())
    assert hami(api, "explain", "pod", "later", "-o", "json").result["verdict"] == SAID
    (found,) = hami(api, "pods", "later", "-o", "json").result
    assert found["reason"] == SAID


@pytest.mark.integration
def test_the_page_of_a_queue_is_linked_from_its_quota(tmp_path: Path) -> None:
    with entered(ApiServer(cluster()), tmp_path) as client:
        assert 'href="/queue?quota=team-b%2Fgpu-quota"' in client.get("/teams").text
        page = client.get("/queue", params={"quota": "team-b/gpu-quota"}).text
        assert "/pods/team-b/theirs" in page
        assert "team-a/first" not in page
        assert "No pod waits for quota" in client.get("/queue", params={"quota": "none"}).text


@pytest.mark.integration
def test_the_first_page_of_a_tenant_has_its_quotas_and_pods_and_no_cards(tmp_path: Path) -> None:
    with entered(ApiServer(cluster(), only="team-a"), tmp_path) as client:
        page = client.get("/overview").text
        assert "0 cards" not in page
        assert "No node" not in page
        assert page.index("team-a/gpu-quota") < page.index("/pods/team-a/first") < page.index("Longest waiting pods")
    with entered(ApiServer(cluster()), tmp_path) as client:
        assert "<strong>1</strong> card on 1 node" in client.get("/overview").text


@pytest.mark.parametrize(
    ("text", "ahead"),
    [("first in line", 0), ("x; no pod waits before it", 0), (SAID, 7), ("1 pod waits before it", 1), ("x", None)],
)
def test_how_many_are_ahead_is_read_from_a_sentence(text: str, ahead: int | None) -> None:
    assert ahead_in(text) == ahead
