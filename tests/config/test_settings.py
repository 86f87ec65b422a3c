"""The settings of `serve`: flags, environment and defaults, and one clear sentence for each bad value."""

import argparse
from collections.abc import Mapping
from ipaddress import ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.config import (
    SETTINGS,
    ConfigError,
    ListenAddress,
    Settings,
    add_flags,
    parse_go_bool,
    parse_go_duration,
    parse_listen_address,
    resolve,
)
from hami_webhook.device_config import builtin_device_config

NOWHERE: Mapping[str, str] = {}


def settings_of(line: str, env: Mapping[str, str] = NOWHERE) -> Settings:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    return resolve(parser.parse_args(line.split()), env)


def test_the_defaults_are_those_of_the_pages() -> None:
    plain = settings_of("", {"POD_NAMESPACE": "hami"})
    assert plain.http_bind == ("127.0.0.1", 8080)
    assert plain.metrics_bind_address == ("", 9395)
    assert plain.extender_bind_address is not None
    assert plain.extender_bind_address.is_loopback
    assert not plain.tls
    assert (plain.node_scheduler_policy, plain.gpu_scheduler_policy) == ("binpack", "spread")
    assert (plain.kube_qps, plain.kube_burst, plain.kube_timeout) == (5, 10, 0)
    assert (plain.node_lock_timeout, plain.node_lock_retry_timeout) == (300, 28)
    assert plain.force_overwrite_default_scheduler
    assert not plain.leader_elect
    assert (plain.quota_reservation_ttl, plain.quota_resync, plain.quota_debounce) == (45, 300, 0.5)
    assert (plain.quota_charge_timeout, plain.quota_max_ledger) == (9, 1000)
    assert (plain.max_request_bytes, plain.shutdown_grace, plain.keep_alive) == (16 * 1024 * 1024, 15, 125)
    assert plain.roles == {"webhook", "controller", "extender"}
    assert plain.trusted_users == {
        "system:serviceaccount:hami:hami-scheduler",
        *(f"system:serviceaccount:hami:hami-{name}" for name in ("device-plugin", "ascend")),
        *(
            f"system:serviceaccount:kube-system:{name}"
            for name in (
                *("hami-device-plugin", "hami-ascend", "dcu-device-plugin", "hcu-device-plugin"),
                *("amd-gpu-device-plugin", "neuron-device-plugin"),
            )
        ),
    }
    assert plain.trusted_groups == frozenset()
    assert plain.foreign_users == {
        "volcano": {
            "system:serviceaccount:volcano-system:volcano-scheduler",
            "system:serviceaccount:kube-system:volcano-device-plugin",
        },
        "koordinator": {"system:serviceaccount:koordinator-system:koord-scheduler"},
        "kai": {"system:serviceaccount:kai-scheduler:binder"},
    }
    assert plain.warnings == ()


def test_without_a_namespace_accounts_of_kube_system_alone_are_trusted_by_default() -> None:
    plain = settings_of("")
    assert {user.split(":")[2] for user in plain.trusted_users} == {"kube-system"}
    assert plain.warnings == (
        "POD_NAMESPACE: isn't set, so only service accounts given with their namespace may write allocations",
    )


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("", ("vnpus", "iluvatars")),
        ("--enable-ascend", ("iluvatars",)),
        ("--enable-iluvatar=true --enable-ascend=false", ("vnpus",)),
        ("--enable-iluvatar --enable-ascend", ()),
    ],
)
def test_sections_without_their_switch_are_as_if_the_file_lacked_them(line: str, ignored: tuple[str, ...]) -> None:
    found = settings_of(line)
    assert found.ignored_sections == ignored
    builtin = builtin_device_config().config
    kept = builtin.without(found.ignored_sections)
    assert {path[0] for path in kept.parts()} == {path[0] for path in builtin.parts()} - set(ignored)
    vnpus, iluvatars = kept.section("vnpus"), kept.section("iluvatars")
    assert (vnpus is None, iluvatars == ()) == ("vnpus" in ignored, "iluvatars" in ignored)
    assert kept.section("nvidia") is builtin.section("nvidia")
    assert builtin.section("vnpus") is not None


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    env = {"HAMI_QUOTA_RESYNC": " 60s ", "HAMI_NODELOCK_EXPIRE": "2m", "HAMI_HTTP_BIND": "", "HAMI_LEGACY_METRICS": "1"}
    given_by_env = settings_of("", env)
    assert (given_by_env.quota_resync, given_by_env.node_lock_timeout) == (60, 120)
    assert given_by_env.http_bind.port == 8080
    assert given_by_env.legacy_metrics
    given_by_flag = settings_of("--quota-resync 90s --node-lock-timeout=5m0s --legacy-metrics=false", env)
    assert (given_by_flag.quota_resync, given_by_flag.node_lock_timeout) == (90, 300)
    assert not given_by_flag.legacy_metrics


def test_either_spelling_of_a_flag_is_accepted() -> None:
    assert settings_of("--http-bind :80 --cert-file a --key-file b").tls
    assert settings_of("--v 3").verbosity == settings_of("-v3").verbosity == settings_of("-v 3").verbosity == 3


def test_repeated_lists_are_joined() -> None:
    both = settings_of(
        "--roles webhook --roles controller,webhook --allowed-identities alice,group:ops --allowed-identities bob "
        "--device-plugin-service-accounts gpu/plugin --own-service-accounts a/b,c",
        {"POD_NAMESPACE": "ns"},
    )
    assert both.roles == {"webhook", "controller"}
    assert both.trusted_users == {
        "alice",
        "bob",
        "system:serviceaccount:gpu:plugin",
        "system:serviceaccount:a:b",
        "system:serviceaccount:ns:c",
    }
    assert both.trusted_groups == {"ops"}


def test_the_accounts_of_other_schedulers_are_replaced_and_allowed_identities_write_for_all() -> None:
    line = "--volcano-service-accounts a/b,c --allowed-identities joe,group:ops"
    env = {"POD_NAMESPACE": "ns", "HAMI_KOORDINATOR_SERVICE_ACCOUNTS": "k/s"}
    found = settings_of(line, env)
    assert found.foreign_users == {
        "volcano": {"system:serviceaccount:a:b", "system:serviceaccount:ns:c", "joe"},
        "koordinator": {"system:serviceaccount:k:s", "joe"},
        "kai": {"system:serviceaccount:kai-scheduler:binder", "joe"},
    }
    assert {"joe", "system:serviceaccount:ns:hami-scheduler"} <= found.trusted_users
    assert not found.trusted_users & {"system:serviceaccount:a:b", "system:serviceaccount:k:s"}


@pytest.mark.parametrize(
    ("line", "expected", "warns"),
    [
        ("--gpu-scheduler-policy mutex", "mutex", False),
        ("--gpu-scheduler-policy numa", "numa", False),
        ("--gpu-scheduler-policy=binpack,numa", "binpack,numa", False),
        ("--gpu-scheduler-policy fastest", "spread", True),
        ("--gpu-scheduler-policy=", "spread", False),
        ("--gpu-scheduler-policy=numa,fastest", "numa,fastest", True),
    ],
)
def test_card_policies(line: str, expected: str, warns: bool) -> None:
    resolved = settings_of(line, {"POD_NAMESPACE": "ns"})
    assert resolved.gpu_scheduler_policy == expected
    assert bool(resolved.warnings) is warns


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--node-scheduler-policy tight", '--node-scheduler-policy "tight": unknown, acts as binpack'),
        ("--cert_file x", "only one is given, so TLS is off"),
        (
            "--request-timeout 5s --quota-charge-timeout 3s",
            "--node-lock-retry-timeout: isn't shorter than --request-timeout",
        ),
        ("--request-timeout 3s --node-lock-retry-timeout 0", "--quota-charge-timeout: isn't shorter than"),
    ],
)
def test_what_is_hardly_meant_earns_a_warning(line: str, words: str) -> None:
    (warning,) = settings_of(line, {"POD_NAMESPACE": "ns"}).warnings
    assert words in warning


@pytest.mark.parametrize(
    "line",
    [
        "--http_bind 127.0.0.1:443",
        "--http_bind [::1]:443",
        "--http_bind :443 --roles controller,extender",
        "--http_bind :443 --api-server-cidrs 10.0.0.1/32",
        "--http_bind :443 --client-ca-file ca --cert_file c --key_file k",
    ],
)
def test_reviews_from_anywhere_earn_no_warning_where_there_are_none(line: str) -> None:
    assert settings_of(line, {"POD_NAMESPACE": "ns"}).warnings == ()


def test_the_addresses_of_api_servers_are_ranges_of_either_family() -> None:
    given = settings_of("--api-server-cidrs 10.0.0.0/28,fd00::1/128 --api-server-cidrs 192.0.2.7/32").api_server_cidrs
    assert [str(network) for network in given] == ["10.0.0.0/28", "fd00::1/128", "192.0.2.7/32"]
    assert settings_of("", {"HAMI_API_SERVER_CIDRS": "10.0.0.0/8"}).api_server_cidrs == (ip_network("10.0.0.0/8"),)
    assert settings_of("").api_server_cidrs == ()


def test_the_lease_takes_its_name_from_the_scheduler_and_its_namespace_from_the_pod() -> None:
    elected = settings_of("--leader-elect --scheduler-name s", {"POD_NAMESPACE": "ns"})
    assert (elected.leader_elect_resource_name, elected.leader_elect_resource_namespace) == ("s", "ns")


@pytest.mark.parametrize(
    "line",
    [
        "--extender-bind-address 0.0.0.0:9000 --extender-token-file /token",
        "--extender-bind-address :9000 --extender-client-ca-file /ca --cert_file c --key_file k",
        "--extender-bind-address 0.0.0.0:9000 --roles webhook",
        "--extender-bind-address [::1]:9000",
        "--extender-bind-address localhost:9000",
        "--extender-bind-address=",
        "--extender-bind-address= --extender-client-ca-file a --client-ca-file a --cert_file c --key_file k",
        "--http_bind :0 --metrics-bind-address :0",
    ],
)
def test_addresses_that_are_fine(line: str) -> None:
    settings_of(line)


BAD = [
    ("--http_bind 8080", '--http_bind "8080": must be an address to listen on such as 127.0.0.1:8080, :9395 or [::1]'),
    ("--http_bind ::1:80", "an IPv6 address needs brackets"),
    ("--http_bind [::g]:80", "must be an address to listen on"),
    ("--http_bind a_b:80", "must be an address to listen on"),
    ("--metrics-bind-address :65536", "with a port up to 65535"),
    ("--metrics-bind-address 127.0.0.1:8080", '--metrics-bind-address "127.0.0.1:8080": must differ from --http_bind'),
    (
        "--extender-bind-address 0.0.0.0:9000",
        "must be loopback, or come with --extender-client-ca-file or --extender-t",
    ),
    ("--extender-bind-address 127.0.0.1:8080", "must differ from --http_bind"),
    (
        "--extender-bind-address= --extender-client-ca-file a --cert_file c --key_file k",
        "must be an address, because the main server requests no certificate of --extender-client-ca-file",
    ),
    (
        "--certificate-secret tls",
        "--certificate-secret: needs the role controller, which makes the Secret, and POD_NAMESPACE",
    ),
    ("--client-ca-file x", "--client-ca-file: needs --cert_file and --key_file"),
    ("--api-server-cidrs 10.0.0.1", '--api-server-cidrs "10.0.0.1": must be a comma list of CIDRs such as 10.0.0.0/28'),
    ("--api-server-cidrs 10.0.0.0/28,10.0.0.1/28", "10.0.0.1/28 isn't one"),
    ("--extender-client-ca-file x", "--extender-client-ca-file: needs --cert_file and --key_file"),
    ("--policy-file a\0b", "must be a path, which holds no NUL character"),
    ("--scheduler-name Hami_Scheduler", "must be a Kubernetes name (lower case letters, digits, - and .), or empty"),
    ("--node-label-selector gpu", '--node-label-selector "gpu": must be a comma list of labels such as gpu=on,zone=a'),
    ("--node-label-selector a/b/c=d", "a/b/c=d isn't a label=value"),
    ("--node-label-selector a=b,a=c", "must give the label a one value, not two"),
    ("--kube-qps 0", '--kube-qps "0": must be a number above 0 and at most 100000'),
    ("--kube-qps nan", "must be a number above 0"),
    ("--kube-burst 0", "must be a whole number from 1 to 100000"),
    ("--kube-timeout 1.5", "must be a whole number from 0 to 3600"),
    ("--kube-timeout " + "9" * 5000, "must be a whole number from 0 to 3600"),
    ("-v=x", '-v "x": must be a whole number from 0 to 10'),
    ("--node-lock-timeout 5", '--node-lock-timeout "5": must be a duration such as 300ms, 1.5s or 5m0s; it lacks the'),
    ("--node-lock-timeout 5min", "must be a duration such as 300ms, 1.5s or 5m0s"),
    ("--node-lock-timeout=-5m", "must be a duration such as 300ms, 1.5s or 5m0s, and not negative"),
    ("--node-lock-timeout 0s", "must be a duration from 1s to 24h"),
    ("--quota-reservation-ttl 39s", '--quota-reservation-ttl "39s": must be a duration from 40s to 24h'),
    ("--quota-charge-timeout 0", "must be a duration from 10ms to 30s"),
    ("--quota-max-ledger 0", "must be a whole number from 1 to 100000"),
    ("--max-request-bytes 3Mi", "must be a whole number from 1024 to 67108864"),
    ("--leader-elect=yes", '--leader-elect "yes": must be true or false'),
    ("--leader-elect --scheduler-name s", "--leader-elect: needs --leader-elect-resource-namespace, or POD_NAMESPACE"),
    (
        "--roles scheduler",
        '--roles "scheduler": must be a comma list of webhook, controller, extender, at least one, or node or usage',
    ),
    (
        "--roles node,webhook",
        "must be a comma list of webhook, controller, extender, at least one, or node or usage",
    ),
    ("--roles usage", '--roles "usage": needs POD_NAMESPACE, where its Service and the pods of the role node are'),
    ("--roles node", '--roles "node": needs NODE_NAME, the name of the node whose GPUs it monitors'),
    ("--roles ,", "must be a comma list of webhook, controller, extender, at least one, or node or usage"),
    ("--own-service-accounts x", '--own-service-accounts "x": must be NAMESPACE/x, as POD_NAMESPACE isn\'t set'),
    (
        "--volcano-service-accounts x",
        '--volcano-service-accounts "x": must be NAMESPACE/x, as POD_NAMESPACE isn\'t set',
    ),
    ("--koordinator-service-accounts A/b", "must be a comma list of NAMESPACE/NAME or NAME; A/b isn't one"),
    ("--device-plugin-service-accounts a/b/c", "must be a comma list of NAMESPACE/NAME or NAME; a/b/c isn't one"),
    ("--device-plugin-service-accounts /b", "must be a comma list of NAMESPACE/NAME or NAME; /b isn't one"),
    ("--allowed-identities *", "without wildcards; * isn't one"),
    ("--allowed-identities group:", "group: isn't one"),
    ("--allowed-identities group:system:authenticated", "would let everyone forge allocations"),
    ("--allowed-identities system:node:n1", "a node may already write for the pods on it, and no others"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_flag_is_refused_with_one_sentence(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings_of(line)
    (fault,) = refusal.value.faults
    assert words in fault
    assert fault.startswith("-")
    assert "\n" not in fault


def test_bad_variables_are_named_and_all_faults_come_together() -> None:
    with pytest.raises(ConfigError) as refusal:
        settings_of("--kube-burst x", {"HAMI_QUOTA_RESYNC": "soon", "HAMI_NODELOCK_EXPIRE": "5"})
    assert [fault.split('"')[0] for fault in refusal.value.faults] == [
        "HAMI_NODELOCK_EXPIRE ",
        "HAMI_QUOTA_RESYNC ",
        "--kube-burst ",
    ]


def test_every_setting_has_help_a_variable_and_a_default_that_reads() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = parser.format_help()
    for setting in SETTINGS:
        setting.read(setting.default)
        assert setting.env
        assert all(flag in text for flag in setting.flags)
    assert {setting.name for setting in SETTINGS} | {"warnings"} == set(Settings.__dataclass_fields__)
    assert len({setting.env for setting in SETTINGS}) == len(SETTINGS)


NAMES = st.sampled_from([setting for setting in SETTINGS if setting.flags])


@given(NAMES, st.text())
@example(SETTINGS[0], "\ud800")
def test_no_text_raises_anything_else(setting: object, text: str) -> None:
    args = argparse.Namespace(**{getattr(setting, "name", ""): text})
    try:
        resolve(args, NOWHERE)
    except ConfigError as refusal:
        faults = refusal.faults
    else:
        return
    assert faults


@in_one_test(
    ("text", "seconds"),
    [
        ("0", 0),
        ("+5s", 5),
        ("5m0s", 300),
        ("1h15m30.918273645s", 4530.918273645),
        (".5s", 0.5),
        ("1.s", 1),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("1ns", 1e-9),
        ("0.9ns", 0),
        ("0.3333333333333333333h", 1200),
        ("39h9m14.425s", 140954.425),
    ],
)
def test_durations_read_as_in_go(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == pytest.approx(seconds, abs=1e-6)


@in_one_test("text", ["", "s", ".s", "+.s", ".", "3", "1.5", "- 5s", "5 s", "1d", "１s", "5s ", "--5s", "1e3s"])
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_go_duration(text, signed=True)


def test_only_signed_durations_may_be_negative_and_none_may_overflow() -> None:
    assert parse_go_duration("-1.5s", signed=True) == -1.5
    with pytest.raises(ValueError, match="not negative"):
        parse_go_duration("-1s")
    with pytest.raises(ValueError, match="292 years"):
        parse_go_duration("9223372036854775808ns")
    with pytest.raises(ValueError, match="292 years"):
        parse_go_duration("9" * 99 + "h")


def in_go_style(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}.{rest:09}s"


@given(st.integers(0, 2**62))
def test_durations_survive_a_round_trip(nanoseconds: int) -> None:
    seconds = pytest.approx(nanoseconds / 10**9, rel=1e-12, abs=1e-6)
    assert parse_go_duration(in_go_style(nanoseconds)) == seconds
    assert parse_go_duration(f"{nanoseconds}ns") == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ListenAddress("127.0.0.1", 8080)),
        (":9395", ListenAddress("", 9395)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("Host.example:0", ListenAddress("Host.example", 0)),
    ],
)
def test_listen_addresses_read_and_print_the_same(text: str, address: ListenAddress) -> None:
    assert parse_listen_address(text) == address
    assert str(address) == text


def test_booleans_read_as_in_go() -> None:
    assert [parse_go_bool(text) for text in ("1", "t", "TRUE", "0", "F", "false")] == [True] * 3 + [False] * 3
    with pytest.raises(ValueError, match="must be true or false"):
        parse_go_bool("yes")
