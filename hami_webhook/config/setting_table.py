"""Every setting of `serve` in one table, from which both the flags and the environment variables come.

Names and defaults: docs/spec/core.md#2.1 (HAMi's own flags), docs/spec/quota.md#2, docs/spec/security.md#1, #3, #4.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hami_webhook.config import setting_values as values
from hami_webhook.config.go_syntax import parse_go_bool, parse_listen_address


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
    name: str,
    read: Callable[[str], object],
    default: str,
    text: str,
    *,
    flags: tuple[str, ...] | None = None,
    env: str = "",
    repeats: bool = False,
) -> Setting:
    """A setting whose flag and variable follow from its name unless they are given."""
    spellings = ("--" + name.replace("_", "-"),) if flags is None else flags
    return Setting(name, read, default, text, spellings, env or "HAMI_" + name.upper(), repeats)


def _listener(name: str, default: str, text: str, flags: tuple[str, ...] | None = None) -> Setting:
    return _setting(name, parse_listen_address, default, text, flags=flags)


def _path(name: str, text: str, *, flags: tuple[str, ...] | None = None, env: str = "") -> Setting:
    return _setting(name, values.path, "", text, flags=flags, env=env)


def _name(name: str, text: str, *, flags: tuple[str, ...] | None = None, env: str = "") -> Setting:
    return _setting(name, values.object_name, "", text, flags=flags, env=env)


def _number(name: str, least: int, most: int, default: int, text: str, flags: tuple[str, ...] | None = None) -> Setting:
    return _setting(name, values.whole(least, most), str(default), text, flags=flags)


def _duration(name: str, least: str, most: str, default: str, text: str, env: str = "") -> Setting:
    return _setting(name, values.duration(least, most), default, text, env=env)


def _switch(name: str, default: str, text: str) -> Setting:
    return _setting(name, parse_go_bool, default, text)


def _list(name: str, read: Callable[[str], object], default: str, text: str) -> Setting:
    return _setting(name, read, default, text, repeats=True)


_PROCESS = (
    _list("roles", values.roles, ",".join(values.ROLES), "what this process does, a comma list of roles"),
    _path("device_config_file", "path of device-config.yaml; empty: none given"),
    _path("policy_file", "path of the policy file; empty: no policy"),
    _path("kubeconfig", "path of a kubeconfig; empty: the default one, then in-cluster", env="KUBECONFIG"),
    _name("pod_name", "name of this pod", flags=(), env="POD_NAME"),
    _name("pod_namespace", "namespace of this pod", flags=(), env="POD_NAMESPACE"),
)

_SERVERS = (
    _listener("http_bind", "127.0.0.1:8080", "address of the main server", ("--http_bind", "--http-bind")),
    _listener("metrics_bind_address", ":9395", "address of the metrics server, plain HTTP"),
    _setting(
        "extender_bind_address",
        values.optional_listen_address,
        "127.0.0.1:8081",
        "address of the scheduler extender; beyond loopback it needs client certificates or a bearer token; empty: the "
        "main server alone answers kube-scheduler",
    ),
    _setting(
        "extender_mode",
        values.extender_mode,
        "single",
        "single: /filter decides the node, as HAMi does; cooperative: it answers all that fit, /prioritize grades "
        "them, and /bind decides the cards",
    ),
    _path("extender_client_ca_file", "CA that the extender's clients must have a certificate of"),
    _path("extender_token_file", "file with the bearer token that the extender's clients must send"),
    _path("cert_file", "TLS certificate; TLS is on if key_file is given too", flags=("--cert_file", "--cert-file")),
    _path("key_file", "TLS private key", flags=("--key_file", "--key-file")),
    _path("client_ca_file", "CA that the API server's client certificate must be of; empty: not verified"),
    _list(
        "api_server_cidrs",
        values.networks,
        "",
        "source addresses (CIDRs) that reviews are accepted from: those of the API servers; empty: any",
    ),
    _name(
        "certificate_secret",
        "Secret in this pod's namespace in which the controller keeps a self-made authority and certificate, for "
        "replicas of the webhook to mount; empty: certificates are somebody else's",
    ),
    _setting("webhook_service", values.object_name, "hami-webhook", "Service that a self-made certificate is for"),
    _setting(
        "webhook_configuration",
        values.object_name,
        "hami-webhook-admission",
        "webhook configurations whose conditions, and caBundle of a self-made authority, the controller keeps right; "
        "empty: none",
    ),
    _number(
        "max_request_bytes",
        1024,
        64 << 20,
        16 << 20,
        "largest request body, in bytes. The default holds the review of any pod that can be stored: the API server "
        "takes 3 MiB and etcd 1.5 MiB of protobuf, which the defaults, managedFields and old object of a review made "
        "15,042,975 bytes of JSON at most",
    ),
    _number("max_header_bytes", 1024, 1 << 20, 64 << 10, "largest request head, in bytes"),
    _number("max_concurrent_requests", 1, 100_000, 256, "requests answered at a time; more are refused"),
    _duration("request_timeout", "1s", "10m", "30s", "longest time for one request, its body included"),
    _duration("keep_alive", "1s", "1h", "125s", "how long an idle connection is kept"),
    _duration("shutdown_grace", "0s", "10m", "15s", "how long running requests may take to finish after SIGTERM"),
)

_SCHEDULING = (
    _name("scheduler_name", "name put into spec.schedulerName; empty: the pod's own stays"),
    _setting("node_scheduler_policy", values.node_policy, "binpack", "how nodes are chosen: binpack or spread"),
    _setting(
        "gpu_scheduler_policy",
        values.card_policy,
        "spread",
        f"how cards are chosen: one, or a comma list, of {', '.join(values.CARD_POLICIES)}",
    ),
    _switch("force_overwrite_default_scheduler", "true", "whether pods of default-scheduler are taken over as well"),
    _list("node_label_selector", values.label_selector, "", "labels (k=v,k2=v2) that registered nodes must have"),
    _duration(
        "node_lock_timeout", "1s", "24h", "5m0s", "age at which a node lock may be broken", env="HAMI_NODELOCK_EXPIRE"
    ),
    _duration(
        "node_lock_retry_timeout",
        "0s",
        "10m",
        "28s",
        "how long the bind of a pod group's member retries a contended node lock; 0: never",
    ),
    _switch("enable_ascend", "false", "whether the vnpus section makes backends"),
    _switch("enable_iluvatar", "false", "whether the iluvatars section makes backends"),
)

_QUOTA = (
    _duration("quota_reservation_ttl", "40s", "24h", "45s", "life of a charge whose pod never appears, at least 40s"),
    _duration("quota_resync", "1s", "24h", "300s", "time between full recomputes of a quota"),
    _duration("quota_debounce", "0s", "1m", "500ms", "how long changes are gathered before a recompute"),
    _duration("quota_charge_timeout", "10ms", "30s", "3s", "longest time for one charge"),
    _number("quota_max_ledger", 1, 100_000, 1000, "most entries in the ledger of a quota"),
)

_IDENTITIES = (
    _list(
        "own_service_accounts",
        values.service_accounts,
        "hami-scheduler",
        "service accounts of the scheduler and controller: NAMESPACE/NAME, or NAME in this pod's namespace",
    ),
    _list(
        "device_plugin_service_accounts",
        values.service_accounts,
        "hami-device-plugin",
        "service accounts of device plugins, which may write allocations too; spelt like the above",
    ),
    _list(
        "volcano_service_accounts",
        values.service_accounts,
        "volcano-system/volcano-scheduler,kube-system/volcano-device-plugin",
        "service accounts of Volcano's scheduler and vGPU device plugin, which may write what Volcano allocates",
    ),
    _list(
        "koordinator_service_accounts",
        values.service_accounts,
        "koordinator-system/koord-scheduler",
        "service accounts of Koordinator's scheduler, which may write what Koordinator allocates",
    ),
    _list(
        "allowed_identities",
        values.identities,
        "",
        "more users, and groups as group:NAME, that may write allocations of any scheduler",
    ),
)

_CLUSTER = (
    _setting("kube_qps", values.rate, "5", "requests a second to the API server"),
    _number("kube_burst", 1, 100_000, 10, "requests to the API server at once"),
    _number("kube_timeout", 0, 3600, 0, "timeout of a request to the API server, in seconds; 0: none"),
    _switch("leader_elect", "false", "whether replicas elect a leader"),
    _name("leader_elect_resource_name", "name of the lease; empty: the scheduler name"),
    _name("leader_elect_resource_namespace", "namespace of the lease; empty: this pod's"),
)

_DIAGNOSTICS = (
    _number("verbosity", 0, 10, 0, "how much is logged, 0 to 10", ("-v", "--v")),
    _switch("legacy_metrics", "false", "whether metrics are served under their old names too"),
    _switch("profiling", "false", "accepted without effect"),
    _switch("debug", "false", "accepted without effect"),
)

SETTINGS: tuple[Setting, ...] = (
    *_PROCESS,
    *_SERVERS,
    *_SCHEDULING,
    *_QUOTA,
    *_IDENTITIES,
    *_CLUSTER,
    *_DIAGNOSTICS,
)
"""The settings, in the order `--help` shows them."""

KLOG_SWITCHES = (
    "--logtostderr",
    "--alsologtostderr",
    "--skip_headers",
    "--skip_log_headers",
    "--add_dir_header",
    "--one_output",
)
KLOG_VALUES = ("--stderrthreshold", "--log_dir", "--log_file", "--log_file_max_size", "--vmodule", "--log_backtrace_at")
"""klog's flags: accepted, and reported as ignored but where logs go to standard error anyway."""

_ENFLAME_WORDS = ("gcu", "vgcu", "vgcu-percentage", "drs-gcu", "gcu-memory", "gcu-core")

OLD_SWITCHES = ("--sgpu-topology-aware",)
OLD_VALUES = (
    *(f"--metax-{word}" for word in ("name", "vcount", "vcore", "vmemory")),
    *(f"--mthreads-{word}" for word in ("name", "memory", "cores")),
    *(f"--cambricon-mlu-{word}" for word in ("name", "memory", "cores")),
    *(f"--dcu-{word}" for word in ("name", "memory", "cores")),
    *(f"--kunlun-{word}" for word in ("name", "vcount", "vmemory")),
    *(f"--iluvatar-{word}" for word in ("name", "memory", "cores")),
    *(f"--enflame-{word}-resource-name" for word in _ENFLAME_WORDS),
    *("--default-mem", "--default-cores", "--default-gpu"),
)
"""HAMi's flags for what device-config.yaml says: accepted, reported as ignored."""
