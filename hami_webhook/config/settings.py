"""The settings of `serve`, resolved once into plain values: a flag wins over the environment, which wins over the
default.

A variable that is set but empty counts as not set, because that is what a manifest with an empty value means.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_webhook.config.devices import SECTION_SWITCHES
from hami_webhook.config.errors import ConfigError, quoted
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.config.setting_table import KLOG_SWITCHES, KLOG_VALUES, OLD_SWITCHES, OLD_VALUES, SETTINGS, Setting
from hami_webhook.config.setting_values import CARD_POLICIES, NODE_POLICIES, Identities, Network, ServiceAccount, listed

_IGNORED = "ignored_flags"
_KLOG = "klog_flags"
_TO_STANDARD_ERROR = ("--logtostderr", "--alsologtostderr")

_ACCOUNTS = tuple(setting.name for setting in SETTINGS if setting.name.endswith("_service_accounts"))
"""The settings that are service accounts, where a name without a namespace is one of this pod's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `serve` runs with. Durations are seconds, sizes bytes; an empty path or name is "not given"."""

    roles: frozenset[str]
    device_config_file: str
    policy_file: str
    kubeconfig: str
    http_bind: ListenAddress
    metrics_bind_address: ListenAddress
    extender_bind_address: ListenAddress | None
    extender_mode: str
    extender_client_ca_file: str
    extender_token_file: str
    cert_file: str
    key_file: str
    client_ca_file: str
    api_server_cidrs: tuple[Network, ...]
    certificate_secret: str
    webhook_service: str
    webhook_configuration: str
    max_request_bytes: int
    max_header_bytes: int
    max_concurrent_requests: int
    request_timeout: float
    keep_alive: float
    shutdown_grace: float
    scheduler_name: str
    node_scheduler_policy: str
    gpu_scheduler_policy: str
    force_overwrite_default_scheduler: bool
    node_label_selector: tuple[tuple[str, str], ...]
    node_lock_timeout: float
    node_lock_retry_timeout: float
    enable_ascend: bool
    enable_iluvatar: bool
    quota_reservation_ttl: float
    quota_resync: float
    quota_debounce: float
    quota_charge_timeout: float
    quota_max_ledger: int
    own_service_accounts: tuple[ServiceAccount, ...]
    device_plugin_service_accounts: tuple[ServiceAccount, ...]
    volcano_service_accounts: tuple[ServiceAccount, ...]
    koordinator_service_accounts: tuple[ServiceAccount, ...]
    allowed_identities: Identities
    kube_qps: float
    kube_burst: int
    kube_timeout: int
    leader_elect: bool
    leader_elect_resource_name: str
    leader_elect_resource_namespace: str
    verbosity: int
    legacy_metrics: bool
    profiling: bool
    debug: bool
    pod_name: str
    pod_namespace: str
    warnings: tuple[str, ...] = ()
    """What was accepted but is hardly meant or has no effect, a sentence each."""

    @property
    def tls(self) -> bool:
        """Whether the servers speak TLS: only with both a certificate and its key."""
        return bool(self.cert_file and self.key_file)

    @property
    def extender_on_main(self) -> bool:
        """Whether the main server answers kube-scheduler as well: it can't ask for another authority's certificate."""
        return "extender" in self.roles and self.extender_client_ca_file in ("", self.client_ca_file)

    @property
    def ignored_sections(self) -> tuple[str, ...]:
        """The sections of device-config.yaml that make no backends, because their switch is off."""
        return tuple(section for section, switch in SECTION_SWITCHES.items() if not getattr(self, switch))

    @property
    def trusted_users(self) -> frozenset[str]:
        """The user names that may write allocations: our own, the device plugins', and those allowed besides."""
        accounts = (*self.own_service_accounts, *self.device_plugin_service_accounts)
        return self.allowed_identities.users | {account.username for account in accounts}

    @property
    def foreign_users(self) -> dict[str, frozenset[str]]:
        """The user names that may write the allocations of another project's scheduler, by its key."""
        schedulers = {"volcano": self.volcano_service_accounts, "koordinator": self.koordinator_service_accounts}
        return {
            key: self.allowed_identities.users | {account.username for account in accounts}
            for key, accounts in schedulers.items()
        }

    @property
    def trusted_groups(self) -> frozenset[str]:
        """The groups whose members may write allocations."""
        return self.allowed_identities.groups


class _Ignored(argparse.Action):
    """Remembers the spelling of a flag that has no effect."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        seen = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*seen, option_string])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` every flag of `serve`; what they hold is text until `resolve` reads it."""
    for setting in SETTINGS:
        if not setting.flags:
            continue
        text = setting.help.replace("%", "%%") + f" (default {setting.default or 'none'}; {setting.env})"
        if setting.is_switch:
            parser.add_argument(*setting.flags, dest=setting.name, help=text, nargs="?", const="true", metavar="BOOL")
        elif setting.repeats:
            parser.add_argument(*setting.flags, dest=setting.name, help=text, action="append", metavar="LIST")
        else:
            parser.add_argument(*setting.flags, dest=setting.name, help=text, metavar="VALUE")
    klog = parser.add_argument_group("klog's flags, accepted without effect")
    old = parser.add_argument_group("HAMi's flags for what device-config.yaml says, accepted and ignored")
    for group, dest, switches, valued in (
        (klog, _KLOG, KLOG_SWITCHES, KLOG_VALUES),
        (old, _IGNORED, OLD_SWITCHES, OLD_VALUES),
    ):
        for flag in switches:
            group.add_argument(*_spellings(flag), dest=dest, action=_Ignored, nargs="?", metavar="BOOL")
        for flag in valued:
            group.add_argument(*_spellings(flag), dest=dest, action=_Ignored, metavar="VALUE")


def resolve(args: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """The settings that flags, environment and defaults amount to. Raises ConfigError with every fault found."""
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    faults: list[str] = []
    given: set[str] = set()
    for setting in SETTINGS:
        origin, text = _text(setting, args, env)
        texts[setting.name] = text
        if origin:
            given.add(setting.name)
        try:
            values[setting.name] = setting.read(text)
        except ValueError as complaint:
            faults.append(f"{origin} {quoted(text)}: {complaint}")
    if faults:
        raise ConfigError(faults)
    _complete(values)
    warnings = [
        *(f"{flag}: ignored, device-config.yaml says it" for flag in getattr(args, _IGNORED, None) or ()),
        *(
            f"{flag}: ignored, logs go to standard error and look the same always"
            for flag in getattr(args, _KLOG, None) or ()
            if flag not in _TO_STANDARD_ERROR
        ),
        *_policy_doubts(texts),
        *_doubts(Settings(**values)),
    ]
    faults = [*_unplaced_accounts(values, given), *_conflicts(Settings(**values))]
    if faults:
        raise ConfigError(faults, warnings)
    for name in _ACCOUNTS:
        values[name] = tuple(account for account in values[name] if account.namespace)
    return Settings(**values, warnings=tuple(warnings))


def _spellings(flag: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((flag, flag.replace("_", "-"))))


def _text(setting: Setting, args: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, str]:
    """Where a setting's text comes from, as messages call it (empty: the default), and the text."""
    flag = getattr(args, setting.name, None) if setting.flags else None
    if flag is not None:
        return setting.flags[0], ",".join(flag) if isinstance(flag, list) else flag
    variable = env.get(setting.env, "").strip()
    return (setting.env, variable) if variable else ("", setting.default)


def _complete(values: dict[str, Any]) -> None:
    """Fill what follows from other settings: the lease's name and namespace, the namespace of our service accounts."""
    namespace: str = values["pod_namespace"]
    if values["leader_elect"]:
        values["leader_elect_resource_name"] = values["leader_elect_resource_name"] or values["scheduler_name"]
        values["leader_elect_resource_namespace"] = values["leader_elect_resource_namespace"] or namespace
    for name in _ACCOUNTS:
        values[name] = tuple(ServiceAccount(account.namespace or namespace, account.name) for account in values[name])


def _unplaced_accounts(values: Mapping[str, Any], given: set[str]) -> Iterator[str]:
    """Accounts someone named without a namespace while ours isn't known; the default ones then just don't count."""
    for name in sorted(given.intersection(_ACCOUNTS)):
        for account in values[name]:
            if not account.namespace:
                flag = "--" + name.replace("_", "-")
                yield f"{flag} {quoted(account.name)}: must be NAMESPACE/{account.name}, as POD_NAMESPACE isn't set"


def _conflicts(settings: Settings) -> Iterator[str]:
    if settings.certificate_secret and not ("controller" in settings.roles and settings.pod_namespace):
        yield "--certificate-secret: needs the role controller, which makes the Secret, and POD_NAMESPACE"
    if settings.client_ca_file and not settings.tls:
        yield "--client-ca-file: needs --cert_file and --key_file, as only TLS clients have certificates"
    if settings.extender_client_ca_file and not settings.tls:
        yield "--extender-client-ca-file: needs --cert_file and --key_file, as only TLS clients have certificates"
    if "extender" in settings.roles:
        yield from _extender_conflicts(settings)
    if settings.leader_elect:
        for what, value in (
            ("name, or --scheduler-name", settings.leader_elect_resource_name),
            ("namespace, or POD_NAMESPACE", settings.leader_elect_resource_namespace),
        ):
            if not value:
                yield f"--leader-elect: needs --leader-elect-resource-{what}"
    listeners = {"--http_bind": settings.http_bind, "--metrics-bind-address": settings.metrics_bind_address}
    if "extender" in settings.roles and settings.extender_bind_address is not None:
        listeners["--extender-bind-address"] = settings.extender_bind_address
    taken: dict[ListenAddress, str] = {}
    for flag, listener in listeners.items():
        if listener.port and taken.setdefault(listener, flag) != flag:
            yield f"{flag} {quoted(str(listener))}: must differ from {taken[listener]}"


def _extender_conflicts(settings: Settings) -> Iterator[str]:
    address = settings.extender_bind_address
    guarded = settings.extender_client_ca_file or settings.extender_token_file
    if address is None and not settings.extender_on_main:
        remedy = "must be an address, as the main server asks for no certificate of --extender-client-ca-file"
        yield f'--extender-bind-address "": {remedy}'
    if address is not None and not address.is_loopback and not guarded:
        remedy = "must be loopback, or come with --extender-client-ca-file or --extender-token-file"
        yield f"--extender-bind-address {quoted(str(address))}: {remedy}"


def _doubts(settings: Settings) -> Iterator[str]:
    if bool(settings.cert_file) != bool(settings.key_file):
        yield "--cert_file and --key_file: only one is given, so TLS is off"
    if not all(account.namespace for account in settings.own_service_accounts):
        yield "POD_NAMESPACE: isn't set, so only service accounts given with their namespace may write allocations"
    verified = settings.client_ca_file or settings.api_server_cidrs
    if "webhook" in settings.roles and not settings.http_bind.is_loopback and not verified:
        address = quoted(str(settings.http_bind))
        danger = "anyone who reaches it can post reviews and so tie up the quota of any namespace"
        remedy = "set --client-ca-file or --api-server-cidrs to accept them from API servers only"
        yield f"--http_bind {address}: {danger}; {remedy}"
    if settings.profiling:
        yield "--profiling: ignored, there is no pprof to serve"
    if settings.node_lock_retry_timeout >= settings.request_timeout:
        yield "--node-lock-retry-timeout: isn't shorter than --request-timeout, which ends the bind first"
    if settings.quota_charge_timeout >= settings.request_timeout:
        yield "--quota-charge-timeout: isn't shorter than --request-timeout, which ends the charge first"


def _policy_doubts(texts: Mapping[str, str]) -> Iterator[str]:
    if texts["node_scheduler_policy"] not in NODE_POLICIES:
        yield f"--node-scheduler-policy {quoted(texts['node_scheduler_policy'])}: unknown, acts as binpack"
    for item in listed(texts["gpu_scheduler_policy"]):
        if item not in CARD_POLICIES:
            yield f"--gpu-scheduler-policy {quoted(item)}: unknown, has no effect"
