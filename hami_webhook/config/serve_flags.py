"""The settings of `serve` from the command line and the environment.

A flag takes precedence over the environment variable, which takes precedence over the default. A variable that is set
but empty counts as not set, because that is what a manifest with an empty value means.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_webhook.config.errors import ConfigError
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.config.setting_values import (
    CARD_POLICIES,
    HAMIS_MONITOR_PORT,
    NODE_POLICIES,
    NODE_ROLE,
    USAGE_ROLE,
    ServiceAccount,
    listed,
)
from hami_webhook.config.settings import SETTINGS, Setting, Settings
from hami_webhook.kube.message_text import quoted

_KLOG_SWITCHES = (
    "--logtostderr",
    "--alsologtostderr",
    "--skip_headers",
    "--skip_log_headers",
    "--add_dir_header",
    "--one_output",
)
_KLOG_VALUES = (
    "--stderrthreshold",
    "--log_dir",
    "--log_file",
    "--log_file_max_size",
    "--vmodule",
    "--log_backtrace_at",
)
"""klog's flags: accepted, and reported as ignored, except those that send logs to standard error."""

_ENFLAME_WORDS = ("gcu", "vgcu", "vgcu-percentage", "drs-gcu", "gcu-memory", "gcu-core")

_OLD_SWITCHES = ("--sgpu-topology-aware",)
_OLD_VALUES = (
    *(f"--metax-{word}" for word in ("name", "vcount", "vcore", "vmemory")),
    *(f"--mthreads-{word}" for word in ("name", "memory", "cores")),
    *(f"--cambricon-mlu-{word}" for word in ("name", "memory", "cores")),
    *(f"--{cards}-{word}" for cards in ("dcu", "hcu") for word in ("name", "memory", "cores")),
    *(f"--kunlun-{word}" for word in ("name", "vcount", "vmemory")),
    *(f"--iluvatar-{word}" for word in ("name", "memory", "cores")),
    *(f"--enflame-{word}-resource-name" for word in _ENFLAME_WORDS),
    *("--default-mem", "--default-cores", "--default-gpu"),
)
"""HAMi's flags for what device-config.yaml says: accepted, reported as ignored."""

_IGNORED = "ignored_flags"
_KLOG = "klog_flags"
_TO_STANDARD_ERROR = ("--logtostderr", "--alsologtostderr")

_ACCOUNTS = tuple(setting.name for setting in SETTINGS if setting.name.endswith("_service_accounts"))
"""The settings that are service accounts, where a name without a namespace is one of this pod's."""


class IgnoredFlag(argparse.Action):
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
    old = parser.add_argument_group("HAMi's flags for settings of device-config.yaml, accepted and ignored")
    for group, dest, switches, valued in (
        (klog, _KLOG, _KLOG_SWITCHES, _KLOG_VALUES),
        (old, _IGNORED, _OLD_SWITCHES, _OLD_VALUES),
    ):
        for flag in switches:
            group.add_argument(*_spellings(flag), dest=dest, action=IgnoredFlag, nargs="?", metavar="BOOL")
        for flag in valued:
            group.add_argument(*_spellings(flag), dest=dest, action=IgnoredFlag, metavar="VALUE")


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
    _complete(values, given)
    settings = Settings(**values)
    warnings = [
        *(f"{flag}: ignored, device-config.yaml says it" for flag in getattr(args, _IGNORED, None) or ()),
        *(
            f"{flag}: ignored, logs go to standard error and look the same always"
            for flag in getattr(args, _KLOG, None) or ()
            if flag not in _TO_STANDARD_ERROR
        ),
        *_policy_warnings(texts),
        *_warnings(settings),
    ]
    faults = [*_unplaced_accounts(values, given), *_conflicts(settings)]
    if faults:
        raise ConfigError(faults, warnings)
    usable: dict[str, Any] = {
        name: tuple(account for account in values[name] if account.namespace) for name in _ACCOUNTS
    }
    return replace(settings, **usable, warnings=tuple(warnings))


def _spellings(flag: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((flag, flag.replace("_", "-"))))


def _text(setting: Setting, args: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, str]:
    """Where a setting's text comes from, as messages call it (empty: the default), and the text."""
    flag = getattr(args, setting.name, None) if setting.flags else None
    if flag is not None:
        return setting.flags[0], ",".join(flag) if isinstance(flag, list) else flag
    variable = env.get(setting.env, "").strip()
    return (setting.env, variable) if variable else ("", setting.default)


def _complete(values: dict[str, Any], given: set[str]) -> None:
    """Fill what follows from other settings: the lease's name and namespace, the namespace of our service accounts, the
    port of metrics, and what HAMi's flags add to ours.
    """
    values["extender_bind_address"] = values["extender_bind"] or values["extender_bind_address"]
    if name := values["device_plugin_service_account"]:
        values["device_plugin_service_accounts"] += (ServiceAccount(values["device_plugin_namespace"], name),)
    if NODE_ROLE in values["roles"] and "metrics_bind_address" not in given:
        values["metrics_bind_address"] = ListenAddress("", HAMIS_MONITOR_PORT)
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
    yield from _role_conflicts(settings)
    if settings.priority_feedback and not (NODE_ROLE in settings.roles and settings.hook_path):
        yield "--priority-feedback: needs --roles node, and HOOK_PATH, the folder with the containers' shared regions"
    if settings.certificate_secret and not ("controller" in settings.roles and settings.pod_namespace):
        yield "--certificate-secret: needs the role controller, which makes the Secret, and POD_NAMESPACE"
    if settings.client_ca_file and not settings.tls:
        yield "--client-ca-file: needs --cert_file and --key_file, as only TLS clients have certificates"
    if settings.extender_client_ca_file and not settings.tls:
        yield "--extender-client-ca-file: needs --cert_file and --key_file, as only TLS clients have certificates"
    if "extender" in settings.roles:
        yield from _extender_conflicts(settings)
    if settings.device_plugin_service_account and not (settings.device_plugin_namespace or settings.pod_namespace):
        yield "--device-plugin-service-account: needs --device-plugin-namespace, as POD_NAMESPACE isn't set"
    if settings.leader_elect:
        for what, value in (
            ("name, or --scheduler-name", settings.leader_elect_resource_name),
            ("namespace, or POD_NAMESPACE", settings.leader_elect_resource_namespace),
        ):
            if not value:
                yield f"--leader-elect: needs --leader-elect-resource-{what}"
    yield from _listener_conflicts(settings)


def _role_conflicts(settings: Settings) -> Iterator[str]:
    if NODE_ROLE in settings.roles and not settings.node_name:
        yield f'--roles "{NODE_ROLE}": needs NODE_NAME, the name of the node whose GPUs it monitors'
    if USAGE_ROLE in settings.roles and not settings.pod_namespace:
        yield f'--roles "{USAGE_ROLE}": needs POD_NAMESPACE, where its Service and the pods of the role node are'
    if settings.placeholders and not ("controller" in settings.roles and settings.pod_namespace):
        yield "--placeholders: needs the role controller, and POD_NAMESPACE, where the pods are created"


def _listener_conflicts(settings: Settings) -> Iterator[str]:
    listeners = {"--http_bind": settings.http_bind, "--metrics-bind-address": settings.metrics_bind_address}
    if "extender" in settings.roles and settings.extender_bind_address is not None:
        listeners[settings.extender_flag] = settings.extender_bind_address
    taken: dict[ListenAddress, str] = {}
    for flag, listener in listeners.items():
        if listener.port and taken.setdefault(listener, flag) != flag:
            yield f"{flag} {quoted(str(listener))}: must differ from {taken[listener]}"


def _extender_conflicts(settings: Settings) -> Iterator[str]:
    address = settings.extender_bind_address
    guarded = settings.extender_client_ca_file or settings.extender_token_file
    if address is None and not settings.extender_on_main:
        remedy = "must be an address, because the main server requests no certificate of --extender-client-ca-file"
        yield f'--extender-bind-address "": {remedy}'
    if address is not None and not address.is_loopback and not guarded:
        remedy = "must be loopback, or come with --extender-client-ca-file or --extender-token-file"
        yield f"{settings.extender_flag} {quoted(str(address))}: {remedy}"


def _warnings(settings: Settings) -> Iterator[str]:
    if bool(settings.cert_file) != bool(settings.key_file):
        yield "--cert_file and --key_file: only one is given, so TLS is off"
    if not all(account.namespace for account in settings.own_service_accounts):
        yield "POD_NAMESPACE: isn't set, so only service accounts given with their namespace may write allocations"
    verified = settings.client_ca_file or settings.api_server_cidrs
    if "webhook" in settings.roles and not settings.http_bind.is_loopback and not verified:
        address = quoted(str(settings.http_bind))
        danger = "any client that reaches it can post reviews and tie up the quota of any namespace"
        remedy = "set --client-ca-file or --api-server-cidrs to accept them from API servers only"
        yield f"--http_bind {address}: {danger}; {remedy}"
    yield from _without_effect(settings)
    if settings.legacy_metrics:
        yield "--legacy-metrics: deprecated; 0.5 may remove it; use the names that docs/metrics.md has"
    if settings.node_lock_retry_timeout >= settings.request_timeout:
        yield "--node-lock-retry-timeout: isn't shorter than --request-timeout, which ends the bind first"
    if settings.quota_charge_timeout >= settings.request_timeout:
        yield "--quota-charge-timeout: isn't shorter than --request-timeout, which ends the charge first"


def _without_effect(settings: Settings) -> Iterator[str]:
    for flag, given in (
        ("--profiling", settings.profiling),
        ("--profiling-bind-address", settings.profiling_bind_address),
    ):
        if given:
            yield f"{flag}: ignored, there is no pprof to serve"
    if settings.device_plugin_namespace and not settings.device_plugin_service_account:
        yield "--device-plugin-namespace: ignored, as --device-plugin-service-account isn't given"
    if settings.debug:
        yield "--debug: ignored, how much is logged follows from -v alone"


def _policy_warnings(texts: Mapping[str, str]) -> Iterator[str]:
    if texts["node_scheduler_policy"] not in NODE_POLICIES:
        yield f"--node-scheduler-policy {quoted(texts['node_scheduler_policy'])}: unknown, acts as binpack"
    for item in listed(texts["gpu_scheduler_policy"]):
        if item not in CARD_POLICIES:
            yield f"--gpu-scheduler-policy {quoted(item)}: unknown, has no effect"
