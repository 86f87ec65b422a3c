"""Limits of each user in a shared namespace, on a real control plane: the users, their workloads, and who forges."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .objects import GPU, JSON, job, pod
from .revisions import Revisions
from .scheduling import bind
from .shared_namespace import (
    ASKED,
    CONFIGURATION,
    HUB,
    KIND,
    LIMIT,
    OPERATOR,
    REPLICAS,
    STAMP,
    STAMP_GROUPS,
    TRAINING,
    USERS,
    Shared,
    cron_job,
    knows_groups,
    operate,
    replicated,
    templates_webhook,
    training,
)
from .test_accelerator_quotas import define
from .test_bursts import create_all


@pytest.fixture(scope="module")
def deployment(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("who")
    kubectl = Kubectl(plane.kubeconfig)
    define(kubectl)
    kubectl.apply(TRAINING)
    kubectl("wait", f"crd/{KIND}", "--for=condition=Established", "--timeout=120s")
    flags = ("--submitted-by", f"--submitted-by-controllers={OPERATOR}", f"--submitted-by-portals={HUB}")
    with deployed(plane, folder, *REPLICAS, flags=flags) as deployment:
        patch = [{"op": "add", "path": "/webhooks/-", "value": templates_webhook(folder, deployment)}]
        kubectl("patch", "mutatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(patch))
        yield deployment
    kubectl("delete", "crd", KIND, "acceleratorquotas.hami.io")


@pytest.fixture
def shared(deployment: Deployment, tmp_path: Path) -> Iterator[Shared]:
    deployment.start_missing(*REPLICAS)
    made = Shared(deployment, tmp_path)
    yield made
    made.delete()


def difference(user: Kubectl, text: str, *arguments: str) -> str:
    """What `kubectl diff` prints; nothing where there is none."""
    return user.run("diff", *arguments, "-f", "-", stdin=text).stdout


def stored_stamp(kubectl: Kubectl, kind: str, space: str, name: str) -> str | None:
    found: JSON = kubectl.get(kind, name, "-n", space)["spec"]
    found = found["jobTemplate"]["spec"]["template"] if kind == "cronjob" else found["template"]
    stamp: str | None = (found["metadata"].get("annotations") or {}).get(STAMP)
    return stamp


EACH = dict.fromkeys(USERS, LIMIT)


def test_each_user_is_held_to_its_limit_whatever_makes_the_pods(
    deployment: Deployment, shared: Shared, tmp_path: Path
) -> None:
    space = shared.name
    users = {name: shared.user(name) for name in USERS}
    operator = shared.user(OPERATOR)
    scheduled = Shared(deployment, tmp_path)  # CronJobs need up to a minute
    for name in USERS:
        scheduled.user(name).apply(cron_job(scheduled.name, f"nightly-{name}"))
    for name, user in users.items():
        made = [pod(space, f"{name}-{number}", gpu=1, gpumem=100) for number in range(ASKED)]
        refusals = [user.run("create", "-f", "-", stdin=json.dumps(each)) for each in made]
        assert sum(each.returncode == 0 for each in refusals) == LIMIT
        assert f"exceeded quota: AcceleratorQuota {space} (user {name}), requested: {GPU}=1" in refusals[-1].stderr
        assert f"used: {GPU}=4, limited: {GPU}=4" in refusals[-1].stderr
    eventually(shared.used, EACH)
    shared.clear()
    for kind in ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"):
        for name, user in users.items():
            user.apply(replicated(space, kind, f"{kind.lower()}-{name}"))
        eventually(shared.stamps, EACH)
        eventually(shared.used, EACH)
        shared.clear(f"{kind.lower()}s")
    for name, user in users.items():
        user.apply(job(space, f"train-{name}", ASKED, gpu=1, gpumem=100))
    eventually(shared.stamps, EACH)
    eventually(shared.used, EACH)
    shared.clear("jobs")
    shared.let_train(*USERS)
    for name, user in users.items():
        user.apply(training(space, name))
    for name in USERS:
        refused = operate(operator, space, name)
        assert len(refused) == ASKED - LIMIT
        assert all(f"(user {name})" in each for each in refused), refused
    eventually(shared.used, EACH)
    eventually(scheduled.stamps, EACH)
    eventually(scheduled.used, EACH)
    scheduled.delete()


def test_no_request_gets_the_room_of_another_account(deployment: Deployment, shared: Shared) -> None:
    """The attacks of docs/security.md."""
    space, kubectl = shared.name, shared.kubectl
    alice, bob = shared.user("alice"), shared.user("bob")
    forged = {STAMP: "bob"}

    def make(name: str, **more: Any) -> JSON:
        made = pod(space, name, gpu=1, gpumem=100)
        made["metadata"] |= more
        return made

    # on pods
    alice.apply(make("own", annotations=forged))
    found = kubectl.get("pod", "own", "-n", space)["metadata"]
    assert found["annotations"][STAMP] == "alice"
    refusal = alice.refused(make("skips", annotations=forged, labels={"hami.io/webhook": "ignore"}))
    assert f'annotation {STAMP} must have "alice", but the pod says "bob", because mutation was skipped' in refusal
    assert "but it is missing" in alice.refused(make("skips", labels={"hami.io/webhook": "ignore"}))
    patch = "-p", json.dumps({"metadata": {"annotations": forged}})
    for user, arguments in (
        (alice, ("annotate", "--overwrite", "pod", "own", f"{STAMP}=bob")),
        (alice, ("annotate", "pod", "own", f"{STAMP}-")),
        (alice, ("patch", "pod", "own", "--type=merge", *patch)),
        (kubectl, ("patch", "pod", "own", "--type=merge", "--subresource=status", *patch)),
    ):
        done = user.run(*arguments, "-n", space)
        assert "may not add, change or remove it" in done.stderr, (arguments, done.stdout, done.stderr)
    applied = make("own", annotations=forged)
    done = alice.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(applied))
    assert "may not add, change or remove it" in done.stderr
    done = alice.run("create", "--validate=false", "-f", "-", "--as=bob", stdin=json.dumps(make("as-bob")))
    assert "cannot impersonate" in done.stderr, done.stderr
    # a service account of the namespace, which edit lets her be: one subject, however many there are
    group = f"system:serviceaccounts:{space}"
    kubectl("create", "rolebinding", "robots", "--clusterrole=edit", f"--group={group}", "-n", space)
    made = 0
    for number in range(ASKED):
        alice("create", "serviceaccount", f"robot-{number}", "-n", space)
        robot = f"--as=system:serviceaccount:{space}:robot-{number}"
        made += alice.run("create", "-f", "-", robot, stdin=json.dumps(make(f"robot-{number}"))).returncode == 0
    assert made == LIMIT
    # on templates, by whatever kind and request
    for kind in ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"):
        name = kind.lower()
        alice.apply(replicated(space, kind, name, 0, forged))
        assert stored_stamp(kubectl, name, space, name) == "alice"
        for stamp in ("bob", None):
            change = {"spec": {"template": {"metadata": {"annotations": {STAMP: stamp}}}}}
            alice("patch", name, name, "-n", space, "--type=merge", "-p", json.dumps(change))
            assert stored_stamp(kubectl, name, space, name) == "alice"
    # a pod and a ReplicaSet that say that they are somebody else's
    bob.apply(replicated(space, "Deployment", "bobs", 0))
    owner = kubectl.get("deployment", "bobs", "-n", space)["metadata"]
    reference = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bobs", "uid": owner["uid"], "controller": True}
    ]
    adopted = replicated(space, "ReplicaSet", "adopted", 0, forged)
    adopted["metadata"]["ownerReferences"] = reference
    alice.apply(adopted)
    alice.apply(make("adopted", ownerReferences=reference, annotations=forged))
    assert stored_stamp(kubectl, "replicaset", space, "adopted") == "alice"
    assert kubectl.get("pod", "adopted", "-n", space)["metadata"]["annotations"][STAMP] == "alice"
    # made by alice, edited by bob: as soon as he changes what runs, it is his; not for its schedule
    alice.apply(cron_job(space, "nightly") | {"spec": {**cron_job(space, "nightly")["spec"], "suspend": True}})
    assert stored_stamp(kubectl, "cronjob", space, "nightly") == "alice"
    bob("patch", "cronjob", "nightly", "-n", space, "-p", json.dumps({"spec": {"schedule": "5 * * * *"}}))
    assert stored_stamp(kubectl, "cronjob", space, "nightly") == "alice"
    image = [{"op": "replace", "path": "/spec/jobTemplate/spec/template/spec/containers/0/image", "value": "other"}]
    bob("patch", "cronjob", "nightly", "-n", space, "--type=json", "-p", json.dumps(image))
    assert stored_stamp(kubectl, "cronjob", space, "nightly") == "bob"
    # only its own
    eventually(shared.used, {"alice": 2, group: LIMIT})
    # while no replica answers, neither pods nor templates pass
    for name in list(deployment.replicas):
        deployment.stop(name, signal.SIGKILL)
    for obj in (make("down", annotations=forged), replicated(space, "Deployment", "down", 1, forged)):
        assert "failed calling webhook" in alice.refused(obj)
    assert (
        "failed calling webhook"
        in alice.run("annotate", "--overwrite", "pod", "own", f"{STAMP}=bob", "-n", space).stderr
    )
    # what the workload made is the user's until it is gone
    deployment.start_missing(*REPLICAS)
    kubectl.delete_all("pods", namespace=space)
    eventually(shared.used, {})


def test_names_orphans_and_bindings_make_no_room_of_another_account(deployment: Deployment, shared: Shared) -> None:
    space, kubectl = shared.name, shared.kubectl
    alice, bob = shared.user("alice"), shared.user("bob")
    deployment.start_missing(*REPLICAS)
    generated = pod(space, "", gpu=1, gpumem=100)
    generated["metadata"] = {"generateName": "g-", "namespace": space, "annotations": {STAMP: "bob"}}
    alice("create", "-f", "-", stdin=json.dumps(generated))
    eventually(shared.used, {"alice": 1})
    # names that are long, or alike in their first 253 characters, or not of ASCII
    names = "x" * 253, "x" * 300, "x" * 299 + "y", "böb 張"
    for number, name in enumerate(names):
        made = json.dumps(pod(space, f"named-{number}", gpu=1, gpumem=100))
        kubectl("create", "-f", "-", f"--as={name}", "--as-group=system:masters", stdin=made)
    stamps = [
        kubectl.get("pod", f"named-{n}", "-n", space)["metadata"]["annotations"][STAMP] for n in range(len(names))
    ]
    assert (stamps[0], stamps[3]) == (names[0], names[3])
    assert len(set(stamps)) == len(names)
    assert max(map(len, stamps)) == 253
    eventually(shared.used, {"alice": 1, **dict.fromkeys(stamps, 1)})
    # a workload that is deleted without its pods leaves them to its user, and nobody gets them by the same name
    alice.apply(replicated(space, "Deployment", "left", 2))
    eventually(shared.used, {"alice": 3, **dict.fromkeys(stamps, 1)})
    for kind in ("deployments", "replicasets"):
        alice("delete", kind, "--all", "--cascade=orphan", "-n", space)
    bob.apply(replicated(space, "Deployment", "left", 2))
    eventually(shared.used, {"alice": 3, "bob": 2, **dict.fromkeys(stamps, 1)})
    assert shared.stamps() == {"alice": 3, "bob": 2, **dict.fromkeys(stamps, 1)}
    # a Binding, of somebody who may bind
    admin = "--as=admin", "--as-group=system:masters"
    refused = bind(kubectl, space, "named-0", "nowhere", {STAMP: "bob"}, *admin)
    assert "may not set it with a Binding" in refused


def test_a_day_with_gitops_a_portal_and_colleagues(shared: Shared) -> None:
    """No tool sees a difference by our stamps, colleagues may scale, and pods without cards aren't touched."""
    space, kubectl = shared.name, shared.kubectl
    alice, bob, hub = (shared.user(name) for name in ("alice", "bob", HUB))
    written = replicated(space, "Deployment", "web", 1)
    del written["spec"]["template"]["metadata"]["annotations"]
    for arguments in (["--server-side", "--field-manager=argocd"], []):
        name = "server" if arguments else "client"
        obj = json.loads(json.dumps(written).replace('"web"', f'"{name}"'))
        text = json.dumps(obj)
        alice("apply", *arguments, "-f", "-", stdin=text)
        assert stored_stamp(kubectl, "deployment", space, name) == "alice"
        # the controller may write the status while kubectl compares
        eventually(partial(difference, alice, text, *arguments), "")
        bob("scale", "deployment", name, "--replicas=2", "-n", space)
        bob("label", "deployment", name, "team=a", "-n", space)
        assert stored_stamp(kubectl, "deployment", space, name) == "alice"
        obj["spec"]["replicas"] = 2
        assert "serverside-applied" in alice("apply", *arguments, "-f", "-", stdin=json.dumps(obj)) or not arguments
        live = kubectl.get("deployment", name, "-n", space)["spec"]["template"]
        alice("replace", "-f", "-", stdin=json.dumps(obj))
        assert stored_stamp(kubectl, "deployment", space, name) == "alice"
        assert kubectl.get("deployment", name, "-n", space)["spec"]["template"] == live
        rolled = [each["metadata"]["name"] for each in kubectl.get("replicasets", "-n", space)["items"]]
        assert sum(each.startswith(name) for each in rolled) == 1  # nothing was rolled out
    eventually(shared.stamps, {"alice": LIMIT})
    # a portal says for whom
    for number in range(2):
        made = pod(space, f"notebook-{number}", gpu=1, gpumem=100)
        made["metadata"]["annotations"] = {STAMP: "carol@example.com"}
        hub.apply(made)
    hub.apply(pod(space, "of-the-hub", gpu=1, gpumem=100))
    eventually(shared.used, {"alice": LIMIT, "carol@example.com": 2, HUB: 1})
    for number in range(2, ASKED):
        made = pod(space, f"notebook-{number}", gpu=1, gpumem=100)
        made["metadata"]["annotations"] = {STAMP: "carol@example.com"}
        done = hub.run("create", "-f", "-", stdin=json.dumps(made))
        assert (done.returncode == 0) == (number < LIMIT), done.stderr
    assert "(user carol@example.com), requested" in done.stderr
    eventually(shared.used, {"alice": LIMIT, "carol@example.com": LIMIT, HUB: 1})
    # as Kueue does, a controller starts a suspended Job, and writes into its template where it may run
    suspended = job(space, "suspended", 1, gpu=1, gpumem=100)
    suspended["spec"]["suspend"] = True
    alice.apply(suspended)
    template = {"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}, "spec": {"nodeSelector": {"pool": "a"}}}
    patch = json.dumps({"spec": {"suspend": False, "template": template}})
    shared.user(OPERATOR)("patch", "job", "suspended", "-n", space, "--type=merge", "-p", patch)
    assert stored_stamp(kubectl, "job", space, "suspended") == "alice"
    # what names no cards isn't touched
    alice.apply(pod(space, "cpu"))
    plain = replicated(space, "Deployment", "plain", 0)
    plain["spec"]["template"]["spec"] = pod(space, "")["spec"]
    alice.apply(plain)
    assert STAMP not in (kubectl.get("pod", "cpu", "-n", space)["metadata"].get("annotations") or {})
    assert stored_stamp(kubectl, "deployment", space, "plain") is None


def test_users_are_held_to_their_limits_at_every_revision_while_replicas_are_killed(
    deployment: Deployment, plane: ControlPlane, shared: Shared, tmp_path: Path
) -> None:
    """Pods, and in another namespace workloads of all kinds at once."""
    space, mixed = shared.name, Shared(deployment, tmp_path)
    operator = mixed.user(OPERATOR)
    mixed.let_train(*USERS)
    workloads = {
        name: [
            replicated(mixed.name, "Deployment", f"web-{name}"),
            job(mixed.name, f"train-{name}", ASKED, gpu=1, gpumem=100),
            cron_job(mixed.name, f"nightly-{name}"),
            training(mixed.name, name),
        ]
        for name in USERS
    }
    authors = {name: mixed.user(name) for name in USERS}
    logins = {name: shared.user(name).kubeconfig for name in USERS}
    pods = {name: [pod(space, f"{name}-{n}", gpu=1, gpumem=100) for n in range(20)] for name in USERS}

    async def kill() -> None:
        for number in range(5):
            await asyncio.sleep(0.3)
            name = REPLICAS[number % len(REPLICAS)]
            await asyncio.to_thread(deployment.stop, name, signal.SIGKILL)
            await asyncio.to_thread(deployment.start_missing, *REPLICAS)

    def create(name: str) -> None:
        asyncio.run(create_all(logins[name], pods[name], kill if name == "alice" else None, clients=4))

    def submit(name: str) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": workloads[name]})
        # a replica may be killed while it answers
        eventually(lambda: authors[name].run("apply", "-f", "-", stdin=text).returncode, 0)
        operate(operator, mixed.name, name)

    def operate_again() -> dict[str, int]:
        """Controllers try again later and later; the operator does so at once."""
        found = mixed.stamps()
        for name in USERS if found != EACH else ():
            operate(operator, mixed.name, name)
        return found

    with Revisions(plane, space) as revisions, Revisions(plane, mixed.name) as of_workloads:
        with ThreadPoolExecutor(4) as threads:
            done = [threads.submit(each, name) for each in (create, submit) for name in USERS]
        for each in done:
            each.result()

        def create_missing() -> dict[str, int]:
            there = {each["metadata"]["name"] for each in shared.pods()}
            for name in USERS:
                missing = [each for each in pods[name] if each["metadata"]["name"] not in there]
                asyncio.run(create_all(logins[name], missing[:3], clients=1))
            return shared.stamps()

        # a charge whose review broke is believed until its time is up
        eventually(create_missing, EACH)
        eventually(shared.used, EACH)
        eventually(operate_again, EACH)
        eventually(mixed.used, EACH)
    for _, found, _ in (*revisions.replay(), *of_workloads.replay()):
        counts = Counter(each["metadata"]["annotations"][STAMP] for each in found)
        assert counts.keys() <= EACH.keys()
        assert max(counts.values(), default=0) <= LIMIT
    mixed.delete()


def test_a_counted_label_is_set_at_creation_only(deployment: Deployment, tmp_path: Path) -> None:
    label = f"example.com/{uuid.uuid4().hex[:6]}"
    per = {"label": label, "hard": {GPU: 1}, "overrides": [{"subject": "vision", "hard": {GPU: 2}}]}
    shared = Shared(deployment, tmp_path, per=per)
    space, alice = shared.name, shared.user("alice")

    def make(name: str, project: str) -> JSON:
        made = pod(space, name, gpu=1, gpumem=100)
        made["metadata"]["labels"] = {label: project}
        return made

    def guarded() -> bool:
        found = shared.kubectl.get("validatingwebhookconfiguration", CONFIGURATION)
        return label in json.dumps(found)

    eventually(guarded)
    alice.apply(make("a", "vision"), make("b", "vision"), make("c", "speech"))
    kind = label.rpartition("/")[2]
    assert f"({kind} vision), requested: {GPU}=1, used: {GPU}=2, limited: {GPU}=2" in alice.refused(make("d", "vision"))
    assert f"({kind} speech)" in alice.refused(make("d", "speech"))
    for change in (f"{label}=free", f"{label}-"):
        done = alice.run("label", "--overwrite", "pod", "c", change, "-n", space)
        assert f"label {label} can't be changed once the pod exists" in done.stderr, done.stderr
    alice("label", "pod", "c", "other=label", "-n", space)
    eventually(shared.used, {"vision": 2, "speech": 1})
    shared.delete()


def test_groups_give_their_users_other_limits_and_templates_carry_them(deployment: Deployment, tmp_path: Path) -> None:
    """Of many groups only those that a quota names are written; what a user says of its groups isn't believed."""
    research, interns, many = "CN=research,OU=böb", "interns", [f"group-{n:03}" for n in range(200)]
    groups = [{"group": research, "hard": {GPU: 3}}, {"group": interns, "hard": {GPU: 1}}]
    overrides = [{"subject": "dan", "hard": {GPU: 2}}]
    deployment.start_missing(*REPLICAS)
    per = {"user": True, "hard": {GPU: 2}, "groups": groups, "overrides": overrides}
    shared = Shared(deployment, tmp_path, per=per)
    space, kubectl = shared.name, shared.kubectl
    eventually(lambda: all(knows_groups(deployment, name, space, research, interns) for name in REPLICAS))
    members = {"grace": [*many, research, interns], "ivan": [interns], "dan": [research], "erin": many}
    users = {name: shared.user(name, *groups) for name, groups in members.items()}
    named = {"grace": json.dumps([research, interns], ensure_ascii=False, separators=(",", ":")), "ivan": '["interns"]'}
    for name, user in users.items():
        user.apply(replicated(space, "Deployment", f"web-{name}", annotations={STAMP_GROUPS: f'["{research}"]'}))
    expected = {"grace": 3, "ivan": 1, "dan": 2, "erin": 2}
    eventually(shared.stamps, expected)
    eventually(shared.used, expected)
    for each in shared.pods():
        found = each["metadata"]["annotations"]
        assert found.get(STAMP_GROUPS) == named.get(found[STAMP], f'["{research}"]' if found[STAMP] == "dan" else None)
    made = pod(space, "more", gpu=1, gpumem=100)
    assert "(user ivan, group interns), requested" in users["ivan"].refused(made)
    assert f'(user grace, group "{research}"), requested: {GPU}=1, used: {GPU}=3' in users["grace"].refused(made)
    rows = {each["name"]: each.get("groups") for each in shared.status()["subjects"]}
    assert rows == {"grace": [research], "ivan": [interns], "dan": None, "erin": None}
    # groups that a user isn't in, or doesn't want to be in
    for name, brought, what in (
        ("erin", f'["{research}"]', "which the user isn't in"),
        ("ivan", "[]", "which a quota names: mutation was skipped"),
    ):
        forged = pod(space, "forged", gpu=1, gpumem=100)
        forged["metadata"] |= {
            "annotations": {STAMP: name, STAMP_GROUPS: brought},
            "labels": {"hami.io/webhook": "ignore"},
        }
        assert what in users[name].refused(forged)
    own = next(each for each in shared.pods() if each["metadata"]["annotations"][STAMP] == "erin")["metadata"]["name"]
    done = users["erin"].run("annotate", "--overwrite", "pod", own, f'{STAMP_GROUPS}=["{research}"]', "-n", space)
    assert "may not add, change or remove it" in done.stderr
    # a colleague who only scales changes no groups either
    users["erin"]("scale", "deployment", "web-grace", "--replicas=9", "-n", space)
    template = kubectl.get("deployment", "web-grace", "-n", space)["spec"]["template"]
    assert template["metadata"]["annotations"][STAMP_GROUPS] == named["grace"]
    shared.delete()


def test_a_user_with_two_pods_starts_before_one_with_many(deployment: Deployment, tmp_path: Path) -> None:
    shared = Shared(deployment, tmp_path, enforcement="queue", per={"user": True, "hard": {GPU: 3}}, total=4)
    alice, bob = shared.user("alice"), shared.user("bob")
    space = shared.name

    def is_free(found: JSON) -> bool:
        return not found["spec"].get("schedulingGates")

    def running() -> dict[str, int]:
        return dict(Counter(each["metadata"]["annotations"][STAMP] for each in shared.pods() if is_free(each)))

    many = [pod(space, f"many-{n}", gpu=1, gpumem=100) for n in range(1000)]
    assert asyncio.run(create_all(alice.kubeconfig, many)) == []
    eventually(running, {"alice": 3})
    bob.apply(*(pod(space, f"few-{n}", gpu=1, gpumem=100) for n in range(2)))

    def reasons() -> str:
        return " ".join(
            each.get("message", "") for item in shared.pods() for each in item["status"].get("conditions") or ()
        )

    eventually(lambda: f"AcceleratorQuota {space} (user alice): needs 1 nvidia.com/gpu" in reasons())
    eventually(running, {"alice": 3, "bob": 1})
    names = [each["metadata"]["name"] for each in shared.pods() if is_free(each)]
    first = next(name for name in names if name.startswith("many"))
    shared.kubectl("delete", "pod", first, "-n", space, "--force", "--grace-period=0")
    eventually(running, {"alice": 2, "bob": 2})
    shared.delete()
