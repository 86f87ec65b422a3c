"""Checks of the program's own processes: Deployments, device configuration, leaders, rights, device plugins' accounts,
the scheduler.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from importlib import resources
from urllib.parse import quote, urlsplit

import yaml

from hami_webhook.admission.identities import claims_profile
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.version import minor_version, too_old
from hami_webhook.config import ConfigError
from hami_webhook.controller.leader import lease_of
from hami_webhook.doctor.facts import Facts, Finding
from hami_webhook.doctor.installation import Installation, Process
from hami_webhook.dra.taken_resources import FILTER
from hami_webhook.kube.objects import parse_time
from hami_webhook.scheduling.kube_scheduler import KIND

_ROLES = {
    "webhook": "no replica answers reviews, and pods that request accelerators are refused",
    "controller": "quotas drift, handshakes stop and certificates end",
    "extender": "pods that request accelerators aren't placed",
}
"""What doesn't happen without a role."""
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OPTIONAL_GROUPS = ("hami.io", "scheduling.koordinator.sh", "resource.k8s.io")
CLAIMS = "dra"
"""What rights are for that charging claims takes: a section of the device configuration, and no setting."""
LENDING = "reclaim"
"""What rights are for that reclaiming takes: a field of AcceleratorQuotas, and no setting."""
_EXTENDED_RESOURCES = "DRAExtendedResource"
"""kube-scheduler's feature gate; locked from 1.37 on."""
_LATE = 2.0
"""How many times its duration a Lease may be without renewal."""
_AHEAD = 10.0
"""Seconds by which clocks may differ."""
_RENEWING = (
    ("kube-node-lease", "node", ""),
    ("kube-system", "API server", "apiserver.kubernetes.io/identity"),
)
"""Namespaces of Leases, whose machines renew them, and the label of those Leases, empty for all."""
_RENEWED_EVERY = 10.0
"""Seconds after which kubelets and API servers renew their Leases."""


async def api_server(facts: Facts) -> AsyncIterator[Finding]:
    """The API server knows what our manifests use."""
    problem = too_old(await facts.api.version())
    if problem:
        yield Finding("the API server", problem, "upgrade the cluster, or delete the webhook configurations")


async def deployments(facts: Facts) -> AsyncIterator[Finding]:
    """Every role has a Deployment whose replicas are ready."""
    installation = await facts.installation()
    for name, fault in installation.faults.items():
        yield Finding(f"Deployment {facts.system}/{name}", f"its settings can't be used: {fault}", "correct its args")
    # where HAMi's own scheduler places pods, no replica of ours has the extender's role
    for role in ("webhook", "controller"):
        if installation.process(role) is None and not installation.faults:
            fault = f"none runs the {role}: {_ROLES[role]}"
            yield Finding(
                f"Deployments in {facts.system}", fault, "apply the manifests again, or name another namespace"
            )
    for process in _one_each(installation.processes):
        wanted = process.deployment["spec"].get("replicas", 1)
        ready = (process.deployment.get("status") or {}).get("readyReplicas") or 0
        if wanted == 0 or ready < wanted:
            lost = "; ".join(text for role, text in _ROLES.items() if role in process.settings.roles)
            state = f"only {ready} of {wanted} replicas are ready" if ready else f"none of {wanted} replicas is ready"
            fault = "is scaled to 0 replicas" if wanted == 0 else state + await _pod_faults(facts, process)
            remedy = "scale it up" if wanted == 0 else "look at the pods' events and logs"
            yield Finding(f"Deployment {facts.system}/{process.name}", fault if ready else f"{fault}: {lost}", remedy)


def _one_each(processes: Iterable[Process]) -> Iterator[Process]:
    """The first process of each Deployment."""
    return iter({process.name: process for process in reversed(list(processes))}.values())


async def _pod_faults(facts: Facts, process: Process) -> str:
    """Why pods of a Deployment aren't ready, as kubelet says it."""
    labels = process.deployment["spec"]["selector"].get("matchLabels") or {}
    pods = await facts.items(f"/api/v1/namespaces/{facts.system}/pods")
    found = {
        f"{container['name']}: {waiting['reason']}"
        for pod in pods
        if labels.items() <= (pod["metadata"].get("labels") or {}).items()
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if (waiting := (container.get("state") or {}).get("waiting"))
    }
    return f" ({', '.join(sorted(found))})" if found else ""


async def versions(facts: Facts) -> AsyncIterator[Finding]:
    """All processes run the same image."""
    images: dict[str, set[str]] = defaultdict(set)
    for process in (await facts.installation()).processes:
        images[str(process.container["image"])].add(process.name)
    if len(images) > 1:
        listed = "; ".join(f"{image}: {', '.join(sorted(names))}" for image, names in sorted(images.items()))
        yield Finding(f"Deployments in {facts.system}", f"run different images ({listed})", "finish the upgrade")


async def device_configuration(facts: Facts) -> AsyncIterator[Finding]:
    """All processes read the same device configuration, which can be used."""
    installation = await facts.installation()
    texts: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for process in installation.processes:
        path = process.settings.device_config_file
        found = installation.file(process.pod_spec, process.container, path) if path else ("", "")
        if found is None:
            fault = f"no ConfigMap of {facts.system} has {path}, so it can't restart"
            yield Finding(f"Deployment {facts.system}/{process.name}", fault, "apply the manifests again")
            continue
        texts[found[1], process.settings.ignored_sections].append(process.name)
    for process in installation.processes:
        try:
            installation.device_config(process)
        except ConfigError as error:
            yield Finding(
                "device-config.yaml", f"can't be used: {error}", "correct it; hami-webhook config check helps"
            )
            return
    if len(texts) > 1:
        groups = "; ".join(", ".join(sorted(set(names))) for names in texts.values())
        fault = f"isn't the same for all, or not the same sections are enabled ({groups})"
        yield Finding("device-config.yaml", fault, "give all Deployments the same ConfigMap and --enable flags")


async def leaders(facts: Facts) -> AsyncIterator[Finding]:
    """A replica of the controller leads, and one of kube-scheduler."""
    controller = await facts.process("controller")
    leases: list[tuple[str, str]] = []
    if controller is not None and controller.settings.leader_elect:
        leases.append(lease_of(controller.settings))
    configuration = await _scheduler_configuration(facts)
    election = (configuration or {}).get("leaderElection") or {}
    if election.get("leaderElect", True) and election.get("resourceName"):
        leases.append((election.get("resourceNamespace") or "kube-system", election["resourceName"]))
    for namespace, name in leases:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        lease, before, after = await facts.timed(facts.get(path))
        fault = "is missing: no replica leads" if lease is None else _lease_fault(lease["spec"], before, after)
        if fault:
            remedy = "look at the logs of the replicas that compete for it, and at the clocks of their nodes"
            yield Finding(f"Lease {namespace}/{name}", fault, remedy)


def _lease_fault(spec: JSON, before: float, after: float) -> str:
    """What is wrong with a Lease that was read between two times of the API server's clock."""
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return "has no holder: no replica leads"
    at, life = parse_time(renewed), float(spec.get("leaseDurationSeconds") or 15)
    if before - at > _LATE * life:
        return f"was renewed {before - at:.0f} s ago by {holder}: no replica leads"
    ahead = at - after
    return f"is renewed {ahead:.0f} s in the future by {holder}: its node's clock is ahead" if ahead > _AHEAD else ""


async def clocks(facts: Facts) -> AsyncIterator[Finding]:
    """The clocks of nodes and API servers are the answering API server's."""
    renewed, before, after = await facts.timed(_renewals(facts))
    off = {name: f"{at - after:.0f} s ahead of" for name, at in renewed.items() if at - after > _AHEAD}
    late = {name for name, at in renewed.items() if before - at > _RENEWED_EVERY + _AHEAD}
    if late:  # stopped, or alive and behind: then the next renewal, which was stored after `before`, is older than that
        await facts.sleep(_RENEWED_EVERY + 1)
        for name, at in (await _renewals(facts)).items():
            if name in late and at != renewed[name] and before - at > _AHEAD:
                off[name] = f"at least {before - at:.0f} s behind"
    for name, text in sorted(off.items()):
        fault = f"its clock is {text} the API server's: handshakes, locks and certificates are misread"
        yield Finding(name, fault, "let it keep time (chrony, ntp)")


async def _renewals(facts: Facts) -> dict[str, float]:
    """When machines renewed their Leases last (Unix seconds), by what the machine is and its name."""
    found = {}
    for namespace, what, label in _RENEWING:
        for lease in await facts.items_now(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"):
            renewed = lease["spec"].get("renewTime")
            if renewed and (not label or label in (lease["metadata"].get("labels") or {})):
                found[f"{what} {lease['metadata']['name']}"] = parse_time(renewed)
    return found


async def rights(facts: Facts) -> AsyncIterator[Finding]:
    """The service accounts have the rights that the manifests give them, as far as this configuration needs them."""
    installation = await facts.installation()
    listed: list[JSON] = json.loads(resources.files("hami_webhook.doctor").joinpath("rights.json").read_text())
    # kinds of others, and those whose definition is a choice: where they aren't served, nobody reads them
    unserved = {group for group in _OPTIONAL_GROUPS if await facts.get(f"/apis/{group}") is None}
    needed: dict[str, dict[str, JSON]] = {}
    for right in listed:
        process = installation.process(right["role"])
        group = "hami.io" if right["setting"] == LENDING else right["group"]
        if process is not None and group not in unserved and _uses(facts, process, right["setting"]):
            named = {**right, "name": right["name"] and _names(process).get(right["resource"], right["name"])}
            needed.setdefault(process.service_account, {})[_spoken(named)] = named
    remedy = "apply the manifests again, or in HAMi's own chart manifests/in-hami-chart/rbac.yaml: they have its rights"
    for account, rights_of_it in needed.items():
        answers = await asyncio.gather(*(_may(facts, account, right) for right in rights_of_it.values()))
        lacking = [text for text, allowed in zip(rights_of_it, answers, strict=True) if not allowed]
        if lacking:
            yield Finding(f"ServiceAccount {facts.system}/{account}", f"may not {', '.join(lacking)}", remedy)


def _uses(facts: Facts, process: Process, name: str) -> bool:
    """Whether a setting is on that a right is for; "" is for rights that every configuration needs."""
    if name == CLAIMS:
        return facts.effective.charges_claims
    return name in ("", LENDING) or getattr(process.settings, name) not in (False, "", "off")


def _names(process: Process) -> Mapping[str, str]:
    """What the objects of the controller's rights are called here."""
    settings = process.settings
    if "controller" not in settings.roles:
        return {}
    configuration = settings.webhook_configuration
    return {
        "secrets": settings.certificate_secret,
        "leases": lease_of(settings)[1],
        "mutatingwebhookconfigurations": configuration,
        "validatingwebhookconfigurations": configuration,
    }


async def _may(facts: Facts, account: str, right: JSON) -> bool:
    resource, _, subresource = right["resource"].partition("/")
    attributes = {
        "verb": right["verb"],
        "group": right["group"],
        "resource": resource,
        "subresource": subresource,
        "name": right["name"],
        "namespace": facts.system if right["namespaced"] else "",
    }
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{facts.system}"]
    user = f"system:serviceaccount:{facts.system}:{account}"
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool((await facts.api.call("POST", _REVIEWS, review))["status"].get("allowed"))


def _spoken(right: Mapping[str, str]) -> str:
    group = f".{right['group']}" if right["group"] else ""
    return f"{right['verb']} {right['resource']}{group}{' ' if right['name'] else ''}{right['name']}"


async def scheduler(facts: Facts) -> AsyncIterator[Finding]:
    """The kube-scheduler next to the extender has the profile that pods name, and calls the extender."""
    process = await facts.process("extender")
    document = await _scheduler_configuration(facts)
    if process is None:
        return
    subject = f"the kube-scheduler of Deployment {facts.system}/{process.name}"
    if document is None:
        yield Finding(subject, f"no ConfigMap has its {KIND}", "apply the manifests again")
        return
    name = facts.effective.settings.scheduler_name
    profiles = [each.get("schedulerName") or "default-scheduler" for each in document.get("profiles") or [{}]]
    if name and name not in profiles:
        fault = f"has the profiles {', '.join(profiles)}, and pods name {name}: nobody schedules them"
        yield Finding(subject, fault, "give its configuration a profile of this name, and restart it")
    if name and claims_profile(name) not in profiles and await _renames(facts):
        fault = f"has no profile {claims_profile(name)}: pods that request cards and have ResourceClaims never start"
        yield Finding(subject, fault, "give its configuration both profiles of our manifests, and restart it")
    on_main = process.settings.http_bind if process.settings.extender_on_main else None
    ports = {each.port for each in (process.settings.extender_bind_address, on_main) if each is not None}
    calling = [each for each in document.get("extenders") or () if urlsplit(each.get("urlPrefix") or "").port in ports]
    if not calling:
        fault = f"calls no extender on port {' or '.join(map(str, sorted(ports)))}: pods get no cards"
        yield Finding(subject, fault, "give its configuration the extender of our manifests, and restart it")
    for extender in calling:
        lacking = [verb for verb in ("filterVerb", "bindVerb") if not extender.get(verb)]
        managed = {each["name"] for each in extender.get("managedResources") or ()}
        foreign = facts.effective.vendors.ignored_by_scheduler - managed if managed else ()
        if lacking:
            yield Finding(subject, f"its extender has no {', '.join(lacking)}", "apply the manifests again")
        if foreign:
            fault = f"its extender's managedResources lack {', '.join(sorted(foreign))}"
            yield Finding(subject, fault, "leave managedResources out, so that they are filled in, and restart it")


async def _renames(facts: Facts) -> bool:
    """Whether pods with claims get the profile for them: on the path of our manifests, not on HAMi's."""
    process = await facts.process("webhook")
    return process is not None and bool(process.settings.webhook_configuration)


async def filtered_profile(facts: Facts) -> str:
    """The profile for pods with limits if its filter of claims looks at extended resources; empty if it doesn't, or if
    that isn't known.
    """
    process = await facts.process("extender")
    document = await _scheduler_configuration(facts)
    if process is None or document is None or not await _takes_extended_resources(facts, process):
        return ""
    name = facts.effective.settings.scheduler_name or "default-scheduler"
    for profile in document.get("profiles") or [{}]:
        if (profile.get("schedulerName") or "default-scheduler") == name:
            points = [(profile.get("plugins") or {}).get(point) or {} for point in ("filter", "multiPoint")]
            off = {each.get("name") for point in points for each in point.get("disabled") or ()}
            return f"profile {name}" if off.isdisjoint((FILTER, "*")) else ""
    return ""


async def _takes_extended_resources(facts: Facts, process: Process) -> bool:
    """Whether the kube-scheduler beside a process makes claims for extended resources: by its flag, or its version."""
    containers = process.pod_spec.get("containers") or ()
    words = " ".join(word for each in containers for word in (*(each.get("command") or ()), *(each.get("args") or ())))
    written = {value: f"{_EXTENDED_RESOURCES}={value}" in words for value in ("true", "false")}
    version = minor_version(await facts.api.version()) or (1, 36)
    return written["true"] or (not written["false"] and version >= (1, 36))


async def _scheduler_configuration(facts: Facts) -> JSON | None:
    """The KubeSchedulerConfiguration in a ConfigMap that the extender's pods mount."""
    process = await facts.process("extender")
    installation = await facts.installation()
    for text in _mounted(process, installation) if process is not None else ():
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            continue
        if isinstance(document, dict) and document.get("kind") == KIND:
            return document
    return None


def _mounted(process: Process, installation: Installation) -> Iterator[str]:
    """The files in the ConfigMaps that a process's pods mount."""
    for volume in process.pod_spec.get("volumes") or ():
        name = (volume.get("configMap") or {}).get("name", "")
        if name in installation.config_maps:
            yield from (installation.config_maps[name].get("data") or {}).values()


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
                subject, _plugin_fault(account, concerned), _remedy(account, settings.device_plugin_service_accounts)
            )


def _plugin_fault(account: str, nodes: list[str]) -> str:
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
