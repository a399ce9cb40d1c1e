# Targets for working on kube-dns; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

GO ?= go
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubedns
GO_VERSION = $(shell $(GO) env GOVERSION)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X kubedns/pkg/version.Version=$(VERSION) -X kubedns/pkg/version.Revision=$(REVISION)

GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT = $(CACHE)/golangci-lint-$(GOLANGCI_LINT_VERSION)-$(GO_VERSION)/golangci-lint

# How long `make fuzz` spends on each fuzz target.
FUZZTIME ?= 1m

# Every Go module here, as a directory.
MODULES := $(sort $(dir $(wildcard go.mod hack/*/go.mod hack/*/*/go.mod pkg/*/*/*/go.mod)))
# These are a main of a few lines on thousands of packages that are not
# ours: analysing those would take many minutes for nothing. gofmt, go mod
# tidy and the build itself look at them.
CONTROL_PLANE_MODULES := hack/bench/coredns/ hack/e2e/etcd/ hack/e2e/kube-apiserver/
OWN_MODULES := $(filter-out $(CONTROL_PLANE_MODULES),$(MODULES))

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the programs into bin/
	@mkdir -p bin
	@for cmd in cmd/*/main.go; do \
		if [ ! -e "$$cmd" ]; then echo "nothing to build: no cmd/*/main.go" >&2; exit 1; fi; \
		dir=$$(dirname "$$cmd"); \
		echo "bin/$$(basename "$$dir")"; \
		CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o "bin/$$(basename "$$dir")" "./$$dir"; \
	done

.PHONY: run
run: build ## Run kube-dns on sample manifests, or on the cluster of KUBECONFIG, and ask it questions
	@hack/run.sh

.PHONY: test
test: test-unit e2e ## Run all tests

.PHONY: test-unit
test-unit: ## Run the unit tests, and those of the bench
	$(GO) test -race -shuffle=on ./...
	cd hack/bench && $(GO) test -shuffle=on ./...

.PHONY: test-integration
test-integration: e2e ## The same as e2e

# Some of the end-to-end tests measure. With --jobs they wait for whatever else
# was asked for.
.PHONY: e2e
e2e: $(filter lint verify test-unit,$(MAKECMDGOALS) $(if $(filter test,$(MAKECMDGOALS)),test-unit))
e2e: ## Run the end-to-end tests against a real kube-apiserver and etcd, built on first use
	@hack/e2e/controlplane.sh >/dev/null
	cd hack/e2e && $(GO) test -race -shuffle=on -timeout 30m $(E2EFLAGS) ./...

# How long `make soak` changes the cluster, and the seed of its choices.
SOAK_SECONDS ?= 600
SEED ?= 0

.PHONY: soak
soak: ## Change a cluster at random under load and check every answer in time, for SOAK_SECONDS (600) from SEED
	@hack/e2e/controlplane.sh >/dev/null
	cd hack/e2e && $(GO) test -race -count=1 -timeout $$(($(SOAK_SECONDS) + 900))s -v -run '^TestSoak$$' . -soak=$(SOAK_SECONDS)s -seed=$(SEED)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint, which has go vet in it, on every module
	@for module in $(OWN_MODULES); do \
		echo "golangci-lint $$module"; \
		(cd "$$module" && nice "$(GOLANGCI_LINT)" run --allow-parallel-runners --config "$(CURDIR)/.golangci.yml" ./...); \
	done

$(GOLANGCI_LINT):
	@mkdir -p "$(@D)"
	GOBIN="$(@D)" CGO_ENABLED=0 $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each (1m)
	@found=false; \
	while IFS=: read -r file target; do \
		found=true; \
		echo "fuzz $$(dirname "$$file") $$target"; \
		module=.; case $$file in ./hack/*/*) module=$$(cut -d/ -f1-3 <<<"$$file") ;; esac; \
		(cd "$$module" && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$(realpath --relative-to=. "$(CURDIR)/$$(dirname "$$file")")"); \
	done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's/func //'); \
	if ! $$found; then echo "no fuzz targets"; fi

.PHONY: bench
bench: ## Measure kube-dns beside its peers, for 30 minutes; BENCHFLAGS='-help' lists what can be chosen
	@mkdir -p bin
	@cd hack/bench && CGO_ENABLED=0 $(GO) build -trimpath -o "$(CURDIR)/bin/kube-dns-bench" .
	@exec bin/kube-dns-bench $(BENCHFLAGS)

.PHONY: verify
verify: ## Check formatting, modules, import rules, scripts, docs; the work tree must be clean
	@nice hack/verify.sh '$(MODULES)' '$(OWN_MODULES)'

GOVULNCHECK_VERSION := v1.9.0
VULNDB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what is built, where VULNDB can be reached
	@if ! curl -fsS --max-time 20 -o /dev/null '$(VULNDB)/index/db.json'; then \
		echo "vulncheck: skipped, as $(VULNDB) cannot be reached" >&2; exit 0; fi; \
	for module in $(OWN_MODULES); do \
		echo "govulncheck $$module"; \
		(cd "$$module" && $(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) -db '$(VULNDB)' ./...); \
	done

.PHONY: images
images: ## Build the container images; REGISTRY=registry.example.org/dns also pushes them
	@GO='$(GO)' VERSION='$(VERSION)' REVISION='$(REVISION)' LDFLAGS='$(LDFLAGS)' hack/images.sh

.PHONY: pod
pod: ## Build the images and run real pods of deploy/ with podman, as root, and ask them
	@hack/e2e/controlplane.sh >/dev/null
	cd hack/e2e && $(GO) test -race -count=1 -timeout 30m -v -run '^TestPod' $(PODFLAGS) .

.PHONY: podfigures
podfigures: ## Make a figure of deploy/'s pods, as root: FIGURE=layouts, size or picture into FILE
	@hack/e2e/controlplane.sh >/dev/null
	cd hack/e2e && $(GO) run ./cmd/podfigures '$(or $(FIGURE),$(error FIGURE is not set))' '$(abspath $(or $(FILE),$(error FILE is not set)))'

.PHONY: clean
clean: ## Remove what builds and runs leave in the work tree
	rm -rf bin .run
	$(GO) clean -testcache
