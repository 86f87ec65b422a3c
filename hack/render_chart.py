"""Writes what the Helm chart has in common with the manifests and the program: `python -m hack.render_chart`.

The schema and the table of its values, its version, icon and changes, the built-in device configuration,
kube-scheduler's configuration, alerts and dashboards, the definition of AcceleratorQuotas, names for messages, and the
webhooks' conditions, apart from the resource names in them: the chart adds those of `deviceConfig`.
A test compares the files with what this renders.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections.abc import Mapping
from textwrap import dedent, indent
from typing import Any

import yaml

from hack import chart_readme
from hack.changelog import section
from hack.chart_values import Values
from hack.daemon_values import DaemonValues
from hack.render_manifests import MANIFESTS, charging_claims
from hack.render_schemas import device_config_schema, without_titles
from hami_webhook import __version__
from hami_webhook.admission.misspelt import NameSuggester
from hami_webhook.config import add_flags
from hami_webhook.config.settings import KNOWN_PLUGINS
from hami_webhook.controller.match_conditions import match_conditions
from hami_webhook.device_config import builtin_device_config, enabled_vendors

CHART = MANIFESTS / "chart"
DAEMON_CHART = MANIFESTS / "hami-daemon"

DESCRIPTION = """\
# Rendered by hack/render_chart.py.
apiVersion: v2
name: hami-webhook
description: Admission webhook, quota controller and scheduler extender for accelerators that pods share
type: application
version: {version}
appVersion: {version}
# matchConditions of webhooks
kubeVersion: ">=1.30.0-0"
keywords: [hami, gpu, quota, scheduler, admission-webhook]
icon: {icon}
# what Artifact Hub shows
annotations:
  artifacthub.io/category: ai-machine-learning
  artifacthub.io/license: Apache-2.0
  artifacthub.io/images: |
    - name: hami-webhook
      image: hami-webhook:{version}
  artifacthub.io/changes: |
{changes}"""

DAEMON_DESCRIPTION = """\
# Rendered by hack/render_chart.py.
apiVersion: v2
name: hami-daemon
description: HAMi-core for GPU sharing with Koordinator, and the monitor of what containers use
type: application
version: {version}
appVersion: {version}
# ValidatingAdmissionPolicy
kubeVersion: ">=1.30.0-0"
keywords: [koordinator, hami, gpu, monitoring]
"""

KINDS = {
    "Upgrading": "changed",
    "Added": "added",
    "Changed": "changed",
    "Deprecated": "deprecated",
    "Removed": "removed",
    "Fixed": "fixed",
    "Security": "security",
}
"""Artifact Hub's kinds of changes, by the headings of CHANGELOG.md."""


def render_description() -> str:
    """Chart.yaml"""
    icon = base64.b64encode((CHART / "icon.svg").read_bytes()).decode()
    log = changes((MANIFESTS.parent / "CHANGELOG.md").read_text(), __version__)
    written = yaml.safe_dump(log, sort_keys=False, allow_unicode=True, width=10_000)
    return DESCRIPTION.format(
        version=__version__, icon=f"data:image/svg+xml;base64,{icon}", changes=indent(written, "    ")
    )


def changes(changelog: str, version: str) -> list[dict[str, str]]:
    """What a version changes, as Artifact Hub has it: in plain text, without links."""
    found = []
    for heading, items in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^###? |\Z)", section(changelog, version) or ""):
        for item in re.findall(r"(?ms)^- (.*?)(?=^- |^#### |\Z)", items):
            text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(item.split()))
            found.append({"kind": KINDS[heading], "description": text})
    return found


def render_schema() -> str:
    """values.schema.json"""
    schema = without_titles(Values.model_json_schema())
    device_config = device_config_schema()
    sections = device_config.pop("$defs")
    assert not sections.keys() & schema["$defs"].keys()
    schema["$defs"] |= sections
    # an object, or the text of one, which the program alone can check
    schema["properties"]["deviceConfig"] = {**device_config, "type": ["object", "string", "null"], "default": None}
    return _schema(schema)


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


LISTS = (
    ("CLASS_RESOURCES", r"\br in (?=\[\n *'deviceclass\.)", ""),
    ("RESOURCE_NAMES", r"\br in (?!\[\nCLASS_RESOURCES)", ""),
    ("DOMAINS", "", r"\.exists\(d,"),
    ("SCHEDULERS", r"schedulerName\.orValue\(''\) in ", ""),
    ("DRIVERS", r"r\.driver in ", ""),
    ("DEVICE_CLASSES", r"deviceClassName(?:\.orValue\(''\))? in ", ""),
)
"""The placeholders of lists in conditions, each with what stands before and after its list."""


def render_conditions() -> str:
    """files/match-conditions.yaml"""
    vendors = enabled_vendors(charging_claims(builtin_device_config().config))
    lines = ["# Rendered by hack/render_chart.py.", "resourceNames:"]
    lines += [f"- {name}" for name in sorted(vendors.resource_names)]
    lines += ["domains:", *(f"- {domain}" for domain in NameSuggester(vendors).domains)]
    lines += ["drivers:", *(f"- {driver}" for driver in sorted({row.driver for row in vendors.drivers}))]
    classes = {name for row in vendors.drivers for name in row.device_classes}
    lines += ["deviceClasses:", *(f"- {name}" for name in sorted(classes))]
    lines += ["schedulers:", *(f"- {name}" for name in sorted(vendors.asked_by_annotation))]
    lines.append("matchConditions:")
    for webhook, conditions in match_conditions(vendors, stamping=True).items():
        lines.append(f"  {webhook}:")
        for name, expression in conditions.items():
            # the lists that follow from the device configuration, which the template writes in the same form
            open_list = expression
            for placeholder, begin, end in LISTS:
                open_list = re.sub(rf"({begin}\[\n)[^\]]*(\]{end})", rf"\1{placeholder}\2", open_list)
            lines += [f"  - name: {name}", "    expression: |-", indent(open_list, "      ")]
    return "\n".join(lines) + "\n"


def render_names() -> str:
    """files/names.yaml: flags of `hami-webhook serve`, sections of a device configuration, known device plugins."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_flags(parser)
    flags = sorted({flag for action in parser._actions for flag in action.option_strings})
    sections = sorted(device_config_schema()["properties"])
    names = yaml.safe_dump({"devicePlugins": list(KNOWN_PLUGINS), "flags": flags, "sections": sections})
    return f"# Rendered by hack/render_chart.py.\n{names}"


def render_alerts() -> str:
    """files/alerts.yaml: the spec of the PrometheusRule, unchanged."""
    _, _, spec = (MANIFESTS / "components" / "monitoring" / "prometheusrule.yaml").read_text().partition("\nspec:\n")
    return dedent(spec)


FILES = {
    "Chart.yaml": render_description,
    "README.md": lambda: chart_readme.render((CHART / "values.yaml").read_text()),
    "values.schema.json": render_schema,
    "files/match-conditions.yaml": render_conditions,
    "files/names.yaml": render_names,
    "files/acceleratorquotas.yaml": (MANIFESTS / "base" / "acceleratorquotas.yaml").read_text,
    "files/kube-scheduler.yaml": (MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text,
    "files/alerts.yaml": render_alerts,
    "files/device-config.yaml": (MANIFESTS / "device-config" / "device-config.yaml").read_text,
    **{f"files/dashboards/{path.name}": path.read_text for path in sorted((MANIFESTS / "dashboards").glob("*.json"))},
}

DAEMON_FILES = {
    "Chart.yaml": lambda: DAEMON_DESCRIPTION.format(version=__version__),
    "README.md": lambda: chart_readme.render_daemon((DAEMON_CHART / "values.yaml").read_text()),
    "values.schema.json": lambda: _schema(without_titles(DaemonValues.model_json_schema())),
}

if __name__ == "__main__":
    for chart, files in ((CHART, FILES), (DAEMON_CHART, DAEMON_FILES)):
        for path, render in files.items():
            (chart / path).parent.mkdir(exist_ok=True)
            (chart / path).write_text(render())
