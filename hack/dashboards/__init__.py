"""The Grafana dashboards of manifests/dashboards: `python -m hack.dashboards` renders them (docs/metrics.md)."""
