# Every target works as the first command in a fresh clone: it fills .venv before it starts.
.DEFAULT_GOAL := help
.PHONY: help demo up test test-fast test-docker lint format dashboards bench lock clean browser redis tools venv

PY := .venv/bin/python

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: venv  ## both engines, router and store; 12 requests a mode; the comparison (minutes)
	@$(PY) -m stack demo

up: venv  ## the same, without requests, until Ctrl-C
	@$(PY) -m stack up

test: lint browser redis tools  ## lint, then all tests, also those that start real engines, a browser, Prometheus
	$(PY) -m pytest tests/live
	$(PY) -m pytest -m "not live and not docker"
	@echo "Not run here: make test-docker, which builds the images and brings compose.yaml up."

test-fast: lint redis  ## lint, then the tests that need no engine, no browser and no download
	$(PY) -m pytest -m "not live and not browser and not tools and not docker"

test-docker: venv tools  ## builds the images and brings compose.yaml up, on a Docker daemon of its own (Debian, root)
	@.ci/packages docker.io debootstrap
	@.ci/tools docker-buildx busybox
	$(PY) -m pytest -m docker

lint: venv  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m dashboards --check

format: venv  ## puts the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

dashboards: venv  ## writes dashboards/generated and the alert rules again
	@$(PY) -m dashboards

bench: venv  ## what telemetry, router, store and analysis cost on this machine; writes out/bench.json
	@$(PY) -m stack bench

lock: venv  ## resolves pyproject.toml into requirements.lock again
	mkdir -p out
	.ci/uv pip compile --quiet --universal --no-annotate --no-header --python-version 3.11 \
	  --extra cpu --extra dashboards --extra demo --extra dev --extra experiment --extra grafana \
	  --extra redis pyproject.toml -o out/requirements.lock
	grep -vE "sys_platform == '(never|win32|emscripten|darwin)'" out/requirements.lock > requirements.lock

clean:  ## removes what was built and written here; the model cache (~/.cache/kvpath) stays
	rm -rf .venv .tools out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find connector stack dashboards tests -name __pycache__ -type d -exec rm -rf {} +

tools:
	@.ci/tools prometheus promtool alertmanager amtool docker-compose otelcol

redis:
	@.ci/packages redis-server

browser:
	@.ci/packages chromium

venv:
	@PATH=$$PATH:/sbin:/usr/sbin .ci/packages libnuma1
	@.ci/venv
