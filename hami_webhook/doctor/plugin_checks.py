"""The check of device plugins' service accounts: who registers cards here may write allocations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.doctor.facts import Facts, Finding

_SOCKETS = "/var/lib/kubelet/device-plugins"
"""Where the kubelet takes registrations of device plugins."""
_USER = "system:serviceaccount:"


async def plugin_accounts(facts: Facts) -> AsyncIterator[Finding]:
    """On nodes with cards of ours runs a device plugin that may write what it allocates.

    A DaemonSet there may be about something else, such as network cards; so nothing is said of a node where one with a
    trusted account runs.
    """
    facts.require(Kind.NODES)
    process = await facts.process("webhook")
    if process is None:
        return
    settings, vendors = process.settings, facts.view.vendors.values()
    registrations = {vendor.registration.annotation for vendor in vendors} - {""}
    nodes = {node.name for node in facts.view.state.nodes() if not registrations.isdisjoint(node.annotations)}
    found: dict[str, str] = {}  # the DaemonSets of accounts that aren't trusted
    running: dict[str, set[str]] = {}  # their nodes
    for daemon in await facts.items("/apis/apps/v1/daemonsets") if nodes else ():
        if _serves_kubelet(daemon):
            space, name = daemon["metadata"]["namespace"], daemon["metadata"]["name"]
            account = f"{space}/{_account(daemon)}"
            on = await _nodes_of(facts, daemon)
            if f"{_USER}{account.replace('/', ':')}" in settings.trusted_users:
                nodes -= on
            else:
                found[account] = f"DaemonSet {space}/{name}"
                running.setdefault(account, set()).update(on)
    for account, subject in sorted(found.items()):
        concerned = sorted(running[account] & nodes)
        if concerned:
            yield Finding(
                subject, _fault(account, concerned), _remedy(account, settings.device_plugin_service_accounts)
            )


def _fault(account: str, nodes: list[str]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return (
        f"serves the kubelet on node {nodes[0]}{more}, which has cards of ours, and its service account {account} may "
        "not write allocations: pods with its cards don't start"
    )


def _remedy(account: str, trusted: tuple[tuple[str, str], ...]) -> str:
    value = ",".join([*(f"{namespace}/{name}" for namespace, name in trusted), account])
    return (
        f"if it is the device plugin of these cards, set HAMI_DEVICE_PLUGIN_SERVICE_ACCOUNTS={value}; "
        f"with the chart, add {account} to devicePluginServiceAccounts"
    )


def _serves_kubelet(daemon: JSON) -> bool:
    """Whether its pods mount the folder where device plugins register."""
    volumes = daemon["spec"]["template"]["spec"].get("volumes") or ()
    paths = (((each.get("hostPath") or {}).get("path") or "").rstrip("/") for each in volumes)
    return any(path in (_SOCKETS, "/var/lib/kubelet") for path in paths)


def _account(daemon: JSON) -> str:
    spec = daemon["spec"]["template"]["spec"]
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "default")


async def _nodes_of(facts: Facts, daemon: JSON) -> set[str]:
    """The nodes where its pods are."""
    labels = (daemon["spec"]["selector"].get("matchLabels") or {}).items()
    selector = quote(",".join(f"{key}={value}" for key, value in sorted(labels)))
    path = f"/api/v1/namespaces/{daemon['metadata']['namespace']}/pods?labelSelector={selector}"
    pods = await facts.items(path)
    return {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}
