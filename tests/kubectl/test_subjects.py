"""What subjects use of a quota that they share: the team's page, which names no more than the reader's rights show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import JSON, accelerator_quota, pod
from simulate.files import GPU

from hami_webhook.kube.stamps import SUBMITTED_BY

from .apiserver import ApiServer
from .conftest import Hami
from .test_ui import entered
from .test_verbs import DEPLOYED, SPACES

USE = {"alice": [3], "bob": [1], "mallory": [2], "trudy": [2]}


def shared(**per: object) -> JSON:
    """A quota of both teams, in which four users have something."""
    text = json.dumps({"keys": [GPU], "use": USE})
    rows = [{"name": "alice", "used": {GPU: "3"}, "groups": ["ml"]}]
    status = {"used": {GPU: "8"}, "countedSubjects": "user", "subjectUse": text, "subjects": rows}
    return accelerator_quota("shared", spec={"per": {"user": True, "hard": {GPU: 2}, **per}}, status=status, gpu=9)


def of(name: str, user: str, namespace: str = "team-a", gpu: int = 1) -> JSON:
    made = pod(name, gpu=gpu, mem=100)
    made["metadata"] |= {"namespace": namespace, "uid": name, "annotations": {SUBMITTED_BY: user}}
    return made


def page(api: ApiServer, folder: Path, namespace: str = "team-a") -> str:
    with entered(api, folder) as client:
        return str(client.get(f"/teams/{namespace}").text)


GROUPS = {"groups": [{"group": "ml", "hard": {GPU: 4}}]}


@pytest.mark.integration
def test_a_teams_page_names_the_users_of_its_pods_and_sums_all_others(tmp_path: Path) -> None:
    pods = of("a", "alice"), of("b", "bob"), of("c", "carol"), of("m", "mallory", "team-b")
    shown = page(ApiServer([shared(**GROUPS), *SPACES, *DEPLOYED, *pods]), tmp_path)
    rows = [row.split("</tr>")[0] for row in shown.split('<table class="subjects">')[1].split("<tr>")[2:6]]

    def cells(row: str) -> list[str]:
        return [cell.split(">")[-1] for cell in row.replace("</td>", "</th>").split("</th>")[:-1]]

    assert [cells(row) for row in rows] == [
        ["alice", GPU, "3", "4"],
        ["bob", GPU, "1", "2"],
        ["carol", GPU, "0", "2"],
        ["2 others", GPU, "4", "–"],
    ]
    assert "mallory" not in shown
    assert "trudy" not in shown


@pytest.mark.integration
def test_attack_a_tenant_reads_no_names_beyond_its_namespace(tmp_path: Path) -> None:
    """Neither those of pods that it may not list, nor by a pod that says a name of its own choice in markup."""
    pods = of("a", "<b>alice"), of("m", "mallory", "team-b")
    objects = [shared(), *SPACES, *DEPLOYED, *pods]
    shown = page(ApiServer(objects), tmp_path)
    assert "&lt;b&gt;alice</th>" in shown
    assert "mallory" not in shown
    assert "<b>" not in shown
    (tmp_path / "tenant").mkdir()
    shown = page(ApiServer(objects, only="team-a"), tmp_path / "tenant")  # it may not read the quota
    assert '"subjects"' not in shown
    assert "mallory" not in shown


@pytest.mark.integration
def test_ordinary_day_without_such_a_quota_the_page_has_no_users(tmp_path: Path) -> None:
    plain = shared()
    del plain["spec"]["per"]
    shown = page(ApiServer([plain, *SPACES, *DEPLOYED, of("a", "alice")]), tmp_path)
    assert '"subjects"' not in shown


def test_limits_of_groups_are_listed(hami: Hami) -> None:
    run = hami(ApiServer([shared(**GROUPS), *SPACES, *DEPLOYED]), "quota", "--by", "user", "-o", "json")
    assert {each["subject"]: each["hard"] for each in run.result} == {"alice": 4, "bob": 2, "mallory": 2, "trudy": 2}
