"""What Prometheus itself writes about each of its targets."""

from __future__ import annotations

from dashboards.metric import Metric, gauge

UP = gauge("up")
SCRAPE_SECONDS = gauge("scrape_duration_seconds")

METRICS: tuple[Metric, ...] = (UP, SCRAPE_SECONDS)
