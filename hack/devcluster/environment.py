"""The environment variables of a container, as kubelet makes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .client import JSON, ApiError, Client
from .volumes import ConfigurationError, content, field, unsupported

_REFERENCE = re.compile(r"\$(\$|\([A-Za-z_][\w.-]*\))")


def api_service(service: JSON) -> JSON:
    """The Service kubernetes as pods here reach it: its usual port, 443, is one that a pod may listen on itself."""
    spec = service["spec"]
    return {**service, "spec": {**spec, "ports": [{**spec["ports"][0], "port": 6443}]}}


def service_links(services: Sequence[JSON]) -> dict[str, str]:
    """The variables by which containers find Services, as kubelet sets them."""
    found: dict[str, str] = {}
    for service in services:
        host, ports = service["spec"].get("clusterIP"), service["spec"].get("ports") or []
        if not ports or host in (None, "", "None"):
            continue
        prefix = service["metadata"]["name"].upper().replace("-", "_")
        first = ports[0]
        protocol = first.get("protocol", "TCP").lower()
        found |= {f"{prefix}_SERVICE_HOST": host, f"{prefix}_SERVICE_PORT": str(first["port"])}
        found[f"{prefix}_PORT"] = f"{protocol}://{host}:{first['port']}"
        for port in ports:
            protocol = port.get("protocol", "TCP")
            link = f"{prefix}_PORT_{port['port']}_{protocol}"
            found[link] = f"{protocol.lower()}://{host}:{port['port']}"
            found |= {f"{link}_PROTO": protocol.lower(), f"{link}_PORT": str(port["port"]), f"{link}_ADDR": host}
            if port.get("name"):
                found[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["port"])
    return found


async def environment(
    client: Client, pod: JSON, container: JSON, of_image: dict[str, str], addresses: tuple[str, str]
) -> dict[str, str]:
    """A container's variables: the image's, those of Services, and its own.

    `addresses` are the pod's and the machine's. Raises `ConfigurationError` while one comes from an object that doesn't
    exist.
    """
    namespace = pod["metadata"]["namespace"]
    services = [api_service(await client.get("/api/v1/namespaces/default/services/kubernetes"))]
    if pod["spec"].get("enableServiceLinks", True):
        services += (await client.get(f"/api/v1/namespaces/{namespace}/services"))["items"]
    found = {"HOME": "/", "HOSTNAME": pod["metadata"]["name"], **of_image}
    found |= service_links(services)
    for source in container.get("envFrom") or []:
        kind = "secretRef" if "secretRef" in source else "configMapRef"
        data = await _data(client, namespace, kind, source[kind])
        found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
    for variable in container.get("env") or []:
        value = await _value(client, pod, variable, addresses)
        if value is not None:
            found[variable["name"]] = expand(value, found)
    return found


async def _value(client: Client, pod: JSON, variable: JSON, addresses: tuple[str, str]) -> str | None:
    """The value of a variable; None if it comes from a key that may be missing and is."""
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    ((kind, reference),) = variable["valueFrom"].items()
    if kind == "fieldRef":
        return field(pod, reference["fieldPath"], addresses)
    data = await _data(client, pod["metadata"]["namespace"], kind, reference)
    if reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    raise ConfigurationError(
        "CreateContainerConfigError", f"couldn't find key {reference['key']} of {reference['name']}"
    )


async def _data(client: Client, namespace: str, kind: str, reference: JSON) -> dict[str, bytes]:
    """What the object of an environment's source holds; nothing, if it is optional and doesn't exist."""
    plural = {"configMap": "configmaps", "secret": "secrets"}.get(kind.removesuffix("Ref").removesuffix("Key"))
    if plural is None:
        raise unsupported(f"variables from {kind}")
    try:
        return content(await client.get(f"/api/v1/namespaces/{namespace}/{plural}/{reference['name']}"))
    except ApiError as error:
        if error.code == 404 and reference.get("optional"):
            return {}
        raise ConfigurationError("CreateContainerConfigError", str(error)) from error


def expand(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` replaced by the variable; `$$` is one dollar, and a name that isn't known stays."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else variables.get(found[1][1:-1], found[0])

    return _REFERENCE.sub(value, text)
