"""The pages: routes, what each takes from the last reading, and their templates."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import groupby
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.loading import LoadError, load_objects
from hami_webhook.doctor.checks import Diagnosis
from hami_webhook.explain.read import UnknownPod
from hami_webhook.explain.tables import NEAREST, changes_of, notes_of, tables_of
from hami_webhook.html_report import page_templates, rendered
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.human_memory import human_amount
from hami_webhook.kube.message_text import counted
from hami_webhook.kubectl.budgets import budgets
from hami_webhook.kubectl.capacity import COUNTS
from hami_webhook.kubectl.report import CardUse, PodUse
from hami_webhook.kubectl.tables import amounts_text
from hami_webhook.kubectl.ui import listings
from hami_webhook.kubectl.ui.access import Access, ProxiedUsers, TokenHolders
from hami_webhook.kubectl.ui.fleet import (
    COLOURS,
    NEARLY_FULL,
    FleetTotals,
    NodeCards,
    closed_cards,
    fleet_map,
    nearly_full,
    percent,
    used_memory,
    waiting,
)
from hami_webhook.kubectl.ui.metrics import Key, Points
from hami_webhook.kubectl.ui.pod_sections import pod_sections
from hami_webhook.kubectl.ui.readings import (
    WAITING_SERIES,
    Readings,
    card_series,
    model_series,
    pod_series,
    quota_series,
)
from hami_webhook.kubectl.ui.texts import in_path, memory_text, time_text
from hami_webhook.simulate import results
from hami_webhook.simulate.manifests import pods_of
from hami_webhook.simulate.results import Pods, Result

_PATHS = {
    "/overview": "Overview",
    "/cluster": "Cluster",
    "/teams": "Teams",
    "/pods": "Pods",
    "/what-if": "What if",
    "/doctor": "Doctor",
}
"""The pages that the navigation names."""
_NODES_A_PAGE = 50
_MOST_PODS = 1000
_LONGEST_MANIFEST = 1024 * 1024
_LONGEST_ADDRESS = 8000
"""Characters that browsers, proxies and chats leave alone."""
_MOST_DIGITS = 9
_CHOICES = ("node", "vendor", "model", "label", "health")
_HEALTHS = ("healthy", "unhealthy")
_PODS_A_PAGE = 200

_HEARTBEAT = 2.0
"""Seconds between two words of a program that is well; pages that hear none for 5 seconds say so."""
_Row = TypeVar("_Row")

Diagnose = Callable[[], Awaitable[Diagnosis]]
"""Checks the installation."""


class Pages:
    """The application for its visitors; without `diagnose` there is no page Doctor."""

    def __init__(self, readings: Readings, diagnose: Diagnose | None, visitors: TokenHolders | ProxiedUsers) -> None:
        self._readings = readings
        self._diagnose = diagnose
        self._visitors = visitors
        self._paths = _PATHS if diagnose is not None else {each: _PATHS[each] for each in _PATHS if each != "/doctor"}
        self._templates = page_templates()
        self._templates.filters |= {"memory": memory_text, "age": human_duration, "in_path": in_path}
        self._templates.globals |= {"counted": counted, "amount": human_amount, "costs": amounts_text}
        self._templates.globals |= {"percent": percent, "series": self._series, "model_series": model_series}
        self._templates.globals |= {"quota_series": quota_series, "waiting_series": WAITING_SERIES}

    def app(self) -> Starlette:
        @asynccontextmanager
        async def reading(_: Starlette) -> AsyncIterator[None]:
            readings, metrics = self._readings, self._readings.metrics
            tasks = [asyncio.create_task(readings.keep_reading())]
            if readings.probe is not None:
                tasks.append(asyncio.create_task(readings.keep_probing(readings.probe)))
            if metrics is not None:
                tasks.append(asyncio.create_task(metrics.keep_asking(readings.tell)))
            yield
            for task in tasks:
                task.cancel()

        routes = [
            Route("/", self._enter),
            Route("/overview", self._overview),
            Route("/overview.csv", self._capacities_csv),
            Route("/cluster", self._cluster),
            Route("/cluster.csv", self._cards_csv),
            Route("/cards/{card:path}", self._card),
            Route("/teams", self._teams),
            Route("/teams.csv", self._quotas_csv),
            Route("/teams/{namespace}", self._team),
            Route("/queue", self._queue),
            Route("/pods", self._pods),
            Route("/pods.csv", self._pods_csv),
            Route("/pods/{namespace}/{name:path}", self._pod),
            Route("/pod.csv/{namespace}/{name:path}", self._pod_csv),
            Route("/what-if", self._what_if, methods=["GET", "POST"]),
            Route("/what-if.csv", self._what_if_csv, methods=["POST"]),
            Route("/events", self._events),
            Mount("/static", StaticFiles(packages=[("hami_webhook.kubectl.ui", "static")])),
        ]
        if isinstance(self._visitors, TokenHolders):
            routes.append(Route("/login", self._login(self._visitors), methods=["POST"]))
        if self._diagnose is not None:
            routes.append(Route("/doctor", self._doctor(self._diagnose)))
        middleware = [Middleware(Access, visitors=self._visitors)]
        refused = {
            _Refused: lambda _, error: PlainTextResponse(f"{error}\n", 400),
            ClientDisconnect: lambda _, error: Response(status_code=400),  # nobody reads it
        }
        return Starlette(routes=routes, middleware=middleware, lifespan=reading, exception_handlers=refused)

    async def _enter(self, request: Request) -> Response:
        return HTMLResponse(self._templates.get_template("enter.html").render())

    def _login(self, visitors: TokenHolders) -> Callable[[Request], Awaitable[Response]]:
        async def login(request: Request) -> Response:
            if not visitors.admits((await _body(request, 200)).decode(errors="replace")):
                return PlainTextResponse("This isn't the token that was printed last.\n", 403)
            response = Response(status_code=204)
            response.set_cookie(visitors.cookie, visitors.token, httponly=True, samesite="strict")
            return response

        return login

    async def _overview(self, request: Request) -> Response:
        contents, metrics = self._readings.contents, self._readings.metrics
        asked = {"by": request.query_params.get("by", "memory"), "pool": request.query_params.get("pool", "")}
        if asked["by"] not in COLOURS:
            raise _Refused(f"by must be one of {', '.join(COLOURS)}")
        moves = "moves" in request.query_params
        places = self._places(asked["pool"])
        return self._page(
            "overview.html",
            asked=asked,
            colours=COLOURS,
            colour=COLOURS[asked["by"]],
            labels=contents.labels,
            sees_nodes=Kind.NODES not in self._readings.cluster.unseen,
            quotas=contents.quotas,
            rows=listings.keys(contents.quotas),
            pods=contents.pods,
            totals=FleetTotals.of(contents.cards),
            capacities=contents.capacities(self._readings.cluster, asked["pool"]),
            closed=closed_cards(contents.cards, contents.closed),
            counts=COUNTS,
            freed=contents.freed_by_moves(self._readings.cluster) if moves else None,
            fleet=fleet_map(contents.cards, asked["by"], places, contents.closed),
            waiting=waiting(contents.pods),
            full=nearly_full(contents.quotas),
            nearly=NEARLY_FULL,
            used=used_memory(contents.cards, places),
            alerts=metrics.alerts if metrics else None,
            charts=[*self._charts()],
            query=request.url.query,
        )

    async def _capacities_csv(self, request: Request) -> Response:
        pool, contents = request.query_params.get("pool", ""), self._readings.contents
        found = contents.capacities(self._readings.cluster, pool)
        used = used_memory(contents.cards, self._places(pool))
        return _download("models.csv", listings.capacities_csv(found, used))

    def _places(self, pool: str) -> Mapping[str, str]:
        """The place of each node: the value of the label that names pools; nothing where none does."""
        views = self._readings.cluster.simulation.core.state.views()
        return {view.name: view.node.labels.get(pool, "") for view in views} if pool else {}

    async def _cluster(self, request: Request) -> Response:
        cards = self._readings.contents.cards
        asked, found = self._asked_cards(request)
        nodes = [(name, list(group)) for name, group in groupby(found, key=lambda card: card.node)]
        overview, closed = self._readings.cluster.overview, self._readings.contents.closed
        shown, page, pages = _page_of(nodes, _NODES_A_PAGE, request)
        return self._page(
            "cluster.html",
            asked=asked,
            vendors=sorted({card.vendor for card in cards}),
            models=sorted({card.model for card in cards}),
            healths=_HEALTHS,
            nodes=[
                NodeCards.of(name, cards, overview.link_groups(name), closed.get(name, "")) for name, cards in shown
            ],
            one=len(nodes) == 1,
            totals=FleetTotals.of(found),
            page=page,
            pages=pages,
            address=lambda number: str(request.url.include_query_params(page=number).query),
            query=request.url.query,
        )

    async def _card(self, request: Request) -> Response:
        asked = request.path_params["card"]  # its node and UUID: in what a node registers there may be slashes
        for card in self._readings.contents.cards:
            if f"{card.node}/{card.uuid}" == asked:
                metrics = self._readings.metrics
                hour = await metrics.last_hour_of_card(card.uuid) if metrics is not None else {}
                return self._page("card.html", card=card, hour=self._hour(hour, card_series(card.node, card.uuid)))
        return self._page("text.html", title=asked, text=f"no node has the card {asked}", status=404)

    async def _cards_csv(self, request: Request) -> Response:
        _, found = self._asked_cards(request)
        return _download("cards.csv", listings.cards_csv(found))

    def _asked_cards(self, request: Request) -> tuple[Mapping[str, str], Sequence[CardUse]]:
        asked = {each: request.query_params.get(each, "") for each in _CHOICES}
        key, _, value = asked["label"].partition("=")
        state = self._readings.cluster.simulation.core.state
        tests: Mapping[str, Callable[[CardUse], bool]] = {
            "node": lambda card: asked["node"] in card.node,
            "vendor": lambda card: asked["vendor"] == card.vendor,
            "model": lambda card: asked["model"] == card.model,
            "health": lambda card: asked["health"] == _HEALTHS[0 if card.healthy else 1],
            "label": lambda card: (
                not key or ((view := state.view(card.node)) is not None and view.node.labels.get(key) == value)
            ),
        }
        found = self._readings.contents.cards
        for choice, test in tests.items():
            if asked[choice]:
                found = [*filter(test, found)]
        return asked, found

    async def _teams(self, request: Request) -> Response:
        sort, quotas = request.query_params.get("sort", ""), self._readings.contents.quotas
        return self._page(
            "teams.html",
            quotas=quotas,
            rows=listings.keys(quotas, sort),
            sort=sort if sort in listings.KEY_ORDERS else listings.FIRST_ORDER,
            query=request.url.query,
        )

    async def _quotas_csv(self, request: Request) -> Response:
        rows = listings.keys(self._readings.contents.quotas, request.query_params.get("sort", ""))
        return _download("quotas.csv", listings.quotas_csv(rows))

    async def _team(self, request: Request) -> Response:
        namespace = request.path_params["namespace"]
        cluster = self._readings.cluster
        quotas = cluster.overview.quotas(namespace)
        return self._page(
            "team.html",
            shares=cluster.overview.team_subjects(namespace),
            namespace=namespace,
            quotas=quotas,
            rows=listings.keys(quotas),
            budgets=[*budgets(cluster.simulation.core.view, namespace, cluster.now)],
            refused=[each for each in self._readings.contents.refused if each.namespace == namespace],
            pods=[pod for pod in self._readings.contents.pods if pod.namespace == namespace],
        )

    async def _queue(self, request: Request) -> Response:
        namespace, quota = (request.query_params.get(each, "") for each in ("namespace", "quota"))
        pods = await self._readings.cluster.queued_pods(namespace)
        shown, page, pages = _page_of([each for each in pods if quota in ("", each.quota)], _PODS_A_PAGE, request)
        return self._page(
            "queue.html",
            pods=shown,
            page=page,
            pages=pages,
            address=lambda number: str(request.url.include_query_params(page=number).query),
        )

    async def _pods(self, request: Request) -> Response:
        asked, found = self._asked_pods(request)
        shown, page, pages = _page_of(found, _PODS_A_PAGE, request)
        return self._page(
            "pods.html",
            asked=asked,
            pods=shown,
            found=len(found),
            page=page,
            pages=pages,
            namespaces=sorted({pod.namespace for pod in self._readings.contents.pods}),
            states=listings.STATES,
            orders=listings.ORDERS,
            address=lambda number: str(request.url.include_query_params(page=number).query),
            query=request.url.query,
        )

    async def _pods_csv(self, request: Request) -> Response:
        _, found = self._asked_pods(request)
        return _download("pods.csv", listings.pods_csv(found, self._readings.cluster.now))

    def _asked_pods(self, request: Request) -> tuple[Mapping[str, str], Sequence[PodUse]]:
        asked = {each: request.query_params.get(each, "") for each in ("q", "namespace", "state", "sort")}
        return asked, listings.pods(self._readings.contents.pods, asked)

    async def _pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        try:
            explanation = self._readings.cluster.explain(namespace, name, NEAREST)
        except UnknownPod as error:
            return self._page("text.html", title=f"{namespace}/{name}", text=str(error), status=404)
        metrics = self._readings.metrics
        hour = await metrics.last_hour_of_pod(namespace, name) if metrics is not None else {}
        return self._page(
            "pod.html",
            explanation=explanation,
            notes=notes_of(explanation),
            sections=pod_sections(explanation, self._readings.cluster),
            changes=[*changes_of(explanation)],
            hour=self._hour(hour, pod_series(namespace, name)),
        )

    async def _pod_csv(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        try:
            explanation = self._readings.cluster.explain(namespace, name, NEAREST)
        except UnknownPod as error:
            return PlainTextResponse(f"{error}\n", 404)
        return _download("pod.csv", listings.tables_csv(tables_of(explanation, everything=True)))

    async def _what_if_csv(self, request: Request) -> Response:
        try:
            result = await self._simulated(_manifests(*await _form(request)))
        except (LoadError, ClusterError) as error:
            return PlainTextResponse(f"{error}\n", 400)
        return _download("what-if.csv", listings.tables_csv(results.tables_of(result)))

    async def _what_if(self, request: Request) -> Response:
        # an address fills in the form and tries nothing: another site may lead to it
        manifest, copies = request.query_params.get("manifest", ""), request.query_params.get("copies") or "1"
        text, result, status = "", None, 200
        if request.method == "POST":
            try:
                manifest, copies = await _form(request)
                result = await self._simulated(_manifests(manifest, copies))
                text = results.summary(result)
            except (LoadError, ClusterError, _Refused) as error:
                text, status = str(error), 400
        tables = [*results.tables_of(result)] if result else []
        address = urlencode({"manifest": manifest, "copies": copies}) if result else ""
        return self._page(
            "what_if.html",
            manifest=manifest,
            copies=copies,
            text=text,
            tables=tables,
            address=address if len(address) <= _LONGEST_ADDRESS else "",
            status=status,
        )

    async def _simulated(self, manifests: Sequence[Mapping[str, Any]]) -> Result:
        cluster = await self._readings.read()  # simulating changes what was read
        pods = Pods([{**pod, "metadata": {"namespace": cluster.namespace, **pod["metadata"]}} for pod in manifests])
        return await asyncio.to_thread(lambda: asyncio.run(cluster.simulation.run(pods)))

    def _doctor(self, diagnose: Diagnose) -> Callable[[Request], Awaitable[Response]]:
        async def doctor(request: Request) -> Response:
            try:
                return self._page("doctor.html", diagnosis=await diagnose())
            except ClusterError as error:
                return self._page("text.html", title="Doctor", text=str(error))

        return doctor

    async def _events(self, request: Request) -> Response:
        """The version when it changes, and every two seconds whether what is shown is up to date."""

        async def versions() -> AsyncIterator[str]:
            version = self._readings.version
            yield f"data: {version}\n\n"
            while True:
                with contextlib.suppress(TimeoutError):
                    version = await asyncio.wait_for(self._readings.change(version), _HEARTBEAT)
                    yield f"data: {version}\n\n"
                yield f"event: state\ndata: {json.dumps({'stale': self._readings.stale})}\n\n"

        return StreamingResponse(versions(), media_type="text/event-stream")

    def _charts(self) -> Iterator[tuple[str, int, Key]]:
        """What the Overview draws of the last hour: a label, what amounts are divided by, and the series."""
        yield "pods that wait", 1, WAITING_SERIES
        if self._readings.metrics is not None:
            history = self._readings.metrics.history
            yield from [("cards that pods wait for", 1, key) for key in history if key[0] == "cards wait"]
            yield from [(f"refusals a minute: {key[1]}", 1, key) for key in history if key[0] == "refusals"]
        cards = self._readings.contents.cards
        for model in sorted({card.model for card in cards if card.used_memory}):
            yield f"Gi promised of {model}", 1024, model_series(model)
            if self._readings.points(used := ("used", model)):
                yield f"Gi used of {model}", 1024, used

    def _hour(self, found: Mapping[str, Points], kept: Key) -> list[tuple[str, str]]:
        """The charts of what a card or a pod used: what Prometheus has, else what was kept here."""
        own = {"Gi used": [(at, memory / 1024) for at, memory in self._readings.points(kept)]}
        return [(label, _chart(points)) for label, points in (found or own).items() if points]

    def _series(self, key: Key) -> str:
        """The points of a chart, as JSON: times and amounts."""
        return _chart(self._readings.points(key))

    def _page(self, template: str, *, status: int = 200, **values: object) -> Response:
        readings = self._readings
        common = {"error": readings.error, "sentences": readings.sentences, "version": readings.version}
        common |= {"paths": self._paths, "now": readings.cluster.now, "read_at": time_text(readings.cluster.now)}
        common |= {
            "where": readings.names.cluster,
            "user": readings.names.user,
            "units": readings.cluster.overview.unit_bytes,
        }
        return HTMLResponse(rendered(self._templates, template, common | values), status)


def _chart(points: Points) -> str:
    return json.dumps([[round(at) for at, _ in points], [amount for _, amount in points]])


class _Refused(Exception):
    """A form that can't be used; the text says what would be right."""


def _number(what: str, text: str) -> int:
    """A number that a browser sent; Python itself reads up to 4,300 digits."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise _Refused(f"{what} must be a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


async def _body(request: Request, most: int) -> bytes:
    """The body, which is at most so many bytes."""
    if _number("Content-Length", request.headers.get("content-length", "")) > most:
        raise _Refused(f"the request must be at most {most} bytes long")
    return await request.body()


async def _form(request: Request) -> tuple[str, str]:
    """The manifest and the number of copies of a What if, as they were written."""
    form = dict(parse_qsl((await _body(request, _LONGEST_MANIFEST)).decode(errors="replace")))
    return form.get("manifest", ""), form.get("copies", "")


def _manifests(text: str, copies: str) -> list[Mapping[str, Any]]:
    """The pods of a pasted manifest, each as often as asked for."""
    pods, _ = pods_of([load_objects(text, "the manifest")])
    count = _number("the number of copies", copies)
    if not 1 <= count * max(1, len(pods.manifests)) <= _MOST_PODS:
        raise _Refused(f"together at most {_MOST_PODS} pods can be tried at once, and at least one of each")
    if not pods.manifests:
        raise _Refused("the manifest has no Pod and no workload")
    if count == 1:
        return list(pods.manifests)
    return [_copy(pod, number) for pod in pods.manifests for number in range(count)]


def _copy(pod: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    copied = deepcopy(dict(pod))
    name = copied["metadata"].get("name") or copied["metadata"]["generateName"].rstrip("-")
    copied["metadata"]["name"] = f"{name}-{number}"
    return copied


def _page_of(rows: Sequence[_Row], size: int, request: Request) -> tuple[Sequence[_Row], int, int]:
    """The rows of the page that was asked for, its number, and how many there are."""
    pages = max(1, -(-len(rows) // size))
    page = min(pages, max(1, _number("page", request.query_params.get("page") or "1")))
    return rows[(page - 1) * size : page * size], page, pages


def _download(name: str, text: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/csv", headers=headers)
