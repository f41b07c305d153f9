"""The few shapes that PromQL expressions here have.

Each answers with nothing, rather than with NaN or infinity, where there is nothing to say: a denominator must be above
zero, and a quantile of no observation is NaN, which no comparison keeps. ``by`` and ``where`` are written as in PromQL.
"""

from __future__ import annotations

from dashboards.metric import Metric
from dashboards.prometheus_metrics import UP
from dashboards.settings import WINDOW

IN_MODE = 'mode=~"$mode"'
ON_ENGINE = 'instance=~"$engine"'
IN_STAGE = 'stage=~"$stage"'


def equals(label: str, value: str) -> str:
    return f'{label}="{value}"'


def differs(label: str, value: str) -> str:
    return f'{label}!="{value}"'


def both(*matchers: str) -> str:
    """Joins label matchers."""
    return ", ".join(matcher for matcher in matchers if matcher)


def select(series: str, where: str = "") -> str:
    return f"{series}{{{where}}}" if where else series


def total(series: str, by: str, where: str = "") -> str:
    """The series' values now, added up."""
    return f"sum by ({by}) ({select(series, where)})"


def rate(series: str, by: str, where: str = "", window: str = WINDOW) -> str:
    """What a counter grows by each second. A counter's first value is not growth: see :func:`growth`."""
    return f"sum by ({by}) (rate({select(series, where)}[{window}]))"


def growth(counter: Metric, by: str, where: str = "", window: str = WINDOW) -> str:
    """What a counter grew by, for rare events: a series that was not there before counts with all it has.

    ``increase`` alone misses the first event of a kind, because the series begins with it; after a restart as well.
    """
    return growth_of(counter.total, by, where, window)


def growth_of(series: str, by: str, where: str = "", window: str = WINDOW) -> str:
    chosen = select(series, where)
    # New: fewer samples than scrapes that succeeded. What is merely scraped for the first time may be old.
    scrapes = f"max by (job, instance) (sum_over_time({UP.value}[{window}]))"
    is_new = f"count_over_time({chosen}[{window}]) < on (job, instance) group_left () {scrapes}"
    return f"sum by ({by}) (({chosen} and {is_new}) or increase({chosen}[{window}]))"


def quantile(q: float, histogram: Metric, by: str, where: str = "", window: str = WINDOW) -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(histogram.bucket, labels, where, window)}) >= 0"


def mean(histogram: Metric, by: str, where: str = "", window: str = WINDOW) -> str:
    """The mean of all observations together, not a mean of means."""
    return ratio(rate(histogram.sum, by, where, window), rate(histogram.count, by, where, window))


def ratio(part: str, whole: str, match: str = "") -> str:
    """``match`` says how labels are matched, such as ``on (mode) group_left ()``."""
    return f"{part} / {match}{' ' if match else ''}({whole} > 0)"
