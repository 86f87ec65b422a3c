"""The main job, shown: real AdmissionReviews over real HTTPS, charges, placements and debits on the embedded cluster.

`demo.py` runs the example pods and ends; `demo.py --keep` then keeps the server up for your own curl calls, and shows
the web pages of the embedded cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import ssl
import sys
import tempfile
import time
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonpatch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hami_webhook import pki
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import ContextNames
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import read_objects, sort_objects
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config import Settings, add_flags, resolve
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.doctor.installation import Effective
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kubectl.live import LiveCluster, read_with
from hami_webhook.kubectl.ui.readings import Readings
from hami_webhook.kubectl.ui.server import listening, serve_on
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import State
from hami_webhook.scheduling.placer import Placement, Unschedulable
from hami_webhook.server.run import Running, running

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "manifests" / "examples"
NAMESPACE, QUOTA = "team-a", "gpu-quota"

console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)


class Client:
    """Posts AdmissionReviews to the server, trusting only the demo's own CA."""

    def __init__(self, port: int, ca: Path) -> None:
        self._base = f"https://127.0.0.1:{port}"
        self._context = ssl.create_default_context(cafile=str(ca))

    async def review(self, path: str, pod: dict[str, Any]) -> dict[str, Any]:
        """The AdmissionResponse for creating the pod."""
        return await asyncio.to_thread(self._post, path, review_of(pod))

    def _post(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._base}{path}?timeout=10s",
            json.dumps(review).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
            response: dict[str, Any] = json.load(answer)["response"]
            return response


def review_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The AdmissionReview that the API server would send for creating the pod."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": pod["metadata"]["namespace"],
            "name": pod["metadata"]["name"],
            "userInfo": {"username": "demo-user"},
            "object": pod,
        },
    }


async def admit(client: Client, cluster: MemoryCluster, pod: dict[str, Any]) -> dict[str, Any] | None:
    """What the API server does with a new pod: mutate, assign the UID, validate, store. None if it was refused."""
    mutated = await client.review("/mutate", pod)
    if not mutated["allowed"]:
        print_refusal(mutated)
        return None
    patch = json.loads(base64.b64decode(mutated["patch"])) if "patch" in mutated else []
    for operation in patch:
        console.print(f"  patch      {escape(json.dumps(operation))}")
    for warning in mutated.get("warnings", ()):
        console.print(f"  [yellow]warning[/]    {escape(warning)}")
    admitted = jsonpatch.apply_patch(pod, patch)
    admitted["metadata"]["uid"] = str(uuid.uuid4())
    validated = await client.review("/validate", admitted)
    if not validated["allowed"]:
        print_refusal(validated)
        return None
    charged = validated.get("auditAnnotations", {}).get("quota", "nothing to charge")
    console.print(f"  [green]allowed[/]    charged: {escape(charged)}")
    return await cluster.create(Kind.PODS, admitted)


def print_refusal(response: dict[str, Any]) -> None:
    status = response["status"]
    console.print(f"  [red]refused[/]    {status['code']} {status['reason']}: {escape(status['message'])}")


async def place(process: Running, cluster: MemoryCluster, stored: dict[str, Any]) -> None:
    """What the scheduler and the kubelet do with a stored pod: choose node and cards, bind, run."""
    pod = Pod.from_object(stored)
    placement = await process.core.placer.place(pod)
    if placement is None:
        console.print("  placement  requests no accelerator: left to the default scheduler")
    elif isinstance(placement, Unschedulable):
        console.print(f"  [red]unplaced[/]   {escape(', '.join(f'{n}: {why}' for n, why in placement.failed.items()))}")
    else:
        await cluster.set_phase(pod.namespace, pod.name, "Running")
        print_placement(placement)


def print_placement(placement: Placement) -> None:
    for row in placement.rows:
        for allocation in row.values():
            cards = ", ".join(f"{d.uuid} ({d.share.memory} MiB, {d.share.cores} cores)" for d in allocation.devices)
            console.print(f"  placement  [bold]{placement.node}[/]: {escape(cards)}")
    for node, why in placement.failed.items():
        console.print(f"             not {node}: {escape(str(why))}")


async def show_quota(cluster: MemoryCluster, vendors: Vendors, title: str) -> None:
    books = QuotaAccount.read(
        ResourceQuota.from_object(await cluster.get(Kind.RESOURCE_QUOTAS, QUOTA, NAMESPACE)), vendors
    )
    table = Table(title=title, title_justify="left")
    for heading in ("resource", "used", "hard"):
        table.add_column(heading, justify="left" if heading == "resource" else "right")
    for key, hard in sorted(books.hard.items()):
        table.add_row(key, str(books.used.get(key, "unknown")), str(hard))
    console.print(table)


async def settled(cluster: MemoryCluster, vendors: Vendors) -> None:
    """Wait until the controller has put the quota right: no charge in its ledger is of a pod in flight."""
    for _ in range(200):
        quota = ResourceQuota.from_object(await cluster.get(Kind.RESOURCE_QUOTAS, QUOTA, NAMESPACE))
        books = QuotaAccount.read(quota, vendors)
        in_flight = [entry for entry in books.ledger.values() if entry.state is not State.FLOOR]
        if len(books.used) == len(books.hard) and not in_flight:
            return
        await asyncio.sleep(0.05)
    raise SystemExit("demo: the quota controller didn't settle within 10 s")


async def demonstrate(settings: Settings, folder: Path, keep: bool) -> None:
    vendors = enabled_vendors(builtin_device_config().config)
    cluster = MemoryCluster(time.time)
    await fill(cluster, sort_objects(read_objects(str(EXAMPLES / "cluster.yaml"), sys.stdin.buffer)))
    pods = [item.object for item in read_objects(str(EXAMPLES / "pods.yaml"), sys.stdin.buffer)]
    async with running(cluster, vendors, settings) as process:
        console.print(
            f"hami-webhook serves https://127.0.0.1:{process.main.port} with new certificates; "
            f"the embedded cluster is {EXAMPLES.relative_to(ROOT)}/cluster.yaml\n"
        )
        client = Client(process.main.port, folder / pki.CA_CERTIFICATE)
        await settled(cluster, vendors)
        await show_quota(cluster, vendors, "Quota before")
        for number, pod in enumerate(pods, 1):
            limits = [container["resources"]["limits"] for container in pod["spec"]["containers"]]
            console.print(f"\n[bold]{number}. {pod['metadata']['name']}[/]  {escape(json.dumps(limits)[1:-1])}")
            for key, value in pod["metadata"].get("annotations", {}).items():
                console.print(f"  annotation {key}: {escape(value)}")
            stored = await admit(client, cluster, pod)
            if stored is not None:
                await place(process, cluster, stored)
        await settled(cluster, vendors)
        console.print()
        await show_quota(cluster, vendors, "Quota after, as the controller wrote it into the ResourceQuota's status")
        if keep:
            await stay(process, cluster, folder, pods[1], Effective(settings, vendors, PolicyRules.EMPTY))


async def stay(
    process: Running, cluster: MemoryCluster, folder: Path, pod: dict[str, Any], effective: Effective
) -> None:
    example = folder / "review.json"
    fresh = {**pod, "metadata": {**pod["metadata"], "name": "mine", "uid": str(uuid.uuid4())}}
    example.write_text(json.dumps(review_of(fresh), indent=2))
    base = f"https://127.0.0.1:{process.main.port}"
    curl = f"curl -s --cacert {folder / pki.CA_CERTIFICATE}"
    console.print(
        "\n[bold]The server stays up[/]; Ctrl-C ends it. For example, from another terminal:\n", soft_wrap=True
    )
    for path in ("mutate", "validate"):
        console.print(
            f"  {curl} -H 'Content-Type: application/json' -d @{example} {base}/{path}", soft_wrap=True, markup=False
        )
    for path in ("readyz", "metrics"):
        console.print(f"  {curl} {base}/{path}", soft_wrap=True, markup=False)
    console.print(f"\nEdit {example} to ask for something else.", soft_wrap=True)
    console.print("The web pages of the embedded cluster, as `kubectl hami ui` shows a real one's:\n")

    async def reading() -> LiveCluster:
        return await read_with(cluster, effective, NAMESPACE, time.time())

    with listening(0) as listener:
        await serve_on(
            listener, Readings(reading, await reading(), ContextNames(NAMESPACE, "embedded cluster")), diagnose=None
        )


def main() -> None:
    arguments = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    arguments.add_argument("--keep", action="store_true", help="keep the server up afterwards")
    keep = arguments.parse_args().keep
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hami-webhook-demo-") as folder:
        certificates = Path(folder)
        pki.write(certificates, pki.generate("hami-webhook", "hami-system", now=datetime.now(UTC)), force=True)
        flags = argparse.ArgumentParser(allow_abbrev=False)
        add_flags(flags)
        settings = resolve(
            flags.parse_args(
                [
                    "--http_bind=127.0.0.1:0",
                    "--metrics-bind-address=127.0.0.1:0",
                    "--extender-bind-address=127.0.0.1:0",
                    f"--cert_file={certificates / pki.SERVING_CERTIFICATE}",
                    f"--key_file={certificates / pki.SERVING_KEY}",
                    "--scheduler-name=hami-scheduler",
                    "--quota-debounce=50ms",
                ]
            ),
            {},
        )
        try:
            asyncio.run(demonstrate(settings, certificates, keep))
        except KeyboardInterrupt:
            console.print("\nended")


if __name__ == "__main__":
    main()
