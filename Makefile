# Everything runs from .venv, made here from pyproject.toml and requirements/ with the system's python3 alone.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/.runtime-installed
DEV := .venv/.dev-installed
DOCS := .venv/.docs-installed
SUITE := -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/e2e --ignore tests/image --ignore tests/website tests
E2E := -o cache_dir=.pytest_cache/e2e tests/e2e

skipped = for program in $(2); do command -v $$program >/dev/null || echo "make $(1): skipped: what needs $$program"; done

.DEFAULT_GOAL := help
# the tests start Python two hundred times: compiled modules are kept, whatever the environment says
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test test-integration test-newest-python coverage run lint format render certs bench clean setup controlplane helm e2e e2e-failed attack day image release deploy undeploy deploy-dev docs mutation explore layers

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(RUNTIME): pyproject.toml $(wildcard requirements/*.txt) hack/setup.sh
	@PYTHON=$(PYTHON) hack/setup.sh runtime
	@touch $@

$(DEV): $(RUNTIME)
	@PYTHON=$(PYTHON) hack/setup.sh dev
	@touch $@

$(DOCS): $(DEV)
	@PYTHON=$(PYTHON) hack/setup.sh docs
	@touch $@

setup: $(DEV) ## make .venv with everything the other targets need

demo: $(RUNTIME) ## admit, charge, place and debit example pods over real HTTPS on the embedded cluster
	@$(BIN)/python hack/demo.py

run: $(RUNTIME) ## keep the demo's server up for your own curl calls, and show its web pages (Ctrl-C ends it)
	@$(BIN)/python hack/demo.py --keep

test: $(DEV) ## the test suite, with a few examples of each property
	@$(BIN)/python -m pytest $(SUITE) -m "not integration" $(TEST_ARGS)
	@echo "$@: $$($(BIN)/python -m hack.yardstick)"
	@echo "make test: left out: what starts programs for seconds (make test-integration runs it)"
	@echo "make test: left out: tests/e2e, which needs a real control plane and helm (make controlplane and make helm build them, make e2e runs it)"
	@echo "make test: left out: tests/image, which needs the image (make image builds and tests it)"
	@echo "make test: left out: tests/website, which needs the site (make docs builds and tests it)"
	@$(call skipped,$@,promtool gcc kubectl)

test-integration: $(DEV) ## the tests that start programs for seconds: browsers, compilers, promtool, our own commands
	@$(BIN)/python -m pytest $(SUITE) -m integration
	@$(call skipped,$@,promtool gcc kubectl chromium-headless-shell)
	@hack/helm/build.sh --where >/dev/null || echo "make $@: skipped: what needs helm (make helm builds it)"

test-newest-python: ## the same as `make test` on Python 3.14, from the PATH or of Debian's packages (root, debootstrap)
	@hack/newest-python

coverage: $(DEV) ## the same with its branch coverage, then two hundred examples of each property
	@$(MAKE) --no-print-directory test TEST_ARGS="--cov --cov-fail-under=90"
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(SUITE) -m "hypothesis and not integration"

controlplane: ## build kube-apiserver, kube-controller-manager, kube-scheduler and etcd, once per machine and version (K8S=1.36)
	@hack/controlplane/build.sh

helm: ## build helm, once per machine and version
	@hack/helm/build.sh

e2e: $(DEV) ## the end-to-end tests, on a real control plane (after make controlplane and make helm; K8S=1.36)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cache-clear $(E2E)

e2e-failed: $(DEV) ## the end-to-end tests that failed in the last `make e2e`, once more and alone, until one fails again
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --exitfirst $(E2E)

attack: $(DEV) ## random attacks of tenants, a node and a stranger on a real control plane (ACTIONS=10000 SEED=…; after make controlplane)
	@HAMI_ATTACKS=$(or $(ACTIONS),10000) $(if $(SEED),HAMI_ATTACKS_SEED=$(SEED)) $(BIN)/python -m pytest tests/e2e/test_attacks.py

day: $(DEV) ## ordinary users on what `make deploy` installs, for ten minutes (USERS=200 SECONDS=600; after make controlplane)
	@HAMI_DAY_USERS=$(or $(USERS),200) HAMI_DAY_SECONDS=$(or $(SECONDS),600) $(BIN)/python -m pytest tests/e2e/test_ordinary_day.py

image: $(DEV) ## build the Dockerfile's image without a container daemon, and test it (root, buildah, debootstrap)
	@hack/image build
	@$(BIN)/python -m pytest tests/image

docs: $(DOCS) ## build the site of the documentation into dist/site, and test it
	@$(BIN)/python -m hack.website
	@$(BIN)/python -m pytest tests/website

release: $(DEV) ## write the wheel, manifests, bill of materials and checksums of this version into dist/ (IMAGE=REGISTRY/hami-webhook DOWNLOADS=URL)
	@$(BIN)/python -m hack.release

deploy: $(if $(CONFIG),$(RUNTIME)) ## install on the cluster of the current kubeconfig (OVERLAY=… IMAGE=… CONFIG=device-config.yaml API_SERVER_CIDRS=…)
	@hack/deploy up

undeploy: ## take it away again
	@hack/deploy down

deploy-dev: $(RUNTIME) ## run here, for the cluster of the current kubeconfig (DEV_HOST=… DEV_PORT=…)
	@hack/deploy-dev

lint: $(DEV) ## format check, linter, types, import contracts, module sizes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python hack/check_source.py

format: $(DEV) ## format the source
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

render: $(DEV) ## write all files that are generated from the code
	@$(BIN)/python -m hack.render

certs: $(RUNTIME) ## a CA and a serving certificate in certs/
	@$(BIN)/hami-webhook certs generate --dir certs

bench: $(DEV) ## benchmarks, as ratios against a baseline of the same run
	@$(BIN)/python -m hack.bench $(BENCH_ARGS)

mutation: $(DEV) ## small faults in quota, fit and admission, and which of them no test notices (SEED=1 SAMPLE=300 PACKAGES="charging evictions")
	@$(BIN)/python -m hack.mutation $(PACKAGES) --seed $(or $(SEED),1) --sample $(or $(SAMPLE),300)

explore: $(DEV) ## every interleaving of charging and placement, up to larger bounds than CI's, and planted faults (ACCIDENTS=1 SECONDS=600)
	@$(BIN)/python -m hack.explore --accidents $(or $(ACCIDENTS),1) --seconds $(or $(SECONDS),600)
	@$(BIN)/python -m hack.explore --faults

layers: $(DEV) ## how many tests and lines each layer has (BEFORE=a checkout to compare with)
	@$(BIN)/python -m hack.test_layers $(if $(BEFORE),--before $(BEFORE))

clean: ## remove .venv, caches and generated certificates
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* .mutation htmlcov dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find certs -type f ! -name README.md -delete
