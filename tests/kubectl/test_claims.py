"""What `kubectl hami` shows of ResourceClaims, where they are charged (docs/dra.md)."""

from __future__ import annotations

import msgspec
from simulate.files import GPU, JSON, MEM

from hami_webhook.dra.claim_templates import TEMPLATE_SPECS, TemplateSpec, annotation_of

from .conftest import Hami
from .installation import Installation, claim, with_claims


def claiming(name: str, *, node: str = "", generated: bool = True, template: str = "ten") -> JSON:
    """A pod with a claim from a template."""
    reference = {"name": "cards", "resourceClaimTemplateName": template}
    statuses = [{"name": "cards", "resourceClaimName": f"{name}-cards"}] if generated else []
    spec = {"containers": [{"name": "main"}], "resourceClaims": [reference], **({"nodeName": node} if node else {})}
    meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}"}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"resourceClaimStatuses": statuses}}


def of(owner: str) -> list[JSON]:
    return [{"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]


def template(name: str = "ten") -> JSON:
    spec = claim(name, memory="10000Mi")["spec"]
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": "team-a"}, "spec": {"spec": spec}}


def cluster() -> Installation:
    """A bound pod and one that waits, each with a claim of its own, beside the claim by hand."""
    installation = with_claims()
    installation.objects += [
        template(),
        claiming("bound", node="n2"),
        claim("bound-cards", memory="10000Mi", ownerReferences=of("bound")),
        claiming("waits", generated=False),
    ]
    installation.find("ResourceQuota", "gpu-quota")["status"]["used"] = {GPU: "3", MEM: "21024"}
    return installation


def test_a_quota_shows_what_claims_hold_and_what_will_be_asked_for(hami: Hami) -> None:
    run = hami(cluster().api, "quota", "gpu-quota", "-o", "json")
    (quota,) = run.result
    keys = {key["key"]: (key["used"], key["waiting"], key["placed"]) for key in quota["keys"]}
    assert keys == {GPU: (3, 1, 2), MEM: (21024, 10000, 11024)}
    assert quota["notes"] == []
    found = {pod["name"]: (pod["state"], pod["amounts"][MEM], pod["models"]) for pod in quota["pods"]}
    assert found == {
        "bound": ("Bound", 10000, ["NVIDIA A100"]),
        "waits": ("Waiting", 10000, []),
        "claim shared": ("Allocated", 1024, ["NVIDIA A100"]),
    }
    (model,) = quota["models"]
    assert (model["model"], model["pods"], model["slots"], model["memory"]) == ("NVIDIA A100", 2, 2, 11024)


def test_pods_show_the_cards_of_their_own_claims(hami: Hami) -> None:
    found = {pod["name"]: pod for pod in hami(cluster().api, "pods", "-o", "json").result}
    assert {name: (pod["state"], pod["cards"]) for name, pod in found.items()} == {
        "bound": ("Bound", ["GPU-2"]),
        "waits": ("Waiting", []),
    }


def test_explain_says_why_a_claim_waits(hami: Hami) -> None:
    installation = cluster()
    run = hami(installation.api, "explain", "pod", "waits", "-o", "json")
    assert run.result["verdict"] == "isn't placed and waits for its claims"
    notes = run.result["notes"]
    assert "the claim of template ten isn't there yet: kube-controller-manager makes it" in notes
    assert (
        "request r asks for 1 of class hami-core-gpu.project-hami.io: 1 of 2 would do; "
        "1 isn't selected by its class hami-core-gpu.project-hami.io"
    ) in notes
    installation.objects += [claim("big", memory="25000Mi")]
    notes = hami(installation.api, "explain", "pod", "waits", "-o", "json").result["notes"]
    assert any("0 of 2 would do" in note and "1 has 4.8Gi left, where 9.8Gi are needed" in note for note in notes)
    bound = hami(installation.api, "explain", "pod", "bound", "-o", "json").result
    assert bound["verdict"] == "is bound to n2; its claims have their devices"
    assert "claim bound-cards has GPU-2 (NVIDIA A100) on n2: 9.8Gi, 10 cores" in bound["notes"]
    costs = {quota["key"]: (quota["charged"], quota["costs"]) for quota in bound["quotas"]}
    assert costs == {GPU: (1, 1), MEM: (10000, 10000)}


def test_explain_names_what_is_missing_or_cannot_be(hami: Hami) -> None:
    installation = cluster()
    never = template("never")
    exact = never["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    exact["capacity"]["requests"]["memory"] = "999Gi"
    exact["selectors"] = [{"cel": {"expression": "device.driver != 'other'"}}]
    impossible, nowhere = claiming("never", generated=False, template="never"), claiming("nowhere", template="absent")
    nowhere["status"] = {}
    nowhere["spec"]["resourceClaims"].append({"name": "by-hand", "resourceClaimName": "gone"})
    installation.objects += [never, impossible, nowhere]
    notes = hami(installation.api, "explain", "pod", "never", "-o", "json").result["notes"]
    assert any("0 of 2 would do" in note and "1 can't give the amounts that it asks for" in note for note in notes)
    notes = hami(installation.api, "explain", "pod", "nowhere", "-o", "json").result["notes"]
    assert "claim gone isn't there: create it, or correct the pod's spec.resourceClaims" in notes
    assert any(note.startswith("the claim of template absent isn't there, as there is no such") for note in notes)


def test_who_may_not_list_claims_is_told_what_is_not_known(hami: Hami) -> None:
    installation = cluster()
    installation.api.lacking |= {"/apis/resource.k8s.io/v1/resourceslices"}
    run = hami(installation.api, "pods", "-o", "json", "-v")
    assert "no right to list resourceslices.resource.k8s.io: the devices that claims are for aren't known" in run.err


def test_explain_knows_templates_that_will_be_made_of_limits(hami: Hami) -> None:
    installation, spec = cluster(), claim("x", memory="5Mi", cores="1")["spec"]
    request = spec["devices"]["requests"][0]
    request["exactly"]["count"] = 1
    written = msgspec.convert(spec, TemplateSpec)
    pod = claiming("limits", generated=False, template=written.name)
    pod["metadata"]["annotations"] = {TEMPLATE_SPECS: annotation_of([written])}
    installation.objects += [pod]
    notes = hami(installation.api, "explain", "pod", "limits", "-o", "json").result["notes"]
    subject = f"the claim of template {written.name}"
    assert f"{subject} isn't there yet: the controller makes the template, of the pod's limits" in notes
    assert any("1 of 2 would do" in note for note in notes)


def test_doctor_says_that_limits_become_claims_for_both_and_where_these_are_charged(hami: Hami) -> None:
    def faults(installation: Installation, *deployments: str) -> list[tuple[str, str]]:
        for name in deployments:
            containers = installation.find("Deployment", name)["spec"]["template"]["spec"]["containers"]
            containers[0]["args"].append("--claims=labelled")
        checks = hami(installation.api, "doctor", "-o", "json").result["checks"]
        return [(each["subject"], each["fault"]) for check in checks for each in check["findings"]]

    both = ("hami-webhook", "hami-webhook-controller")
    assert faults(with_claims(), *both) == []
    ((subject, fault),) = faults(Installation(), *both)
    assert (subject, fault) == ("--claims", "is on, but claims aren't charged, so limits stay limits")
    installation = with_claims()
    data = installation.find("ConfigMap", "hami-device-config")["data"]
    text = data["device-config.yaml"].replace("    convert: false\n", "")
    data["device-config.yaml"] = text.replace("  - driver:", "  - convert: false\n    driver:")
    ((subject, fault),) = faults(installation, *both)
    assert (subject, fault) == ("--claims", "is on, but no row of dra.devices converts, so limits stay limits")
    ((subject, fault),) = faults(with_claims(), "hami-webhook")
    assert fault.startswith("differs between the two: labelled for the webhook, off for the controller")
