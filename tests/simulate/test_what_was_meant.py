"""What `simulate` and `explain` warn of, as the API server does: also for refused pods, and those without our names."""

from __future__ import annotations

import pytest
from builders import card, container, node
from refusals import has_node, is_privileged

from hami_webhook.config import ConfigError
from hami_webhook.device_config import builtin_vendors
from hami_webhook.policy.file import PolicyFile

from .files import JSON, Simulate, pod

NODES = [node("n1", card("GPU-1", 40960))]
MEM_NOTE = {"nvidia.com/gpumem": "3000"}
MEANS_NOTHING = (
    "annotation nvidia.com/gpumem means nothing: it's a resource, and belongs into resources.limits of a container"
)
IS_ANNOTATION = (
    "nvidia.com/use-gputype is an annotation, and no resource: it belongs into metadata.annotations of the pod"
)
MISSPELT = "nvidia.com/gpumemory isn't a name that means anything here; did you mean nvidia.com/gpumem?"
PRIVILEGED = {"securityContext": {"privileged": True}}


def limits(**more: object) -> JSON:
    return {"resources": {"limits": {"nvidia.com/gpu": 1, **more}}}


def env(value: str) -> JSON:
    return {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": value}]}


UNLIMITED = (
    "container main: CUDA_DISABLE_CONTROL switches the limits of memory and cores in it off; remove it, or the limits"
)
CASES = [
    ("allowed", pod("p", gpu=1, mem=1, annotations=MEM_NOTE), "", [MEANS_NOTHING]),
    ("of no other name of ours, an annotation", pod("p", annotations=MEM_NOTE), "", [MEANS_NOTHING]),
    (
        "of no other name of ours, a resource",
        pod("p", container(resources={"limits": {"nvidia.com/use-gputype": 1}})),
        "",
        [IS_ANNOTATION],
    ),
    (
        "of no other name of ours, misspelt",
        pod("p", container(resources={"limits": {"nvidia.com/gpumemory": 1}})),
        "",
        [MISSPELT],
    ),
    (
        "privileged",
        pod("p", container(**PRIVILEGED, **limits(**{"nvidia.com/gpumemory": 1}))),
        is_privileged("main"),
        [MISSPELT],
    ),
    ("with a node", pod("p", gpu=1, nodeName="n1", annotations=MEM_NOTE), has_node("n1"), [MEANS_NOTHING]),
    (
        "of bytes",
        pod("p", container(**limits(**{"nvidia.com/gpumem": "16Gi"})), annotations=MEM_NOTE),
        "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer number of MiB between 0 and "
        "2147483647; for 16Gi write 16384",
        [MEANS_NOTHING],
    ),
    (
        "of bytes that are possible",
        pod("p", container(**limits(**{"nvidia.com/gpumem": "1Gi"}))),
        "",
        ["container main: nvidia.com/gpumem counts MiB: for 1Gi write 1024"],
    ),
    ("without HAMi-core", pod("p", container(**env("true"), **limits(**{"nvidia.com/gpumem": 1}))), "", [UNLIMITED]),
    (
        "without HAMi-core, privileged",
        pod("p", container(**env("1"), **PRIVILEGED, **limits(**{"nvidia.com/gpucores": 30}))),
        is_privileged("main"),
        [UNLIMITED],
    ),
    ("with HAMi-core", pod("p", container(**env("false"), **limits(**{"nvidia.com/gpumem": 1}))), "", []),
    ("without limits", pod("p", container(**env("true"), **limits())), "", []),
    ("3Ki MiB", pod("p", container(**limits(**{"nvidia.com/gpumem": "3Ki"}))), "", []),
    ("of others' names", pod("p", annotations={"nvidia.com/gpu.product": "A", "example.com/gpu": "1"}), "", []),
]


@pytest.mark.parametrize(
    ("manifest", "message", "warnings"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_warnings_of_a_new_pod(simulate: Simulate, manifest: JSON, message: str, warnings: list[str]) -> None:
    (found,) = simulate(NODES, manifest).pods
    assert (found["message"], found["warnings"]) == (message, warnings)
    files = ["--cluster", simulate.file("c.json", NODES[0]), "-f", simulate.file("p.json", manifest)]
    notes = simulate.main("explain", *files, "-o", "json").result["notes"]
    assert [note for note in notes if note.startswith("warning: ")] == [f"warning: {each}" for each in warnings]


def test_the_table_shows_the_warnings_of_a_refused_pod(simulate: Simulate) -> None:
    manifest = pod("p", gpu=1, nodeName="n1", annotations=MEM_NOTE)
    run = simulate.main("simulate", "--cluster", simulate.file("c.json", NODES[0]), simulate.file("p.json", manifest))
    text = " ".join(run.out.replace("|", " ").split())
    assert "denied (403): pod has node" in text
    assert "warning: annotation" in text


DENIED = """
policies:
- name: limits-hold
  match: {namespaces: [team-*]}
  denyEnv: [CUDA_DISABLE_CONTROL]
"""


@pytest.mark.parametrize(
    ("manifest", "allowed"),
    [
        (pod("p", container(**env("true"), **limits())), False),
        (pod("p", container(**env("false"), **limits())), False),
        (pod("p", container(**limits()), container("side", **env("1"))), False),
        (pod("p", container(**limits()), init=[container("side", **env("1"))]), False),
        (pod("p", container(**env("true"))), True),
        (pod("p", container(**limits())), True),
        (pod("p", container(**env("true"), **limits()), namespace="other"), True),
    ],
    ids=["true", "false", "another container", "an init container", "no cards", "no variable", "no rule"],
)
def test_policy_denies_an_environment_variable_to_pods_with_cards(
    simulate: Simulate, manifest: JSON, allowed: bool
) -> None:
    policy = simulate.file("policy.yaml", DENIED)
    (found,) = simulate(NODES, manifest, flags=["--policy-file", policy]).pods
    assert found["allowed"] == allowed
    if not allowed:
        assert found["message"].partition(": ")[2] == (
            "CUDA_DISABLE_CONTROL must not be set in a pod with cards, by policy limits-hold; remove it"
        )


@pytest.mark.parametrize("name", ["", "A=B", "1A", 3, "A" * 254])
def test_a_policy_names_variables_as_kubernetes_does(name: object) -> None:
    with pytest.raises(ConfigError, match=r"policies\[0\].denyEnv\[0\]: must be the name of an environment variable"):
        PolicyFile.parse(f"policies: [{{name: a, denyEnv: [{name!r}]}}]", "f", builtin_vendors().governed)
