# Every target installs what it needs, on Linux x86-64 with Python 3.11 (and its venv), make, git and 3 GB of disk.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DISTS  := $(wildcard libs/*/pyproject.toml) $(wildcard services/*/pyproject.toml)
KERNELS  := $(wildcard libs/*/*/*.c)
INSTALL  := $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation
# Installs Stretto's own packages from where they are, each time anew, because their commands may have changed.
OWN      := rm -rf $(VENV)/own && mkdir -p $(VENV)/own && \
    { $(BIN)/python -W ignore libs/editable.py $(VENV)/own $(DISTS:/pyproject.toml=) > $(VENV)/own/log 2>&1 || { \
    cat $(VENV)/own/log; exit 1; }; } && $(INSTALL) -q --force-reinstall $(VENV)/own/*.whl
# The plain wheel brings gigabytes for GPUs; TORCH=torch==2.13.0+cpu does not, where pip knows an index that has it.
TORCH    ?= torch
PACKAGES := $(shell grep -c == constraints.txt)
EVERY_S  := 10
# Tells every 20th package of pip's output, and every 10 s what it is at: awk would hold its input back.
PROGRESS  = { n=0 at= ; while read -t $(EVERY_S) -r word name rest || [ $$? -gt 128 ]; do case "$$word" in \
    Collecting|Processing) at="still at $$name"; n=$$((n + 1)); [ $$((n % 20)) -ne 0 ] || echo "  $$n of $(PACKAGES): $$name";; \
    Installing) at="still unpacking"; echo "  unpacking all …";; \
    Successfully) at=; echo "  done";; \
    "") [ -z "$$at" ] || echo "  $$at: $$(ls $(VENV)/lib/python3*/site-packages | grep -c '\.dist-info$$') packages unpacked";; \
    esac; word= ; done; }
TEST     := $(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder
# Whatever else is imported is compiled then; to compile all that pip unpacks takes four times as long.
COMPILED := $(addprefix $(VENV)/lib/python3*/site-packages/,keras numpy pandas scipy tensorflow)
# Installs the packages whose names begin so. Two at once take half the time, since each keeps one core busy.
UNPACK    = $(INSTALL) --no-compile --require-hashes -r <(grep -iE '^[$(1)].*==' constraints.txt) | \
    $(foreach PACKAGES,$(shell grep -ciE '^[$(1)].*==' constraints.txt),$(PROGRESS))
SERVICES := $(patsubst services/%/pyproject.toml,%,$(wildcard services/*/pyproject.toml))
VERSION  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' libs/wire/pyproject.toml)
IMAGE    := docker build -f compose/Dockerfile $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) \
    --build-arg REVISION=$(shell git rev-parse --short HEAD 2>/dev/null)

# some thousand processes start in the tests: with this variable set, each would compile Stretto anew
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup setup-torch demo chaos check test test-night durations explore simulate bench lint proto references docs console console-test pins sbom audit images wheels release e2e-kubernetes clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: $(VENV)/.ready  ## create .venv with everything pinned (about two minutes the first time)

$(VENV)/.ready: constraints.txt $(DISTS) $(KERNELS)
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot create environments: install python3.11 and its package python3.11-venv" \
	    "(or name another Python with make PYTHON=...)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "set-up 1 of 4: an environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "set-up 2 of 4: $(PACKAGES) pinned packages, a minute or two (2.9 GB on disk, TensorFlow 1.3 GB of it)"
	@grep -E '^(setuptools|wheel)==' constraints.txt | $(INSTALL) -q --require-hashes -r /dev/stdin
	@{ $(call UNPACK,a-o) & } ; $(call UNPACK,p-z); told=$$?; wait $$! && exit $$told
	@echo "set-up 3 of 4: Stretto's own packages; the largest of the others are compiled"
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests/' $(COMPILED) & $(OWN); told=$$?; wait; exit $$told
	@echo "set-up 4 of 4: the documentation"
	@$(BIN)/python libs/docs/build.py
	@touch $@

setup-torch: PACKAGES := $(shell grep -c == compose/pins/laptop-torch.txt)
setup-torch:  ## create .venv for PyTorch models alone: no TensorFlow, and nothing that only tests need (TORCH=… another torch)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@grep -hE '^(setuptools|wheel)==' constraints.txt | $(INSTALL) -q --require-hashes -r /dev/stdin
	@$(INSTALL) --no-compile --require-hashes -r compose/pins/laptop-torch.txt | $(PROGRESS)
	@$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(TORCH) | $(PROGRESS)
	@$(OWN)

# a user's PyTorch, as of `make setup-torch` or TORCH_PYTHON, trains in an environment that is there already
demo: $(if $(and $(filter torch,$(TRAINER)),$(wildcard $(BIN)/stretto)),,$(if $(filter torch,$(TRAINER)),setup-torch,setup))  ## train a real recommendation model elastically, from warm start to the exact books (TRAINER=torch: a PyTorch script)
	@$(BIN)/stretto demo $(if $(TRAINER),--trainer $(TRAINER))

chaos: setup  ## put a real job under seeded fire and count the samples (SEED=7 SCHEDULES=50 UNDISTURBED=5 INTENSITY=fierce MODEL=dcn REPORT=f.html)
	@$(BIN)/stretto chaos $(if $(SEED),--seed $(SEED)) $(if $(SCHEDULES),--schedules $(SCHEDULES)) \
	    $(if $(UNDISTURBED),--undisturbed $(UNDISTURBED)) $(if $(INTENSITY),--intensity $(INTENSITY)) \
	    $(if $(MODEL),--model $(MODEL)) $(if $(SAMPLES),--samples $(SAMPLES)) $(if $(REPORT),--report $(REPORT))

check: setup  ## lint, types and pure tests
	@$(BIN)/python -m tests.check

test: setup  ## run every test but those of the night
	@$(TEST) -m "not night"

test-night: setup  ## run the tests of the night: whole installations, long rounds under fire, every generated example
	@$(TEST) -m "night or hypothesis" --examples 1

durations: setup  ## run `make test` and write what took how long into tests/DURATIONS.md
	@$(TEST) -m "not night" --record-durations

explore: setup  ## try generated examples that `make test-night` does not
	@$(TEST) -m "hypothesis and not night" --examples 1 --hypothesis-profile=explore

simulate: setup  ## live through histories of seeds in virtual time, and check every promise (SEEDS=0:5000)
	@$(BIN)/python -m stretto_testing --seeds $(or $(SEEDS),0:100)

bench: setup  ## measure, as ratios against baselines of the same run
	@$(BIN)/python -m tests.bench

lint: setup  ## ruff, pyrefly (strict), import rules, drift of proto/
	@$(BIN)/python -m tests.check types style

proto: setup  ## generate proto/ from libs/wire and the gateway
	@$(BIN)/python -m stretto_protodocs.documents proto
	@$(BIN)/python -m stretto_gateway.http.openapi proto

references: setup  ## generate the reference pages of the documentation from the code
	@$(BIN)/python libs/docs/references.py

docs: setup  ## build the documentation site into the gateway's package; the gateway serves it at /console/docs/
	@$(BIN)/python libs/docs/build.py

console: setup  ## build the console into the gateway's package (needs a registry of Node packages)
	@$(BIN)/python libs/console/build.py

console-test: setup  ## try the console in Chromium (Debian's package chromium)
	@$(BIN)/python -m pytest -n0 services/gateway/tests/http/test_console_pages.py services/gateway/tests/http/test_console_whatif.py \
		tests/e2e/test_console.py

pins: setup  ## write the digests of what constraints.txt pins, there and for each image
	@$(BIN)/python -m tests.supply_chain pins

sbom: setup  ## a bill of materials (CycloneDX) of every image, and the licences, in sbom/
	@$(BIN)/python -m tests.supply_chain sbom sbom

audit: setup  ## look up known vulnerabilities of everything pinned; exit 3: no database answered (STRETTO_AUDIT=1: make test does it)
	@$(BIN)/python -m tests.supply_chain audit

images: $(addprefix image-,$(SERVICES) trainer tools)  ## build every image: services, trainer and tools (needs a Docker engine; BASE=… another base)

image-trainer:
	@$(IMAGE) --build-arg SERVICE=trainer --target trainer -t stretto/trainer:$(VERSION) .

image-tools:
	@$(IMAGE) --build-arg SERVICE=cli --target tools -t stretto/tools:$(VERSION) .

image-%:
	@$(IMAGE) --build-arg SERVICE=$* --target service -t stretto/$*:$(VERSION) .

wheels: docs  ## build the wheel of every distribution into dist/ (WHEELS=… another folder)
	@$(BIN)/python -m tests.release wheels $(or $(WHEELS),dist)

release: setup  ## state VERSION=… everywhere and close its section of the changelog: what may be tagged then
	@$(BIN)/python -m tests.release prepare "$(VERSION)"

e2e-kubernetes: setup images  ## install the chart on a real Kubernetes and take a job through failures and upgrades
	@$(BIN)/python -m tests.kubernetes trial

clean:  ## remove the environment and local state
	rm -rf $(VENV) .stretto sbom dist
