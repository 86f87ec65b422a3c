"""The settings of `serve`: each is declared once, with its type, its default, its flags and its environment variable.

Names and defaults: docs/spec/core.md#2.1 (HAMi's own flags), docs/spec/quota.md#2, docs/spec/security.md#1, #3, #4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from hami_webhook.config import setting_values as values
from hami_webhook.config.devices import SECTION_SWITCHES
from hami_webhook.config.go_syntax import ListenAddress, parse_go_bool, parse_listen_address
from hami_webhook.config.setting_values import Identities, Network, ServiceAccount

KNOWN_PLUGINS = (
    "hami-device-plugin",  # HAMi's chart: NVIDIA, Cambricon and Hygon
    "hami-ascend",  # HAMi's chart: Ascend
    "kube-system/hami-device-plugin",
    "kube-system/hami-ascend",  # also HAMi's ascend-device-plugin by its manifest
    "kube-system/dcu-device-plugin",  # HAMi's dcu-vgpu-device-plugin
    "kube-system/hcu-device-plugin",  # Hygon's k8s-hcu-device-plugin, in its mode for HAMi
    "kube-system/amd-gpu-device-plugin",  # the chart of HAMi's amd-device-plugin
    "kube-system/neuron-device-plugin",  # AWS Neuron's
)
"""As `--device-plugin-service-accounts` has them: accounts of plugins that write allocations, as their own manifests
have them. NAME alone means this installation's namespace. Only that and kube-system are trusted: a namespace of any
other name may be one that a tenant may create (docs/install.md#device-plugins).
"""
"""As `--device-plugin-service-accounts` has them."""


_T = TypeVar("_T")
_DECLARATION = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `name` is the attribute of Settings, `flags` its spellings (none: environment only).

    `default` is text like any other, read by `read`, which raises ValueError with a sentence. A `repeats` flag may be
    given several times, which joins its values with commas.
    """

    name: str
    read: Callable[[str], object]
    default: str
    help: str
    flags: tuple[str, ...]
    env: str
    repeats: bool

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone means true."""
        return self.read is parse_go_bool


def _setting(
    read: Callable[[str], _T],
    default: str,
    text: str,
    *,
    flags: tuple[str, ...] | None = None,
    env: str = "",
    repeats: bool = False,
) -> _T:
    """Declare a field of Settings; its flag and its variable follow from the field's name unless they are given."""

    def named(name: str) -> Setting:
        spellings = ("--" + name.replace("_", "-"),) if flags is None else flags
        return Setting(name, read, default, text, spellings, env or "HAMI_" + name.upper(), repeats)

    declared: _T = field(default=read(default), metadata={_DECLARATION: named})
    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `serve`. Durations are seconds, sizes bytes; an empty path or name means "not given"."""

    roles: frozenset[str] = _setting(
        values.roles,
        ",".join(values.ROLES),
        "tasks of this process, a comma list of roles. node, only alone: monitor the GPUs of its node, and write their "
        "links. usage, only alone: serve the API usage.hami.io of measured use",
        repeats=True,
    )
    device_config_file: str = _setting(values.path, "", "path of device-config.yaml; empty: the one of HAMi's chart")
    policy_file: str = _setting(values.path, "", "path of the policy file; empty: no policy")
    kubeconfig: str = _setting(
        values.path, "", "path of a kubeconfig; empty: the default one, then in-cluster", env="KUBECONFIG"
    )
    pod_name: str = _setting(values.object_name, "", "name of this pod", flags=(), env="POD_NAME")
    node_name: str = _setting(
        values.object_name, "", "name of this pod's node, for the role node", flags=(), env="NODE_NAME"
    )
    hook_path: str = _setting(
        values.path,
        "",
        "folder of HAMi's hooks on this node, usually /usr/local/vgpu. The role node monitors the containers "
        "whose shared regions are in its subfolder containers; empty: it monitors none",
        flags=(),
        env="HOOK_PATH",
    )
    resync_interval: float = _setting(
        values.duration("1s", "24h"),
        "5m0s",
        "with --priority-feedback, how long a deleted pod's shared regions must be unchanged before the role node "
        "removes them",
        flags=(),
        env="HAMI_RESYNC_INTERVAL",
    )
    priority_feedback: bool = _setting(
        parse_go_bool,
        "false",
        "whether containers wait while others of a higher nvidia.com/priority compute on the same card; the role node "
        "does this as HAMi's monitor",
    )
    pod_namespace: str = _setting(values.object_name, "", "namespace of this pod", flags=(), env="POD_NAMESPACE")

    http_bind: ListenAddress = _setting(
        parse_listen_address, "127.0.0.1:8080", "address of the main server", flags=("--http_bind", "--http-bind")
    )
    metrics_bind_address: ListenAddress = _setting(
        parse_listen_address,
        ":9395",
        "address of the metrics server, plain HTTP; the role node has :9394 by default",
    )
    extender_bind_address: ListenAddress | None = _setting(
        values.optional_listen_address,
        "127.0.0.1:8081",
        "address of the scheduler extender; except on loopback it needs client certificates or a bearer token; "
        "empty: only the main server answers kube-scheduler",
    )
    extender_bind: ListenAddress | None = _setting(
        values.optional_listen_address,
        "",
        "address of the scheduler extender in HAMi's chart since 2.11. If set, extender-bind-address and the main "
        "server answer no extender calls. TLS with cert_file and key_file, also on loopback; empty: not given",
    )
    extender_mode: str = _setting(
        values.one_of("single", "cooperative"),
        "single",
        "single: /filter chooses the node, as HAMi does; cooperative: /filter returns all nodes that fit, /prioritize "
        "scores them, and /bind chooses the cards",
    )
    preemption: str = _setting(
        values.one_of("off", "dry-run", "on"),
        "off",
        "whether pods of lower priority are evicted for a pod for which no node has devices: off; dry-run: events name "
        "the pods; on",
    )
    preemption_evictions_per_minute: int = _setting(
        values.whole(1, 100_000),
        "60",
        "maximum number of pods evicted for one namespace within a minute; the victims of the first pod in that minute "
        "may exceed it",
    )
    placeholders: int = _setting(
        values.whole(0, 100),
        "0",
        "maximum number of our pods that wait for new nodes at a time, so that an autoscaler adds nodes for shares of "
        "cards; 0: none",
    )
    placeholders_per_group: int = _setting(
        values.whole(1, 100), "4", "maximum number of nodes requested of a group within placeholder-timeout"
    )
    placeholder_timeout: float = _setting(
        values.duration("1m", "24h"), "15m", "time in which a requested node must join; its group then rests as long"
    )
    placeholder_image: str = _setting(values.path, "registry.k8s.io/pause:3.10", "image of these pods")
    extender_client_ca_file: str = _setting(
        values.path, "", "CA of the certificate that the extender's clients must present"
    )
    extender_token_file: str = _setting(
        values.path, "", "file with the bearer token that the extender's clients must send"
    )
    cert_file: str = _setting(
        values.path, "", "TLS certificate; TLS is on if key_file is given too", flags=("--cert_file", "--cert-file")
    )
    key_file: str = _setting(values.path, "", "TLS private key", flags=("--key_file", "--key-file"))
    client_ca_file: str = _setting(values.path, "", "CA of the API server's client certificate; empty: not verified")
    api_server_cidrs: tuple[Network, ...] = _setting(
        values.networks,
        "",
        "source addresses (CIDRs) from which reviews are accepted: those of the API servers; empty: any",
        repeats=True,
    )
    certificate_secret: str = _setting(
        values.object_name,
        "",
        "Secret in this pod's namespace for the controller's self-signed authority and certificate, which the "
        "webhook's replicas mount; empty: another program issues certificates",
    )
    webhook_service: str = _setting(
        values.object_name, "hami-webhook", "Service that the self-signed certificate names"
    )
    webhook_configuration: str = _setting(
        values.object_name,
        "hami-webhook-admission",
        "webhook configurations in which the controller maintains the conditions, and the caBundle of a self-signed "
        "authority; empty: none",
    )
    max_request_bytes: int = _setting(
        values.whole(1024, 64 << 20),
        str(16 << 20),
        "largest request body, in bytes. The default holds the review of any pod that can be stored: the API "
        "server accepts 3 MiB and etcd 1.5 MiB of protobuf. With defaults, managedFields and old object, the "
        "largest review measured had 15,042,975 bytes of JSON",
    )
    max_header_bytes: int = _setting(values.whole(1024, 1 << 20), str(64 << 10), "largest request head, in bytes")
    max_concurrent_requests: int = _setting(
        values.whole(1, 100_000), "256", "requests answered at a time; further ones are refused"
    )
    request_timeout: float = _setting(
        values.duration("1s", "10m"), "30s", "longest time for one request, its body included"
    )
    keep_alive: float = _setting(values.duration("1s", "1h"), "125s", "time for which an idle connection is kept")
    shutdown_grace: float = _setting(
        values.duration("0s", "10m"), "15s", "time that running requests have to finish after SIGTERM"
    )

    scheduler_name: str = _setting(values.object_name, "", "name for spec.schedulerName; empty: the pod's own stays")
    node_scheduler_policy: str = _setting(values.node_policy, "binpack", "choice of nodes: binpack or spread")
    gpu_scheduler_policy: str = _setting(
        values.card_policy,
        "spread",
        f"choice of cards: one, or a comma list, of {', '.join(values.CARD_POLICIES)}",
    )
    force_overwrite_default_scheduler: bool = _setting(
        parse_go_bool, "true", "whether pods of default-scheduler get our scheduler too"
    )
    node_label_selector: tuple[tuple[str, str], ...] = _setting(
        values.label_selector, "", "labels (k=v,k2=v2) that registered nodes must have", repeats=True
    )
    node_lock_timeout: float = _setting(
        values.duration("1s", "24h"), "5m0s", "age at which a node lock may be broken", env="HAMI_NODELOCK_EXPIRE"
    )
    node_lock_retry_timeout: float = _setting(
        values.duration("0s", "10m"),
        "28s",
        "time for which a bind retries a contended node lock; 0: never",
    )
    enable_ascend: bool = _setting(parse_go_bool, "false", "whether the vendors in the section vnpus are enabled")
    enable_iluvatar: bool = _setting(parse_go_bool, "false", "whether the vendors in the section iluvatars are enabled")

    claims: str = _setting(
        values.one_of("off", "labelled", "convert"),
        "off",
        "namespaces in which limits of new pods become ResourceClaims, if the section dra is enabled. off: none. "
        "labelled: those with the label hami.io/claims=convert. convert: all but those with hami.io/claims=off",
    )

    submitted_by: bool = _setting(
        parse_go_bool, "false", "whether pods and their templates are stamped with the user who submitted them"
    )
    submitted_by_controllers: frozenset[str] = _setting(
        values.user_names,
        "",
        "user names of controllers, besides Kubernetes' own, whose pods inherit the template's stamp",
        repeats=True,
    )
    submitted_by_portals: frozenset[str] = _setting(
        values.user_names,
        "",
        "users that may name another submitter, by the annotation hami.io/submitted-by",
        repeats=True,
    )

    quota_reservation_ttl: float = _setting(
        values.duration("40s", "24h"), "45s", "life of a charge whose pod never appears, at least 40s"
    )
    quota_resync: float = _setting(values.duration("1s", "24h"), "300s", "time between full recomputes of a quota")
    quota_debounce: float = _setting(
        values.duration("0s", "1m"), "500ms", "time for which changes are gathered before a recompute"
    )
    quota_charge_timeout: float = _setting(values.duration("10ms", "30s"), "9s", "longest time for one charge")
    quota_max_ledger: int = _setting(
        values.whole(1, 100_000), "1000", "maximum number of entries of pods in flight in a quota's ledger"
    )

    own_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        "hami-scheduler",
        "service accounts of the scheduler and controller: NAMESPACE/NAME, or NAME in this pod's namespace",
        repeats=True,
    )
    controller_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        "hami-webhook-controller",
        "service accounts of the controller, the only ones that may remove the gate hami.io/quota; written as above",
        repeats=True,
    )
    device_plugin_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        ",".join(KNOWN_PLUGINS),
        "service accounts of device plugins, which may write allocations too; written as above",
        repeats=True,
    )
    device_plugin_namespace: str = _setting(
        values.object_name, "", "namespace of device-plugin-service-account; empty: this pod's"
    )
    device_plugin_service_account: str = _setting(
        values.object_name,
        "",
        "one more account that may write allocations; HAMi's chart sets this flag since 2.11; empty: none",
    )
    volcano_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        "volcano-system/volcano-scheduler,kube-system/volcano-device-plugin",
        "service accounts of Volcano's scheduler and vGPU device plugin, which may write Volcano's allocations",
        repeats=True,
    )
    koordinator_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        "koordinator-system/koord-scheduler",
        "service accounts of Koordinator's scheduler, which may write Koordinator's allocations",
        repeats=True,
    )
    kai_service_accounts: tuple[ServiceAccount, ...] = _setting(
        values.service_accounts,
        "kai-scheduler/binder",
        "service accounts of KAI's binder. It holds cards with pods of its own, and may change the requests of KAI's "
        "pods",
        repeats=True,
    )
    allowed_identities: Identities = _setting(
        values.identities,
        "",
        "further users, and groups as group:NAME, that may write allocations of any scheduler",
        repeats=True,
    )

    kube_qps: float = _setting(values.rate, "5", "requests a second to the API server")
    kube_burst: int = _setting(values.whole(1, 100_000), "10", "requests to the API server at once")
    kube_timeout: int = _setting(
        values.whole(0, 3600), "0", "timeout of a request to the API server, in seconds; 0: 30 s"
    )
    leader_elect: bool = _setting(parse_go_bool, "false", "whether replicas elect a leader")
    leader_elect_resource_name: str = _setting(
        values.object_name,
        "",
        "name of the controller's Lease, without its ending -controller; empty: the scheduler name",
    )
    leader_elect_resource_namespace: str = _setting(values.object_name, "", "namespace of the Lease; empty: this pod's")

    verbosity: int = _setting(values.whole(0, 10), "0", "verbosity of the log, 0 to 10", flags=("-v", "--v"))
    log_format: str = _setting(
        values.one_of("text", "json"), "text", "format of a log line: text; json, an object with stable keys"
    )
    legacy_metrics: bool = _setting(parse_go_bool, "false", "whether metrics also have their old names")
    profiling: bool = _setting(parse_go_bool, "false", "accepted without effect")
    profiling_bind_address: ListenAddress | None = _setting(
        values.optional_listen_address, "", "accepted without effect"
    )
    debug: bool = _setting(parse_go_bool, "false", "accepted without effect")

    warnings: tuple[str, ...] = ()
    """What was accepted but is probably a mistake or has no effect, one sentence each."""

    @property
    def tls(self) -> bool:
        """Whether the servers speak TLS: only with both a certificate and its key."""
        return bool(self.cert_file and self.key_file)

    @property
    def extender_on_main(self) -> bool:
        """Whether the main server answers kube-scheduler as well: it can't request another authority's certificate."""
        same_clients = self.extender_client_ca_file in ("", self.client_ca_file)
        return "extender" in self.roles and self.extender_bind is None and same_clients

    @property
    def extender_flag(self) -> str:
        """What gave the address of the extender's own listener."""
        return "--extender-bind-address" if self.extender_bind is None else "--extender-bind"

    @property
    def extender_tls(self) -> bool:
        """Whether that listener does TLS: on loopback only where HAMi's flag gave it, or clients show certificates."""
        address = self.extender_bind_address
        beyond_loopback = address is not None and not address.is_loopback
        return bool(self.extender_client_ca_file) or (self.tls and (beyond_loopback or self.extender_bind is not None))

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
    def controllers(self) -> frozenset[str]:
        """The user names that may remove the scheduling gate of quota."""
        return frozenset(account.username for account in self.controller_service_accounts)

    @property
    def foreign_users(self) -> dict[str, frozenset[str]]:
        """The user names that may write the allocations of another project's scheduler, by its key."""
        schedulers = {
            "volcano": self.volcano_service_accounts,
            "koordinator": self.koordinator_service_accounts,
            "kai": self.kai_service_accounts,
        }
        return {
            key: self.allowed_identities.users | {account.username for account in accounts}
            for key, accounts in schedulers.items()
        }

    @property
    def trusted_groups(self) -> frozenset[str]:
        """The groups whose members may write allocations."""
        return self.allowed_identities.groups


SETTINGS: tuple[Setting, ...] = tuple(
    each.metadata[_DECLARATION](each.name) for each in fields(Settings) if _DECLARATION in each.metadata
)
"""The settings, in the order `--help` shows them."""
