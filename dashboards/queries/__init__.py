"""What the dashboards ask, in PromQL and TraceQL, apart from the panels that show the answers."""
