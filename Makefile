# Every target works on a fresh clone with Python 3.11, make and a compiler; each makes .venv first and is quick when nothing changed.

PYTHON ?= python3
PORT ?= 8080
BIN := .venv/bin
# Tests run side by side, the files in this order: the few and long ones begin first, short ones fill the end.
SIDE_BY_SIDE := -n logical --dist loadfile
TESTS := tests/e2e tests/integration tests/contracts tests/unit tests/properties
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export TORCH TORCH_CPU_INDEX
# Tests start hundreds of processes. Where the environment forbids bytecode, each of them would compile every module that it imports,
# which doubles the CPU time of a start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run test test-again test-slow test-kubernetes cluster cluster-down cluster-build images conformance check check-code check-units format bench figures templates stubs constraints clean venv bench-shadow bench-kubernetes reliability fuzz demo-burst report-batch report-infaas evaluate parity

run: venv  ## start Gnomon, deploy stack.yml, classify a photograph; ONCE=1 ends after the answer
	@$(BIN)/gnomon run --port $(PORT) $(if $(ONCE),--once)

help:  ## these targets
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

# mypy computes on one core for a minute where it has no cache: the tests begin beside it.
check: venv  ## format, lint, types, import contracts, unit and property tests
	@$(BIN)/ruff format --check --quiet . || { echo "gnomon: some files are not formatted: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory -j 2 check-code check-units

check-code:
	@$(BIN)/mypy
	@$(BIN)/lint-imports > .cache/import-contracts.txt || { cat .cache/import-contracts.txt; exit 1; }

check-units:
	@$(BIN)/python -m pytest -q tests/unit tests/properties --timeout 60 $(SIDE_BY_SIDE)

test: venv  ## every test that one machine can run; SKIP="tests/unit" leaves folders out
	@$(BIN)/python -m pytest -q $(filter-out $(SKIP),$(TESTS)) $(SIDE_BY_SIDE) --no-loadscope-reorder

test-again: venv  ## those that failed the last time
	@$(BIN)/python -m pytest -q tests --ignore=tests/kubernetes --last-failed --last-failed-no-failures all

test-slow: venv  ## what takes more than ten seconds each: benchmarks run briefly, large models, faults
	@$(BIN)/python -m pytest -q tests -m slow

test-kubernetes: venv  ## tests on a real Kubernetes: one booted here, or the one that KUBECONFIG names
	@$(BIN)/python -m tests.cluster run -- $(BIN)/python -m tests.kubernetes $(ONLY)

cluster: venv  ## boot a real Kubernetes with Knative here, as root; prints its KUBECONFIG
	@$(BIN)/python -m tests.cluster up

cluster-down: venv  ## end it, and say so if anything stays behind
	@$(BIN)/python -m tests.cluster down

cluster-build: venv  ## compile it only, with kwok and helm
	@$(BIN)/python -m tests.cluster build

images: venv  ## build our images from their Dockerfiles, as root, without a daemon; NAMES="gnomon-gateway gnomon-body"
	@$(BIN)/python -m tests.cluster image $(or $(NAMES),gnomon-gateway)

conformance: venv  ## Knative Serving's own conformance tests by the stock class and by ours, on the cluster of `make cluster`
	@$(BIN)/python -m tests.cluster.conformance --parallel 2

format: venv
	@$(BIN)/ruff check --quiet --fix-only . && $(BIN)/ruff format --quiet .

bench: venv  ## measure beside the peers, each in an environment of its own; writes benchmarks/results/
	@$(BIN)/python -m benchmarks

reliability: venv  ## hostile and careless use: slow, dead and endless connections, chaos, memory; NAMES="connections"
	@$(BIN)/python -m benchmarks.reliability $(NAMES)

demo-burst: venv  ## a burst carried by Shadows, beside od and k-lv: a table, and a picture in .cache/burst
	@$(BIN)/python -m benchmarks.burst

bench-shadow: venv  ## measure Body and Shadow, on a quiet machine; writes benchmarks/results/shadow_*.json
	@$(BIN)/python -m benchmarks.shadow

fuzz: venv  ## hostile messages between gateway, coordinator, Bodies and Shadows; NAMES="pair node remote"
	@$(BIN)/python -m tests.fuzz $(NAMES)

bench-kubernetes: venv  ## frozen leaders, and a thousand functions on 200 fake nodes
	@$(BIN)/python -m benchmarks.kubernetes

report-batch: venv  ## BATCH's figures made again, beside what the paper says: a page in .cache/reports/batch; goes on where it was
	@$(BIN)/python -m benchmarks.reports.batch

report-infaas: venv  ## INFaaS's tables and figures beside ours: docs/infaas.md, from benchmarks/results and loads that are simulated
	@$(BIN)/python -m benchmarks.reports.infaas $(if $(QUICK),--quick)

evaluate: venv  ## the policies beside each other, simulated: docs/evaluation.md; goes on where it was; TRACES="a.csv b.gz" MINUTES=20 QUICK=1
	@$(BIN)/python -m benchmarks.reports.evaluation $(if $(QUICK),--quick) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(TRACES),--traces $(TRACES))

parity: venv  ## the live system beside the simulator: docs/parity.md; goes on where it was; SECONDS=60 POLICIES=od,kpa QUICK=1
	@$(BIN)/python -m benchmarks.parity $(if $(QUICK),--quick) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(POLICIES),--policies $(POLICIES)) $(if $(STRETCHES),--stretches $(STRETCHES))

figures: venv  ## every measured figure with its goal, those not met first
	@$(BIN)/python -m benchmarks.figures

templates: venv  ## put our wheel and hash-locked requirements beside the Dockerfiles in templates/ and deploy/images
	@$(BIN)/python deploy/pack_templates.py

stubs: venv  ## generate the node plugin's protobuf modules from their .proto files
	@cd coordinator && ../$(BIN)/uv run --quiet --no-project --with grpcio-tools==1.76.0 --with setuptools python -m grpc_tools.protoc \
		--proto_path=. --python_out=. --pyi_out=. gnomon_coordinator/node/csi.proto gnomon_coordinator/node/plugin_registration.proto

constraints: venv  ## renew the versions that are tested together
	@$(BIN)/uv pip compile --quiet --upgrade --extra dev --no-header --no-annotate pyproject.toml > constraints.txt

venv:
	@mkdir -p .cache
	@$(PYTHON) deploy/install.py

clean:  ## everything that the targets above made
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .gnomon dist build benchmarks/.environments
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
