"""The Collector's deployed configuration, made to run beside other things on one machine."""

from __future__ import annotations

from pathlib import Path

import yaml

CONFIG = Path(__file__).parents[3] / "stack" / "collector" / "config.yaml"


def on_loopback(http_port: int, grpc_port: int, metrics_port: int) -> str:
    """Renders it listening on loopback at other ports; everything else stays. ``KVPATH_TEMPO_ENDPOINT`` as deployed."""
    config = yaml.safe_load(CONFIG.read_text())
    protocols = config["receivers"]["otlp"]["protocols"]
    assert {name: each["endpoint"] for name, each in protocols.items()} == {
        "http": "0.0.0.0:4318",
        "grpc": "0.0.0.0:4317",
    }
    protocols["http"]["endpoint"] = f"127.0.0.1:{http_port}"
    protocols["grpc"]["endpoint"] = f"127.0.0.1:{grpc_port}"
    (reader,) = config["service"]["telemetry"]["metrics"]["readers"]
    own = reader["pull"]["exporter"]["prometheus"]
    assert (own["host"], own["port"]) == ("0.0.0.0", 8888)
    own.update(host="127.0.0.1", port=metrics_port)
    return yaml.safe_dump(config)
