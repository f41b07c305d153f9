"""The instrumented NIXL connector, and the names and telemetry that every kvpath process shares.

Only :mod:`connector.nixl` imports vLLM. Everything else installs and runs without it.
"""
