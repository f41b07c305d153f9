"""An existing Grafana: checks it, puts the dashboards into it, and marks in it what kvpath does."""
