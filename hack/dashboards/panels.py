"""What a dashboard consists of here, as Grafana's own model of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase
from typing import Literal

from grafana_foundation_sdk.builders import bargauge, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_Builder = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel
_BUILDERS: Mapping[str, Callable[[], _Builder]] = {
    "lines": timeseries.Panel,
    "stat": stat.Panel,
    "bars": bargauge.Panel,
    "table": table.Panel,
}
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def rate(metric: str, by: str = "") -> str:
    """How fast a counter of ours rises, a second."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(hami_webhook_{metric}[$__rate_interval]))"


def quantiles(metric: str, by: str = "", percents: Sequence[int] = (50, 99)) -> dict[str, str]:
    """Percentiles of a histogram of ours, by a label."""
    legend = f" {{{{{by}}}}}" if by else ""
    buckets = rate(f"{metric}_bucket", f"{by}, le" if by else "le")
    return {f"{percent} %{legend}": f"histogram_quantile({percent / 100:g}, {buckets})" for percent in percents}


@dataclass(frozen=True)
class Panel:
    """Queries by the legend of what they return; `lines` shows them over time, the other kinds as they are now."""

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    kind: Literal["lines", "stat", "bars", "table"] = "lines"
    width: int = 12
    """Of the 24 columns of a dashboard."""

    def built(self, number: int) -> _Builder:
        panel = _BUILDERS[self.kind]().title(self.title).description(self.description).unit(self.unit)
        panel.id(number).datasource(SOURCE).span(self.width).height(4 if self.kind == "stat" else 8)
        for letter, (legend, expression) in zip(ascii_uppercase, self.queries.items(), strict=False):
            query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend).datasource(SOURCE)
            if self.kind == "lines":
                query.range()
                panel.min(0)
            else:
                query.instant()
            if self.kind == "table":
                query.format(PromQueryFormat.TABLE)
                panel.override_by_name("Time", [model.DynamicConfigValue(id_val="custom.hidden", value=True)])
            panel.with_target(query)
        return panel


@dataclass(frozen=True)
class Dashboard:
    """Rows of panels by title; `variables` are label values that a viewer chooses, by name."""

    uid: str
    title: str
    description: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Mapping[str, str]

    def built(self) -> model.Dashboard:
        board = dashboard.Dashboard(self.title).uid(self.uid).description(self.description).tags(["hami-webhook"])
        board.readonly().time("now-6h", "now").refresh("1m").timezone("browser")
        board.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        for name, query in self.variables.items():
            variable = dashboard.QueryVariable(name).label(name).query(query).datasource(SOURCE)
            variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
            board.with_variable(variable.multi(True).include_all(True).all_value(".*"))
        numbers = count(1)
        for title, panels in self.rows.items():
            board.with_row(dashboard.Row(title).id(next(numbers)))
            for panel in panels:
                board.with_panel(panel.built(next(numbers)))
        built = board.build()
        for each in built.templating.list_val or ():  # the SDK gives every kind what interval variables have
            each.auto = each.auto_min = each.auto_count = None
        return built
