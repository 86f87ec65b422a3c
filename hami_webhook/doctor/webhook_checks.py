"""Checks of the way from the API server to the webhook: configurations, certificates, Service, network, admission."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network

from msgspec import Struct

from hami_webhook import pki
from hami_webhook.admission.review import REPORT_SOURCE, REVIEWED_FROM
from hami_webhook.cluster.api import JSON, ClusterError, Forbidden
from hami_webhook.controller.match_conditions import CLAIMING_PODS
from hami_webhook.controller.webhooks import CONFIGURATIONS, edits_of, wanted_conditions, webhooks_of
from hami_webhook.doctor.facts import Facts, Finding
from hami_webhook.doctor.installation import Process

_APPLY = "apply the manifests again"
_SOON = 0.1
"""The share of a certificate's life from which its end is reported: every keeper renews earlier."""


class Hook(Struct, frozen=True):
    """A webhook of a configuration of ours."""

    configuration: str
    definition: JSON

    @property
    def service(self) -> tuple[str, str, int] | None:
        """The namespace, name and port of its Service; None if it is called by a URL."""
        found = (self.definition.get("clientConfig") or {}).get("service")
        return None if found is None else (found["namespace"], found["name"], int(found.get("port") or 443))

    @property
    def authorities(self) -> bytes:
        """Its caBundle, empty if it can't be decoded."""
        try:
            return base64.b64decode((self.definition.get("clientConfig") or {}).get("caBundle") or "", validate=True)
        except ValueError:
            return b""


async def _configurations(facts: Facts) -> AsyncIterator[tuple[str, str, JSON | None, str]]:
    """Our configurations, each with its kind's plural and name, and what differs in it from the manifests."""
    process = await facts.process("controller") or await facts.process("webhook")
    name = process.settings.webhook_configuration if process is not None else ""
    claims = bool(facts.effective.vendors.drivers)
    for kind, word in CONFIGURATIONS.items() if name else ():
        found = await facts.get(f"/apis/admissionregistration.k8s.io/v1/{kind.value}/{name}")
        yield word, name, found, "" if found is None else edits_of(kind, found, claims=claims)


async def _hooks(facts: Facts) -> list[Hook]:
    return [
        Hook(f"{word} {name}", hook)
        async for word, name, found, _ in _configurations(facts)
        if found is not None
        for hook in webhooks_of(found)
    ]


async def configurations(facts: Facts) -> AsyncIterator[Finding]:
    """Both configurations are there, and as the manifests have them."""
    async for word, name, found, edits in _configurations(facts):
        if found is None:
            fault = "is missing: the API server sends no reviews, and pods get neither a charge nor a scheduler"
            yield Finding(f"{word} {name}", fault, _APPLY)
        elif edits:
            yield Finding(f"{word} {name}", edits, _APPLY)


async def conditions(facts: Facts) -> AsyncIterator[Finding]:
    """The API server sends the pods that the device configuration is about."""
    wanted = wanted_conditions(facts.effective.vendors, labels=facts.view.caches.accelerator_quotas.counted_labels)
    wanted.pop(CLAIMING_PODS, None)  # which has what DeviceClasses take, too
    differing: dict[str, list[str]] = {}
    for hook in await _hooks(facts):
        name = str(hook.definition.get("name"))
        if name in wanted and hook.definition.get("matchConditions") != wanted[name]:
            differing.setdefault(hook.configuration, []).append(name)
    if differing:
        names = "; ".join(f"{configuration}: {', '.join(hooks)}" for configuration, hooks in differing.items())
        fault = f"differ from those of the device configuration ({names}): pods that it names aren't reviewed"
        remedy = "restart the Deployments, so that the controller corrects them by the configuration that it then reads"
        yield Finding("matchConditions", fault, remedy)


async def bundles(facts: Facts) -> AsyncIterator[Finding]:
    """The API server trusts the certificate that the webhook serves."""
    now = datetime.fromtimestamp(facts.now, UTC)
    hooks = [hook for hook in await _hooks(facts) if hook.service is not None]
    without = [hook for hook in hooks if not pki.valid_authorities(hook.authorities, now)]
    if without:
        fault = "caBundle has no valid authority: the API server refuses every review"
        yield Finding(_configurations_of(without), fault, _inject(await _keeper(facts)))
    if without or not hooks:
        return
    secret = await _secret(facts)
    data = _data(secret) if secret is not None else {}
    pair = pki.KeyPair(data.get(pki.SERVING_CERTIFICATE, b""), data.get(pki.SERVING_KEY, b""))
    distrusting = [hook for hook in hooks if not _trusted(pair, hook, now)]
    if secret is None or not distrusting or _certificate_fault(pair, hooks[0], now):
        return
    fault = f"caBundle doesn't have the authority of the certificate in Secret {secret['metadata']['name']}"
    fault += ": the API server refuses every review"
    yield Finding(_configurations_of(distrusting), fault, _inject(await _keeper(facts)))


def _configurations_of(hooks: Iterable[Hook]) -> str:
    return ", ".join(dict.fromkeys(hook.configuration for hook in hooks))


async def certificate(facts: Facts) -> AsyncIterator[Finding]:
    """The certificate in the Secret is for the Service, and doesn't end soon."""
    process, hooks = await facts.process("webhook"), await _hooks(facts)
    name = _secret_name(process) if process is not None else ""
    hook = next((hook for hook in hooks if hook.service is not None), None)
    if not name or hook is None:
        return
    subject = f"Secret {facts.system}/{name}"
    secret = await _secret(facts)
    if secret is None:
        yield Finding(subject, "is missing, and the webhook doesn't start without it", await _keeper(facts))
        return
    data, now = _data(secret), datetime.fromtimestamp(facts.now, UTC)
    pair = pki.KeyPair(data.get(pki.SERVING_CERTIFICATE, b""), data.get(pki.SERVING_KEY, b""))
    fault = _certificate_fault(pair, hook, now)
    if fault:
        yield Finding(subject, fault, await _keeper(facts))
    elif pki.needs_renewal(pair.certificate, now, _SOON):
        end = pki.read_lifetime(pair.certificate).not_after
        yield Finding(subject, f"the serving certificate ends at {end:%Y-%m-%dT%H:%MZ}", await _keeper(facts))


def _certificate_fault(pair: pki.KeyPair, hook: Hook, now: datetime) -> str:
    """What is wrong with a serving pair, by any authority; empty if nothing."""
    assert hook.service is not None
    namespace, service, _ = hook.service
    try:
        pki.check_names(pair, service, namespace)
        if pki.read_lifetime(pair.certificate).remaining(now) <= 0:
            return "the serving certificate has expired"
    except pki.PkiError as error:
        return str(error)
    return ""


def _trusted(pair: pki.KeyPair, hook: Hook, now: datetime) -> bool:
    """Whether an authority of the hook's bundle signed the pair."""
    assert hook.service is not None
    namespace, service, _ = hook.service
    for authority in pki.valid_authorities(hook.authorities, now):
        try:
            pki.check_serving(pair, authority, service, namespace)
        except pki.PkiError:
            continue
        return True
    return False


def _secret_name(process: Process) -> str:
    """The Secret that a process mounts its certificate from, empty if there is none."""
    volumes = {each["name"]: each for each in process.pod_spec.get("volumes") or ()}
    for mount in process.container.get("volumeMounts") or ():
        if process.settings.cert_file.startswith(mount["mountPath"].rstrip("/") + "/"):
            return str((volumes.get(mount["name"], {}).get("secret") or {}).get("secretName") or "")
    return ""


async def _secret(facts: Facts) -> JSON | None:
    process = await facts.process("webhook")
    name = _secret_name(process) if process is not None else ""
    return await facts.get(f"/api/v1/namespaces/{facts.system}/secrets/{name}") if name else None


async def _keeper(facts: Facts) -> str:
    """Who is to be asked for a certificate."""
    controller = await facts.process("controller")
    if controller is not None and controller.settings.certificate_secret:
        return f"look at the log of Deployment {controller.name}, which makes it"
    return "look at the Certificate and at cert-manager's log, or at the program that creates it"


def _inject(keeper: str) -> str:
    return f"{keeper} and writes its authority into caBundle"


def _data(secret: JSON) -> Mapping[str, bytes]:
    return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}


async def service(facts: Facts) -> AsyncIterator[Finding]:
    """The Service that the API server calls has replicas behind it."""
    for namespace, name, port in sorted({hook.service for hook in await _hooks(facts) if hook.service is not None}):
        subject = f"Service {namespace}/{name}"
        found = await facts.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        if found is None:
            yield Finding(subject, "is missing: the API server reaches no replica", _APPLY)
        elif port not in (each["port"] for each in found["spec"].get("ports") or ()):
            yield Finding(subject, f"has no port {port}, which the API server calls", _APPLY)
        elif not await _ready_addresses(facts, namespace, name):
            selector = ",".join(f"{key}={text}" for key, text in (found["spec"].get("selector") or {}).items())
            fault = f"has no ready endpoint: its selector {selector or '(none)'} finds no ready pod"
            yield Finding(subject, fault, f"{_APPLY}; the selector must be the labels of the webhook's pods")


async def _ready_addresses(facts: Facts, namespace: str, name: str) -> list[str]:
    slices = await facts.items(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
    return [
        address
        for each in slices
        if (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == name
        for endpoint in each.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
        for address in endpoint.get("addresses") or ()
    ]


async def network_policy(facts: Facts) -> AsyncIterator[Finding]:
    """No NetworkPolicy keeps the API server from the webhook."""
    process = await facts.process("webhook")
    if process is None:
        return
    applying, rules = await _ingress(facts, process)
    if applying and not any(_is_outside(rule) for rule in rules):
        port, listed = process.settings.http_bind.port, ", ".join(each["metadata"]["name"] for each in applying)
        fault = f"none of them lets the API server in on port {port} of {process.name}: reviews time out"
        remedy = f"allow ingress on port {port} without from, or from an ipBlock with the API servers' addresses"
        yield Finding(f"NetworkPolicy {facts.system}/{listed}", fault, remedy)


async def _ingress(facts: Facts, process: Process) -> tuple[list[JSON], list[JSON]]:
    """The NetworkPolicies that select a process's pods for ingress, and of their rules those for its port."""
    labels = process.deployment["spec"]["template"]["metadata"].get("labels") or {}
    policies = await facts.items(f"/apis/networking.k8s.io/v1/namespaces/{facts.system}/networkpolicies")
    applying = [
        each
        for each in policies
        if "Ingress" in (each["spec"].get("policyTypes") or ["Ingress"])
        and _selects(each["spec"].get("podSelector") or {}, labels)
    ]
    port = process.settings.http_bind.port
    ports = {port, *(each["name"] for each in process.container.get("ports") or () if each["containerPort"] == port)}
    rules = [rule for each in applying for rule in each["spec"].get("ingress") or ()]
    return applying, [rule for rule in rules if _is_for(rule, ports)]


async def review_sources(facts: Facts) -> AsyncIterator[Finding]:
    """Reviews are accepted from the API server alone (docs/api-server-authentication.md)."""
    process = await facts.process("webhook")
    if process is None or process.settings.client_ca_file or process.settings.api_server_cidrs:
        return
    applying, rules = await _ingress(facts, process)
    if applying and not any(_admits_anybody(rule) for rule in rules):
        return
    servers = sorted({*await _ready_addresses(facts, "default", "kubernetes")}, key=ip_address)
    source = await _review_source(facts)
    fault = "accepts reviews from any address, so anybody can tie up the quota of any namespace"
    if source and servers and source not in servers:
        fault += f". This check's review came from {source}, not from an API server's address ({', '.join(servers)}): "
        fault += "API servers are behind NAT, or a proxy"
    networks = [str(ip_network(each)) for each in (*servers, *({source} - {"", *servers}))]
    remedy = "name the API servers' addresses: docs/api-server-authentication.md"
    if networks:
        quoted = ", ".join(f'"{each}"' for each in networks)
        remedy = f"make deploy API_SERVER_CIDRS={','.join(networks)}\n"
        remedy += f"or, with the chart, the value apiServerCIDRs: [{quoted}]"
    yield Finding(f"Deployment {facts.system}/{process.name}", fault, remedy, advice=True)


async def _review_source(facts: Facts) -> str:
    """Where the review of a pod in a dry run comes from, as the webhook sees it; empty if that isn't known."""
    vendor = next(iter(facts.effective.vendors.values()), None)
    if vendor is None:
        return ""
    pod = _pod(vendor.count_name)
    pod["metadata"]["annotations"] = {REPORT_SOURCE: "true"}
    try:
        warnings = await facts.api.try_creating(f"/api/v1/namespaces/{_reviewed_namespace(facts)}/pods", pod)
    except ClusterError:  # `admission` says why
        return ""
    found = (text.removeprefix(REVIEWED_FROM) for text in warnings if text.startswith(REVIEWED_FROM))
    return next(found, "")


def _reviewed_namespace(facts: Facts) -> str:
    """The user's namespace, or `default` where its pods aren't reviewed."""
    left_out = facts.namespace in (facts.system, "kube-system") or _opted_out(facts, facts.namespace)
    return "default" if left_out else facts.namespace


def _selects(selector: JSON, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches; one with expressions is taken to, as its labels do."""
    return (selector.get("matchLabels") or {}).items() <= labels.items()


def _is_for(rule: JSON, ports: set[int | str]) -> bool:
    listed = rule.get("ports")
    return not listed or any(_covers(each, ports) for each in listed)


def _is_outside(rule: JSON) -> bool:
    """Whether a rule admits addresses outside the network of pods."""
    sources = rule.get("from")
    return not sources or any("ipBlock" in each for each in sources)


def _admits_anybody(rule: JSON) -> bool:
    sources = rule.get("from")
    return not sources or any(each.get("ipBlock", {}).get("cidr") in ("0.0.0.0/0", "::/0") for each in sources)


def _covers(listed: JSON, ports: set[int | str]) -> bool:
    port = listed.get("port")
    if port is None or port in ports:
        return True
    last = listed.get("endPort")
    return last is not None and any(isinstance(each, int) and port <= each <= last for each in ports)


async def admission(facts: Facts) -> AsyncIterator[Finding]:
    """A pod that is created in a dry run is reviewed and gets its scheduler."""
    vendors = facts.effective.vendors
    present = {key for view in facts.view.state.views() for key in view.inventories}
    vendor = next((each for key, each in vendors.items() if key in present), next(iter(vendors.values()), None))
    if vendor is None:
        return
    namespace = _reviewed_namespace(facts)
    path = f"/api/v1/namespaces/{namespace}/pods"
    subject = f"a pod that asks for {vendor.count_name}, created in namespace {namespace} in a dry run"
    try:
        stored = await facts.api.call("POST", path, _pod(vendor.count_name), {"dryRun": "All"})
    except Forbidden as error:
        if "webhook.hami.io" not in str(error) or "denied the request" not in str(error):
            raise  # refused by rights, or by somebody else's admission
    except ClusterError as error:
        yield Finding(subject, f"is refused: {error}", "look at the log of the webhook's replicas at this time")
    else:
        wanted, found = facts.effective.settings.scheduler_name, stored["spec"].get("schedulerName")
        if wanted and found != wanted:
            fault = f"gets the scheduler {found} and not {wanted}: nobody reviewed it"
            yield Finding(subject, fault, f"look for the label hami.io/webhook=ignore on namespace {namespace}")


def _pod(resource: str) -> JSON:
    """A pod that the strictest of Pod Security's levels admits."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "securityContext": security}
    container["resources"] = {"limits": {resource: "1"}}
    meta = {"generateName": "hami-doctor-"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


async def opted_out(facts: Facts) -> AsyncIterator[Finding]:
    """Namespaces with a quota of accelerators are reviewed."""
    for namespace, quota in _limiting(facts):
        if _opted_out(facts, namespace):
            fault = f"has the label hami.io/webhook=ignore, so its quota {quota} isn't enforced"
            yield Finding(f"Namespace {namespace}", fault, "take the label away, or the quota")


def _opted_out(facts: Facts, name: str) -> bool:
    namespace = facts.view.caches.namespaces.get(name)
    return namespace is not None and namespace.labels.get("hami.io/webhook") == "ignore"


def _limiting(facts: Facts) -> Iterator[tuple[str, str]]:
    """The namespaces and names of quotas that limit accelerators."""
    keys = facts.effective.vendors.quota_keys
    for quota in facts.view.caches.all_quotas():
        if not keys.keys().isdisjoint(quota.hard):
            yield quota.namespace, quota.name
