"""Grafana dashboards and alert rules, generated from queries, panels and one module a dashboard."""
