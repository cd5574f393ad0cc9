# The front door. `make help` lists what it offers; the work is done by CMake presets and scripts/.

JOBS ?= $(shell nproc)
# Which tests the sanitizer lanes run.
LABELS ?= unit|sim
# A tenth less time for stories that are told once: their memory is kept until they end.
MALLOC = glibc.malloc.trim_threshold=1000000000:glibc.malloc.top_pad=67108864:glibc.malloc.tcache_count=2000:glibc.malloc.tcache_max=4096
# More words for ctest: make test CTEST='-R work_queue'
CTEST ?=

CONFIGURE = @test -f build/$(1)/build.ninja || cmake --preset $(1)
BUILD = cmake --build build/$(1) -j $(JOBS)
RUN_CTEST = ctest --test-dir build/$(1) --output-on-failure --no-tests=error -j $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup build release test test-fast test-worker test-cluster test-cluster-v2 cluster test-chart wheel images test-images chart sim soak kill-matrix check format format-check layers tidy asan tsan fuzz bench demo demo-pytorch crds docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## /{printf "  \033[1mmake %-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what this machine lacks (Debian 12), for building and testing
	scripts/setup tests

build: ## Build everything, tests included, warnings as errors (build/dev)
	scripts/setup check
	$(call CONFIGURE,dev)
	$(call BUILD,dev)

release: ## Build the programs as they ship (build/release)
	scripts/setup build
	$(call CONFIGURE,release)
	$(call BUILD,release)

test: ## Run all tests, against a real Kubernetes API server too
	scripts/setup tests
	$(call CONFIGURE,dev)
	$(call BUILD,dev)
	$(call RUN_CTEST,dev) -LE '^cluster$$' $(CTEST); status=$$?; tests/skipped build/dev; exit $$status

test-cluster: ## Run Rubato on a real Kubernetes with kubelets, on this machine (root; skipped where it cannot)
	scripts/setup cluster
	$(call CONFIGURE,dev)
	$(call BUILD,dev) --target tests-cluster
	$(call RUN_CTEST,dev) -L '^cluster$$' $(CTEST)

test-cluster-v2: ## Run that Kubernetes on cgroup v2 and with slow cables, in a user-mode Linux (root; a quarter of an hour)
	scripts/setup uml
	tests/cluster/uml/run tests/cluster/run-tests tests/cluster/test_cluster.py

cluster: release ## Start a real Kubernetes on this machine with Rubato installed; prints export KUBECONFIG=…
	scripts/setup cluster
	tests/cluster/cluster up --nodes $(or $(NODES),3) --slots 1 --rubato

test-fast: build ## Run the unit tests only
	$(call RUN_CTEST,dev) -L '^unit$$' $(CTEST)

test-worker: build ## Run real workers through kills, joins and freezes, without Kubernetes
	$(call RUN_CTEST,dev) -L '^worker$$' $(CTEST)

test-chart: ## Run the tests of the Helm chart, its rights and the images
	scripts/setup tests
	$(call CONFIGURE,dev)
	$(call BUILD,dev) --target tests-chart
	$(call RUN_CTEST,dev) -L '^chart$$' $(CTEST)

wheel: release ## Build the Python package `rubato` with its engine, for any Linux and Python (build/wheel)
	python3 -B python/build_wheel.py

images: release ## Build the images of operator and worker, without Docker or a registry (build/images)
	scripts/setup tests
	deploy/build

test-images: ## Test images that are compiled in their own build, as docker build does (20 min)
	scripts/setup tests
	RUBATO_IMAGES_FROM=source scripts/with-tools pytest -p no:cacheprovider -ra --tb=short tests/chart/test_images.py

sim: ## Seeded trouble in virtual time: make sim SEEDS=100 SEED=1
	$(call CONFIGURE,dev)
	$(call BUILD,dev) --target sim
	build/dev/bin/sim --seed $(or $(SEED),1) --seeds $(or $(SEEDS),100)

soak: ## Very many of them, told once each: make soak SEEDS=100000 SEED=1; interrupt it and go on later
	$(call CONFIGURE,bench)
	$(call BUILD,bench) --target sim
	GLIBC_TUNABLES=$(MALLOC) build/bench/bin/sim --soak $(or $(SOAK),build/bench/soak) --seed $(or $(SEED),1) --seeds $(or $(SEEDS),100000) \
	  --jobs $(JOBS) --commit $$(git rev-parse --short=12 HEAD)$$(git diff --quiet HEAD || echo -changed)

kill-matrix: ## Kill, freeze and cut off workers at every phase; writes docs/reliability.md (an hour)
	$(call CONFIGURE,dev)
	$(call BUILD,dev) --target kill_matrix
	@rm -f build/dev/kill-matrix.results
	build/dev/tests/kill_matrix --results build/dev/kill-matrix.results --page docs/reliability.md

check: format-check layers test-fast tidy ## What a change must pass before it is sent; `make test` is the rest

format: ## Format all C++ (clang-format 19)
	@git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-19 -i

format-check: ## Fail where `make format` would change something
	@git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-19 --dry-run -Werror

layers: ## Check who includes whom against cmake/layers.txt
	@python3 -B tests/layers/layers.py

tidy: ## clang-tidy on the files changed since origin/main (all of them: scripts/tidy --all)
	scripts/tidy

asan: ## AddressSanitizer and UBSan on the unit and simulation tests (LABELS=unit for less)
asan: lane-asan

tsan: ## ThreadSanitizer on the same
tsan: lane-tsan

lane-%:
	scripts/setup check
	$(call CONFIGURE,$*)
	cmake --build build/$* -j $(JOBS) --target $(or $(TARGETS),$(patsubst %,tests-%,$(subst |, ,$(LABELS))))
	$(call RUN_CTEST,$*) -L '^($(LABELS))$$' $(CTEST)

fuzz: ## Any bytes at all into whatever reads bytes, an hour each: make fuzz FUZZ_SECONDS=60 FUZZ="json yaml"
	scripts/setup check
	$(call CONFIGURE,fuzz)
	$(call BUILD,fuzz)
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),3600) tests/fuzz/run $(FUZZ)

bench: release ## Run all benchmarks and write docs/benchmarks.md
	tests/bench/run

bench-%: release ## Run one of them: make bench-scheduler
	tests/bench/run $*

demo: ## A cluster on this machine trains a model, loses a node, and proves nothing was lost
	scripts/setup build
	$(call CONFIGURE,quick)
	$(call BUILD,quick) --target demo
	scripts/demo

demo-pytorch: release ## The same with a PyTorch script, examples/pytorch/kjv.py (runtime: pytorch)
	scripts/setup python
	RUBATO_BUILD=build/release scripts/demo --runtime pytorch --python "$$(scripts/build-python --print)/bin/python"

crds: ## Write crds/, docs/api.md and docs/policies.md from the descriptors in operator/api and scheduler/policy
	$(call CONFIGURE,dev)
	$(call BUILD,dev) --target crds

chart: crds ## Write what is rendered from helm/rubato: golden files and the kustomize base
	scripts/with-tools python tests/chart/charts.py --write

docs: crds ## Write the generated pages of docs/
	$(call BUILD,dev) --target metrics_docs

clean: ## Remove build/ (what scripts/setup made stays in ~/.cache/rubato)
	rm -rf build
