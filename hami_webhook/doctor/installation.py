"""What is installed: the Deployments that run the program, the settings of their processes, and the files they read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import cache
from pathlib import PurePosixPath
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import JSON, Forbidden
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.cluster.loading import Bundle
from hami_webhook.config import ConfigError, LoadedDeviceConfig, Settings, add_flags, resolve
from hami_webhook.core_options import Options, options_of
from hami_webhook.device_config import builtin_device_config, enabled_vendors, exporters_of, load_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.usage.exporters import Exporter

_MANIFESTS_ARGS = ("--scheduler-name=hami-scheduler", "--enable-ascend", "--enable-iluvatar")
"""What of the settings in our manifests matters to a reader, where the Deployments can't be read."""


class _Refusing(argparse.ArgumentParser):
    """Raises what it would end the program with."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


class Process(Struct, frozen=True):
    """A container of a Deployment that runs `serve`, under this name or that of HAMi's command."""

    deployment: JSON
    container: JSON
    settings: Settings

    @property
    def name(self) -> str:
        """The Deployment's name."""
        return str(self.deployment["metadata"]["name"])

    @property
    def pod_spec(self) -> JSON:
        found: JSON = self.deployment["spec"]["template"]["spec"]
        return found

    @property
    def service_account(self) -> str:
        return str(self.pod_spec.get("serviceAccountName") or "default")


class Installation(Struct, frozen=True):
    """The Deployments and ConfigMaps of the namespace, and the processes of the program among them.

    `faults` are the Deployments whose settings can't be used, by name.
    """

    namespace: str
    deployments: Sequence[JSON]
    config_maps: Mapping[str, JSON]
    processes: Sequence[Process]
    faults: Mapping[str, str] = {}

    def process(self, role: str) -> Process | None:
        """The process that has a role."""
        return next((each for each in self.processes if role in each.settings.roles), None)

    def file(self, pod_spec: JSON, container: JSON, path: str) -> tuple[str, str] | None:
        """The ConfigMap that a container reads a file from, and the file's text; None if it isn't one of these."""
        wanted = PurePosixPath(path)
        volumes = {each["name"]: each for each in pod_spec.get("volumes") or ()}
        for mount in container.get("volumeMounts") or ():
            name = (volumes.get(mount["name"], {}).get("configMap") or {}).get("name", "")
            mounted = PurePosixPath(mount["mountPath"])
            key = mount.get("subPath") if mounted == wanted else wanted.name if mounted == wanted.parent else None
            if name in self.config_maps and key is not None:
                text = (self.config_maps[name].get("data") or {}).get(key)
                return None if text is None else (name, text)
        return None

    def device_config(self, process: Process) -> LoadedDeviceConfig | None:
        """The device configuration of a process; None if its file isn't a ConfigMap's. Raises `ConfigError`."""
        found = self.file(process.pod_spec, process.container, process.settings.device_config_file)
        return None if found is None else load_device_config(found[1], f"ConfigMap {self.namespace}/{found[0]}")


class Effective(Struct, frozen=True):
    """What the installed program goes by. Sentences on what is assumed are in `unseen` for lack of rights, else in
    `absent`.
    """

    settings: Settings
    vendors: Vendors
    policies: PolicyRules
    unseen: Sequence[str] = ()
    absent: Sequence[str] = ()
    exporters: Sequence[Exporter] = ()
    """Of vendors' cards, as the device configuration names them."""

    @property
    def charges_claims(self) -> bool:
        """Whether ResourceClaims are charged."""
        return bool(self.vendors.drivers)

    @property
    def options(self) -> Options:
        """What a core runs with that only reads: handshakes are in UTC, as the containers' clocks are."""
        found = options_of(self.settings)
        return replace(found, charge_timeout=60.0, bounds=replace(found.bounds, most=100_000), zone=UTC)

    async def simulation(self, bundle: Bundle, now: float) -> Simulation:
        """The cluster as it was read from an API server at `now` (Unix seconds)."""
        found = Simulation(self.vendors, self.options, self.policies, now)
        await found.fill(bundle, trust_used=True, stored=True)
        found.core.state.tick(now)
        return found


async def read_installation(cluster: KubernetesCluster, namespace: str) -> Installation:
    """The program's Deployments in a namespace. Raises `ClusterError`."""
    deployments = (await cluster.call("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments"))["items"]
    config_maps = (await cluster.call("GET", f"/api/v1/namespaces/{namespace}/configmaps"))["items"]
    processes, faults = [], {}
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            arguments = _arguments(container)
            if arguments is None:
                continue
            written = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
            environment = {**written, "POD_NAMESPACE": namespace, "POD_NAME": "pod"}
            try:
                processes.append(Process(deployment, container, _settings(arguments, environment)))
            except ConfigError as error:
                faults[deployment["metadata"]["name"]] = str(error)
    named = {item["metadata"]["name"]: item for item in config_maps}
    return Installation(namespace, deployments, named, processes, faults)


async def installed_version(cluster: KubernetesCluster, namespace: str) -> object:
    """What is another once the program of a namespace goes by something else; raises as `read_effective` does."""
    try:
        found = await read_installation(cluster, namespace)
    except Forbidden:
        return None
    deployments = [each["metadata"] for each in found.deployments]
    generations = {each["name"]: each.get("generation") for each in deployments}
    return generations, {name: each.get("data") for name, each in found.config_maps.items()}


def _arguments(container: Mapping[str, Any]) -> list[str] | None:
    """The flags of `serve` that a container runs with; None if it runs something else."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if "serve" in words:
        return words[words.index("serve") + 1 :]
    if words and PurePosixPath(words[0]).name == "scheduler":  # in HAMi's own chart
        return ["--extender-bind-address=", "--webhook-configuration=", *words[1:]]
    return None


def _settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    return resolve(_parser().parse_args(arguments), environment)


@cache
def _parser() -> argparse.ArgumentParser:
    parser = _Refusing(add_help=False, allow_abbrev=False)
    add_flags(parser)
    return parser


async def read_effective(
    cluster: KubernetesCluster, namespace: str, device_config: LoadedDeviceConfig | None = None
) -> Effective:
    """What the program in a namespace goes by; `device_config` takes precedence over the installed one.

    Raises `ConfigError`, and `ClusterError` for anything but lacking rights.
    """
    settings, policies = _manifests_settings(namespace), PolicyRules.EMPTY
    loaded, unseen, absent, rules = device_config, [], [], None
    try:
        installation = await read_installation(cluster, namespace)
    except Forbidden:
        unseen.append(
            f"no right to read the Deployments and ConfigMaps of {namespace}: HAMi's own device configuration"
            " and no policy are assumed (--config FILE names another)"
        )
    else:
        process = installation.process("webhook")
        if process is not None:
            settings = process.settings
            loaded = loaded or installation.device_config(process)
            rules = installation.file(process.pod_spec, process.container, settings.policy_file)
        else:
            absent.append(f"no Deployment in {namespace} runs the webhook: HAMi's own device configuration is assumed")
    loaded = loaded or builtin_device_config()
    vendors = _vendors(loaded, settings)
    if rules is not None:
        from hami_webhook.policy.file import PolicyFile  # most commands find no file, and start sooner without

        policies = PolicyFile.parse(rules[1], f"ConfigMap {namespace}/{rules[0]}", vendors.governed)
    return Effective(settings, vendors, policies, unseen, absent, exporters_of(loaded.config))


def assumed(namespace: str) -> Effective:
    """What the program goes by if its settings are those of our manifests, and the device configuration is HAMi's."""
    settings = _manifests_settings(namespace)
    return Effective(settings, _vendors(builtin_device_config(), settings), PolicyRules.EMPTY)


def _manifests_settings(namespace: str) -> Settings:
    return _settings(_MANIFESTS_ARGS, {"POD_NAMESPACE": namespace, "POD_NAME": "pod"})


def _vendors(loaded: LoadedDeviceConfig, settings: Settings) -> Vendors:
    return enabled_vendors(loaded.config.without(settings.ignored_sections))
