"""How long pods of a quota may run (docs/spec/time.md#1)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, accelerator_quota, card, node
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.enforcement import ENFORCEMENT
from hami_webhook.quota.runtime import (
    DEFAULT_RUNTIME,
    LONGER_RUNTIME,
    MAX_RUNTIME,
    Runtime,
    deadline_of,
    runtime_fault,
    runtime_faults,
    runtime_of,
)

from .objects import LARGE, TEAM, pod, quota, read_pod
from .quota_env import QuotaEnv

L = node("n1", card("GPU-L", LARGE))
HOUR = 3600


def limiting(longest: str | None = "12h", default: str | None = None, longer: str | None = None, **more: Any) -> JSON:
    made = quota(more.pop("name", "gpu-quota"), gpu=8)
    made["spec"] |= more
    written = {MAX_RUNTIME: longest, DEFAULT_RUNTIME: default, LONGER_RUNTIME: longer}
    made["metadata"]["annotations"] = {key: text for key, text in written.items() if text is not None}
    return made


@in_one_test(
    ("fields", "runtime"),
    [
        ({"longest": None}, None),
        ({}, Runtime("gpu-quota", 12 * HOUR, 12 * HOUR)),
        ({"default": "1h"}, Runtime("gpu-quota", 12 * HOUR, HOUR)),
        ({"default": "24h"}, Runtime("gpu-quota", 12 * HOUR, 12 * HOUR)),
        ({"longest": None, "default": "90m"}, Runtime("gpu-quota", None, 5400)),
        ({"longer": "cut"}, Runtime("gpu-quota", 12 * HOUR, 12 * HOUR, cuts=True)),
        ({"longer": "later"}, Runtime("gpu-quota", 12 * HOUR, 12 * HOUR)),
        ({"longest": "soon"}, None),
        ({"longest": "1.9s"}, Runtime("gpu-quota", 1, 1)),
        ({"longest": "0s"}, None),
        ({"longest": "721h"}, None),
        ({"scopes": ["NotTerminating"]}, None),
        ({"scopes": ["Terminating"]}, Runtime("gpu-quota", 12 * HOUR, 12 * HOUR)),
    ],
)
def test_what_is_written_on_a_quota(fields: dict[str, Any], runtime: Runtime | None) -> None:
    assert runtime_of(ResourceQuota.from_object(limiting(**fields))) == runtime


def test_an_accelerator_quota_has_it_in_fields() -> None:
    made = accelerator_quota("train", gpu=8)
    made["spec"] |= {"maxRuntime": "12h", "defaultRuntime": "1h", "longerRuntime": "cut"}
    assert runtime_of(read_accelerator_quota(made, {})) == Runtime("AcceleratorQuota/train", 43200, 3600, cuts=True)


A, B = Runtime("a", 100, 50), Runtime("b", 80, 80, cuts=True)
ANY = Runtime("c", None, 70)


@in_one_test(
    ("own", "runtimes", "deadline", "fault"),
    [
        (None, [], None, ""),
        (None, [A], 50, "maxRuntime of quota a is 100s, but the pod has no spec.activeDeadlineSeconds"),
        (None, [A, B], 50, "maxRuntime of quota a"),
        (None, [ANY], 70, ""),
        (None, [ANY, B], 70, "maxRuntime of quota b"),
        (30, [A, B, ANY], None, ""),
        (90, [A], None, ""),
        (500, [ANY], None, ""),
        (
            101,
            [A],
            None,
            "spec.activeDeadlineSeconds 101 (101s) is too long: maxRuntime of quota a is 100s; set at most",
        ),
        (90, [A, B], 80, "spec.activeDeadlineSeconds 90 (90s) is too long: maxRuntime of quota b is 80s"),
        (200, [A, B], None, "spec.activeDeadlineSeconds 200"),
    ],
)
def test_the_deadline_of_a_new_pod(own: int | None, runtimes: list[Runtime], deadline: int | None, fault: str) -> None:
    """The shortest of its quotas' holds; a longer one of its own is cut where all that it exceeds cut, else refused."""
    made = read_pod(gpu=1, activeDeadlineSeconds=own)
    found = deadline_of(made, runtimes)
    assert (found and found.seconds) == deadline
    said = runtime_fault(made, runtimes)
    assert said.startswith(fault)
    assert bool(said) == bool(fault)


DURATION = "must be a duration such as 300ms, 1.5s or 5m0s"
SCOPED = "has no effect with the scope NotTerminating, which pods leave with a deadline; remove the scope"


@in_one_test(
    ("fields", "said"),
    [
        ({}, []),
        ({"default": "12h", "longer": "refuse"}, []),
        ({"longest": "soon"}, [f"{MAX_RUNTIME}: soon can't be read, so it has no effect; it {DURATION}"]),
        ({"longest": "0s"}, [f"{MAX_RUNTIME}: 0s can't be read, so it has no effect; it must be at least 1s"]),
        (
            {"longest": "-1h"},
            [f"{MAX_RUNTIME}: -1h can't be read, so it has no effect; it {DURATION}, and not negative"],
        ),
        ({"longest": "721h"}, [f"{MAX_RUNTIME}: 721h can't be read, so it has no effect; it must be at most 720h"]),
        (
            {"default": "13h"},
            [f"{DEFAULT_RUNTIME}: 13h is longer than the longest runtime, 12h, which holds; write at most that"],
        ),
        (
            {"longer": "later"},
            [f"{LONGER_RUNTIME}: later isn't known, so pods with a longer deadline are refused; write refuse or cut"],
        ),
        ({"longest": None, "longer": "cut"}, [f"{LONGER_RUNTIME} has no effect without {MAX_RUNTIME}; set that, too"]),
        ({"scopes": ["NotTerminating"]}, [f"{MAX_RUNTIME} {SCOPED}"]),
        ({"scopes": ["NotTerminating"], "longest": None, "default": "1h"}, [f"{DEFAULT_RUNTIME} {SCOPED}"]),
    ],
)
def test_what_its_author_can_hardly_have_meant(fields: dict[str, Any], said: list[str]) -> None:
    found = [*runtime_faults(ResourceQuota.from_object(limiting(**fields)))]
    assert [text for _, text in found] == said
    assert all(text.startswith(key) for key, text in found)


async def test_a_pod_without_a_deadline_gets_one_and_its_creator_is_warned() -> None:
    async with QuotaEnv(L, limiting(default="1h")) as env:
        stored, answer = await env.admit(pod("p", gpu=1, mem=1))
        assert stored["spec"]["activeDeadlineSeconds"] == HOUR
        assert answer.audit == {"quota": "gpu-quota:limits.nvidia.com/gpu=1"}
        mutated = await env.core.admission.mutate(env.review(pod("p", gpu=1, mem=1)))
        text = "spec.activeDeadlineSeconds set to 3600 by quota gpu-quota: the pod ends 60m after its start"
        assert mutated.warnings == (text,)


async def test_a_longer_one_is_refused_with_both_numbers() -> None:
    async with QuotaEnv(L, limiting()) as env:
        refused = await env.refused(pod("p", gpu=1, mem=1, activeDeadlineSeconds=86400))
        assert (refused.code, refused.cause, refused.message) == (
            403,
            "quota",
            "spec.activeDeadlineSeconds 86400 (24h) is too long: maxRuntime of quota gpu-quota is 12h; set at most "
            "43200, or leave it out",
        )
        assert env.used() == {"gpu": 0}


async def test_attack_a_pod_that_skips_mutation_or_is_changed_after_it_is_refused() -> None:
    """As with the label `hami.io/webhook: ignore`, or by a webhook of somebody that is called later."""
    async with QuotaEnv(L, limiting(longer="cut")) as env:
        for own in (None, 86400):
            made = pod("p", gpu=1, mem=1, activeDeadlineSeconds=own)
            made["metadata"]["uid"] = "u"
            with pytest.raises(Denied, match="maxRuntime of quota gpu-quota is 12h"):
                await env.core.admission.validate(env.review(made))


@in_one_test(
    ("own", "grace", "deadline", "fault"),
    [
        (None, 600, 12 * HOUR, ""),
        (None, 2 * HOUR + 600, 10 * HOUR, ""),
        (10 * HOUR, 2 * HOUR + 600, 10 * HOUR, ""),
        (12 * HOUR, 600, 12 * HOUR, ""),
        (12 * HOUR, 601, None, "spec.terminationGracePeriodSeconds 601 (10m) is too long beside"),
        (60, 30 * 24 * HOUR, None, "spec.terminationGracePeriodSeconds 2592000 (30d) is too long beside"),
        (None, 30 * 24 * HOUR, None, "spec.terminationGracePeriodSeconds 2592000 (30d) is too long beside"),
        (60, 2**63 - 1, None, "spec.terminationGracePeriodSeconds 9223372036854775807"),
    ],
)
def test_attack_a_long_grace_period_makes_no_pod_longer(
    own: int | None, grace: int, deadline: int | None, fault: str
) -> None:
    """Kubelet ends a pod at its deadline with all of its grace period, and a container may go on computing in that."""
    runtimes = [Runtime("q", 12 * HOUR, 12 * HOUR)]
    made = read_pod(gpu=1, activeDeadlineSeconds=own, terminationGracePeriodSeconds=grace)
    if (found := deadline_of(made, runtimes)) is not None:
        made = replace(made, active_deadline=found.seconds)
    said = runtime_fault(made, runtimes)
    assert said.startswith(fault)
    assert bool(said) == bool(fault) == ("set at most 600" in said)
    assert deadline in (None, made.active_deadline)


async def test_attack_no_scope_makes_a_pod_endless() -> None:
    """With the deadline that one quota gives it a pod comes into the scope of another, whose limit holds, too."""
    shorter = limiting("1h", name="of-terminating", scopes=["Terminating"])
    async with QuotaEnv(L, limiting(), shorter) as env:
        stored, _ = await env.admit(pod("p", gpu=1, mem=1))
        assert stored["spec"]["activeDeadlineSeconds"] == HOUR


async def test_ordinary_day_quotas_and_pods_that_are_not_concerned() -> None:
    """Nothing is written on pods without cards, on pods of quotas without the fields, nor by a quota that observes."""
    async with QuotaEnv(L, quota("gpu-quota", gpu=8)) as env:
        stored, answer = await env.admit(pod("p", gpu=1, mem=1, activeDeadlineSeconds=10**6))
        assert (stored["spec"]["activeDeadlineSeconds"], answer.warnings) == (10**6, ())
        stored, _ = await env.admit(pod("q", gpu=1, mem=1))
        assert "activeDeadlineSeconds" not in stored["spec"]
    observed = limiting()
    observed["metadata"]["annotations"][ENFORCEMENT] = "observe"
    async with QuotaEnv(L, observed) as env:
        stored, _ = await env.admit(pod("p", gpu=1, mem=1))
        assert "activeDeadlineSeconds" not in stored["spec"]
    async with QuotaEnv(L, limiting()) as env:
        stored, _ = await env.admit(pod("without-cards"))
        assert "activeDeadlineSeconds" not in stored["spec"]


async def test_ordinary_day_a_pod_that_is_older_than_the_limit_is_updated() -> None:
    async with QuotaEnv(L, quota("gpu-quota", gpu=8)) as env:
        await env.create(pod("p", gpu=1, mem=1))
        patch = {"metadata": {"annotations": {MAX_RUNTIME: "1h"}}}
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, TEAM)
        await env.run(1)
        await env.annotate("p", use_gputype="GPU-L")
