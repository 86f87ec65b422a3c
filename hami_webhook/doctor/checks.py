"""The checks in their order, from the webhook configuration to a bound pod, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins

from hami_webhook.cluster.api import Forbidden
from hami_webhook.doctor import claim_checks, cluster_checks, process_checks, webhook_checks
from hami_webhook.doctor.facts import Diagnostic, Facts, Finding
from hami_webhook.kube.message_text import counted

_PROCESSES = ("deployments", "device-configuration", "rights")
_REVIEWS = ("webhook-configurations", "certificate", "ca-bundle", "service", "network-policy", "match-conditions")

CHECKS = (
    Diagnostic("api-server", "the API server's version", process_checks.api_server),
    Diagnostic("deployments", "Deployments and their replicas", process_checks.deployments),
    Diagnostic("versions", "the images of all processes", process_checks.versions),
    Diagnostic(
        "device-configuration", "the device configuration of all processes", process_checks.device_configuration
    ),
    Diagnostic("rights", "rights of the service accounts", process_checks.rights),
    Diagnostic("webhook-configurations", "webhook configurations and their rules", webhook_checks.configurations),
    Diagnostic(
        "match-conditions",
        "conditions of the webhooks, against the device configuration",
        webhook_checks.conditions,
        ("device-configuration",),
    ),
    Diagnostic("certificate", "the webhook's certificate", webhook_checks.certificate),
    Diagnostic("ca-bundle", "the authority that the API server trusts", webhook_checks.bundles, ("certificate",)),
    Diagnostic("service", "the Service and its endpoints", webhook_checks.service, ("deployments",)),
    Diagnostic("network-policy", "network policies before the webhook", webhook_checks.network_policy),
    Diagnostic("review-sources", "the allowed senders of reviews", webhook_checks.review_sources),
    Diagnostic("admission", "a pod in a dry run", webhook_checks.admission, (*_PROCESSES, *_REVIEWS)),
    Diagnostic("namespaces", "namespaces that aren't reviewed", webhook_checks.opted_out),
    Diagnostic("clocks", "clocks of nodes and API servers", process_checks.clocks),
    Diagnostic("scheduler", "kube-scheduler's profile and extender", process_checks.scheduler, ("deployments",)),
    Diagnostic("leaders", "leader elections", process_checks.leaders, (*_PROCESSES, "scheduler")),
    Diagnostic("registrations", "registrations of device plugins", cluster_checks.registrations),
    Diagnostic("cards", "the health of cards", cluster_checks.cards),
    Diagnostic("handshakes", "handshakes with device plugins", cluster_checks.handshakes),
    Diagnostic(
        "plugin-accounts", "service accounts of device plugins", process_checks.plugin_accounts, ("deployments",)
    ),
    Diagnostic("managers", "GPU managers on each node", cluster_checks.managers),
    Diagnostic(
        "device-classes",
        "DeviceClasses that take resources of limits",
        claim_checks.device_classes,
        ("device-configuration", "deployments"),
    ),
    Diagnostic(
        "claims",
        "the API, drivers and classes of ResourceClaims",
        claim_checks.claims,
        ("device-configuration", "webhook-configurations"),
    ),
    Diagnostic("node-locks", "locks of nodes", cluster_checks.node_locks, ("clocks",)),
    Diagnostic(
        "quota-limits",
        "keys and limits of quotas",
        cluster_checks.quota_limits,
        ("device-configuration", "match-conditions"),
    ),
    Diagnostic("quota-definition", "the definition of AcceleratorQuotas", cluster_checks.quota_definition),
    Diagnostic(
        "quota-drift", "used of quotas, against their pods", cluster_checks.quota_drift, (*_PROCESSES, "leaders")
    ),
    Diagnostic("idle", "figures of pods whose quotas limit idleness", cluster_checks.idle_pods),
    Diagnostic("allocations", "allocations written on pods", cluster_checks.allocations),
)


class CheckResult(Struct, frozen=True):
    """What came of a check: `findings` are faults, `advice` what works and could be better. `unseen` says which right
    was lacking, `skipped` after which checks it wasn't made.
    """

    check: str
    what: str
    findings: Sequence[Finding] = ()
    advice: Sequence[Finding] = ()
    unseen: str = ""
    skipped: Sequence[str] = ()


class Diagnosis(Struct, frozen=True):
    """All checks of an installation."""

    results: Sequence[CheckResult]

    @property
    def healthy(self) -> bool:
        """Whether no check found a fault."""
        return not self.faults

    @property
    def faults(self) -> int:
        """How many faults were found; advice isn't one."""
        return sum(len(result.findings) for result in self.results)

    @property
    def unseen(self) -> Sequence[str]:
        """The checks that lacked rights."""
        return [result.check for result in self.results if result.unseen]

    @property
    def summary(self) -> str:
        """How many checks and faults; first, how many of the checks lacked rights."""
        checks, faults = counted(len(self.results), "check"), counted(self.faults, "fault")
        skipped = sum(bool(result.skipped) for result in self.results)
        text = f"{checks}, {faults}"
        if self.unseen:
            text = f"{len(self.unseen)} of {checks} can't see everything with your rights; {faults} in the rest"
        return f"{text}; {counted(skipped, 'check')} skipped, because faults explain their results" if skipped else text

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON values."""
        return {"healthy": self.healthy, "checks": [_plain(result) for result in self.results]}


def _plain(result: CheckResult) -> dict[str, Any]:
    """Plain values, in which a finding's place says whether it is advice."""
    found: dict[str, Any] = to_builtins(result)
    for finding in (*found["findings"], *found["advice"]):
        del finding["advice"]
    return found


async def diagnose(facts: Facts, checks: Sequence[Diagnostic] = CHECKS) -> Diagnosis:
    """Make all checks. Raises `ClusterError` for anything but lacking rights."""
    results: dict[str, CheckResult] = {}
    for check in checks:
        explained = [name for name in check.after if name in results and results[name].findings]
        results[check.name] = await _made(check, facts) if not explained else _skipped(check, explained)
    return Diagnosis(list(results.values()))


async def _made(check: Diagnostic, facts: Facts) -> CheckResult:
    faults: list[Finding] = []
    advice: list[Finding] = []
    unseen = ""
    try:
        async for finding in check.find(facts):
            (advice if finding.advice else faults).append(finding)
    except Forbidden as error:
        unseen = str(error)
    return CheckResult(check.name, check.what, faults, advice, unseen)


def _skipped(check: Diagnostic, explained: Sequence[str]) -> CheckResult:
    return CheckResult(check.name, check.what, skipped=explained)
