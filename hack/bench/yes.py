"""A webhook that only says yes, in the same stack: what being asked costs, whatever the answer.

`python -m hack.bench.yes PORT CERTIFICATE KEY [KUBECONFIG WRITES]` answers `/mutate` with the scheduler's name, and
`/validate` with nothing. With a login it writes to the namespace's quota `gpu` before it answers, as whoever charges a
pod must, and charges nothing: so many times for each of the latter on average, which may be a part of one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hack.bench.objects import JSON, SCHEDULER
from hami_webhook.admission.review import API_VERSIONS, UNCHANGED, Answer, allowed
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.server.bodies import read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

LIMITS = ListenerLimits()
NAMED = Answer([{"op": "replace", "path": "/spec/schedulerName", "value": SCHEDULER}])


class _Writer:
    """Writes to the quota of a review's namespace, `each` times on average."""

    def __init__(self, cluster: KubernetesCluster, each: float) -> None:
        self._cluster = cluster
        self._each = each
        self._due = 0.0

    async def write(self, review: JSON) -> None:
        self._due += self._each
        while self._due >= 1:
            self._due -= 1
            patch = {"metadata": {"annotations": {"example.com/pod": review["uid"]}}}
            await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu", patch, review["namespace"])


def _answering(answer: Answer, writer: _Writer | None = None) -> Route:
    async def yes(request: Request) -> Response:
        review = orjson.loads(await read_body(request, LIMITS))["request"]
        if writer is not None:
            await writer.write(review)
        content = allowed(API_VERSIONS[0], review["uid"], answer)
        return Response(content, media_type="application/json")

    return Route("/validate" if answer is UNCHANGED else "/mutate", yes, methods=["POST"])


async def _serve(port: int, files: CertificateFiles, login: str = "", writes: str = "1") -> None:
    writer = _Writer(KubernetesCluster(await connect(login)), float(writes)) if login else None
    app = Starlette(routes=[_answering(NAMED), _answering(UNCHANGED, writer)])
    await Listener(app, host="127.0.0.1", port=port, limits=LIMITS, tls=ReloadingTls(files)).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _port, _certificate, _key, *_login = sys.argv[1:]
    uvloop.run(_serve(int(_port), CertificateFiles(Path(_certificate), Path(_key)), *_login))
