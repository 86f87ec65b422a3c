"""Claims and pods with limits under one quota, in any order: no more than hard, and nothing is left at the end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import virtual_time
from dra.objects import exactly
from hypothesis import given
from hypothesis import strategies as st
from quota.objects import TEAM, pod, quota

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, Kind

from .claim_env import Cluster, claiming, got, publish, spec, template

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from(["t", "u", "tu", "limits"])),
        st.tuples(st.just("claim"), st.sampled_from(["1000Mi", "3000Mi", "9Ei"])),
        st.tuples(st.just("allocate"), st.integers(0, 9), st.sampled_from(["1000Mi", "4000Mi", "9000Mi"])),
        st.tuples(st.just("review"), st.integers(0, 9), st.sampled_from(["1000Mi", "4000Mi", "9000Mi"])),
        st.tuples(st.just("store")),
        st.tuples(st.just("free"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("orphan"), st.integers(0, 9)),
        st.tuples(st.just("edit"), st.sampled_from("tu"), st.sampled_from(["500Mi", "6000Mi"])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 3.0, 60.0])),
    ),
    max_size=14,
)
HARD = 12000


class Anybody(Cluster):
    """Users and a scheduler that do as they please, within what they are allowed."""

    def __init__(self) -> None:
        super().__init__(quota(mem=HARD))
        self.made = 0
        self.reviewed: list[JSON] = []
        """Claims as they will be stored: their allocations are charged."""

    async def do(self, step: tuple[Any, ...]) -> None:
        self.made += 1
        name = f"n{self.made}"
        with suppress(Denied):
            match step:
                case ("pod", "limits"):
                    await self.create(pod(name, gpu=1, mem=2500))
                case ("pod", templates):
                    await self.create(claiming(name, *templates))
                    for each in templates:
                        found = self.cluster.peek(Kind.RESOURCE_CLAIM_TEMPLATES, each, TEAM)
                        assert found is not None
                        await self.generate(name, f"r-{each}", found["spec"]["spec"])
                case ("claim", memory):
                    await self.make(name, spec(exactly(memory=memory, cores="1")))
                case ("allocate", index, memory):
                    for claim in self.nth(Kind.RESOURCE_CLAIMS, index):
                        if not claim.get("status", {}).get("allocation"):
                            await self.allocate(claim["metadata"]["name"], got(memory, "1"))
                case ("review", index, memory):
                    for claim in self.nth(Kind.RESOURCE_CLAIMS, index):
                        if not claim.get("status", {}).get("allocation"):
                            self.reviewed.append(await self.review_allocation(claim, got(memory, "1")))
                case ("store",):
                    for claim in self.reviewed:
                        await self.store(claim)
                    self.reviewed.clear()
                case ("free", index):
                    for claim in self.nth(Kind.RESOURCE_CLAIMS, index):
                        await self.cluster.replace(Kind.RESOURCE_CLAIMS, {**claim, "status": {}})
                case ("delete", index):
                    for each in self.nth(Kind.PODS, index):
                        await self.end(each)
                case ("orphan", index):
                    for each in self.nth(Kind.PODS, index):
                        await self.cluster.delete(Kind.PODS, each["metadata"]["name"], TEAM)
                case ("edit", template_name, memory):
                    await self.cluster.delete(Kind.RESOURCE_CLAIM_TEMPLATES, template_name, TEAM)
                    made = template(template_name, spec(exactly(memory=memory, cores="1")))
                    await self.cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, made)
                case ("wait", seconds):
                    if seconds > 40:  # no request takes so long
                        self.reviewed.clear()
                    await self.run(seconds)
        await self.drain()

    async def store(self, claim: JSON) -> None:
        """Store an allocation, unless the claim has changed since: the API server answers with a conflict then."""
        found = self.cluster.peek(Kind.RESOURCE_CLAIMS, claim["metadata"]["name"], TEAM)
        if found is not None and found["metadata"]["resourceVersion"] == claim["metadata"]["resourceVersion"]:
            await self.cluster.replace(Kind.RESOURCE_CLAIMS, claim)

    def nth(self, kind: Kind, index: int) -> list[JSON]:
        """One of what there is, if there is any."""
        found = self.objects(kind)
        return [found[index % len(found)]] if found else []

    def objects(self, kind: Kind) -> list[JSON]:
        return [each for each in self.cluster.peek_all(kind) if each["metadata"]["namespace"] == TEAM]

    async def end(self, gone: JSON) -> None:
        """Delete a pod with its claims, as the garbage collector does."""
        await self.cluster.delete(Kind.PODS, gone["metadata"]["name"], TEAM)
        for claim in self.objects(Kind.RESOURCE_CLAIMS):
            owners = claim["metadata"].get("ownerReferences") or ()
            if any(each["uid"] == gone["metadata"]["uid"] for each in owners):
                await self.cluster.delete(Kind.RESOURCE_CLAIMS, claim["metadata"]["name"], TEAM)

    def held(self) -> int:
        """The MiB that are allocated, added up on its own."""
        results = [
            result
            for claim in self.objects(Kind.RESOURCE_CLAIMS)
            for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
        ]
        return sum(int(result["consumedCapacity"]["memory"].removesuffix("Mi")) for result in results)


@given(STEPS)
def test_whatever_happens_no_write_of_ours_passes_hard_and_nothing_is_left(steps: list[tuple[Any, ...]]) -> None:
    async def live() -> None:
        async with Anybody() as team:
            small = spec(exactly(memory="2000Mi", cores="1"))
            await publish(team, t=small, u=spec([exactly(memory="5000Mi"), exactly(memory="1000Mi", cores="1")]))
            for step in steps:
                await team.do(step)
                assert team.held() <= team.mem() <= HARD, step
            await team.run(100)
            assert team.held() <= team.mem() <= HARD
            for each in team.objects(Kind.PODS):
                await team.end(each)
            for each in team.objects(Kind.RESOURCE_CLAIMS):
                await team.cluster.delete(Kind.RESOURCE_CLAIMS, each["metadata"]["name"], TEAM)
            await team.run(100)
            assert (team.mem(), team.ledger()) == (0, {})

    virtual_time.run(live())
