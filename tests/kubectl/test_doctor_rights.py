"""The rights that `kubectl hami doctor` asks after: those of the manifests, as far as an installation needs them."""

from __future__ import annotations

from hack.render_rights import TARGET, render

from .conftest import Hami
from .installation import Installation
from .test_doctor import found


def test_the_rights_are_those_of_the_manifests() -> None:
    assert TARGET.read_text() == render(), "make render writes them"


def test_rights_are_asked_for_as_far_as_the_configuration_needs_them(hami: Hami) -> None:
    installation = Installation()
    installation.api.allowed = lambda spec: False

    def lacking() -> str:
        run = hami(installation.api, "doctor", "-o", "json")
        return "\n".join(fault for _, fault in found(run.result)["rights"])

    before = lacking()
    assert "patch acceleratorquotas/status.hami.io" in before
    assert "devices.scheduling.koordinator.sh" not in before
    assert "list poddisruptionbudgets.policy" in before
    assert "delete pods" in before
    installation.api.groups = {"scheduling.koordinator.sh"}
    scheduler = installation.find("Deployment", "hami-scheduler")["spec"]["template"]["spec"]
    (extender,) = [each for each in scheduler["containers"] if "serve" in each.get("args", ())]
    extender["args"].append("--preemption=off")
    after = lacking()
    assert "list devices.scheduling.koordinator.sh" in after
    assert [text for text in ("hami.io", "poddisruptionbudgets", "delete pods") if text in after] == []
    assert after.count("patch pods/status") == before.count("patch pods/status") - 1  # the controller has it, too
