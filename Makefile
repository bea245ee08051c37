# Headstart. `make` alone lists the targets. Every target does its own set-up and is quick once that is done.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup starter ui run test check fmt bench app clean

# Builds stay out of the working tree and are shared between clones.
export HEADSTART_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/headstart
export CARGO_TARGET_DIR ?= $(HEADSTART_CACHE)/target
# Further arguments for the program, for example: make run ARGS="--port 9000"
ARGS ?=
# What `make bench` measures, by name or path.
MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct.Q4_1

UI_SOURCES := $(shell find ui/src ui/public -type f 2>/dev/null) ui/index.html ui/vite.config.ts ui/svelte.config.js ui/tsconfig.json ui/package.json

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## check for the tools that are needed and install what can be
	@scripts/setup.sh build

starter: setup ## fetch the starter model (98 MB), once
	@scripts/starter.sh

ui/node_modules/.package-lock.json: ui/package-lock.json ui/package.json
	@scripts/ui.sh ci --loglevel=error
	@touch $@

ui/dist/index.html: ui/node_modules/.package-lock.json $(UI_SOURCES)
	@scripts/ui.sh run --silent build
	@touch $@

ui: setup ## build the dashboard
	@$(MAKE) --no-print-directory ui/dist/index.html

run: ui starter ## build everything and serve (ARGS="..." for the server)
	cargo run --release --bin headstart -- serve --model-dir models $(ARGS)

test: ## all checks and tests
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory ui/dist/index.html
	@scripts/starter.sh
	@scripts/test.sh

check: setup ## quick: formatting, lints, types
	cargo fmt --all --check
	cargo clippy --all-targets -- -D warnings

fmt: ## format the Rust code
	cargo fmt --all

bench: starter ## measure prefill and decode on this machine (MODEL=... ARGS="...")
	cargo run --release --bin headstart -- bench $(MODEL) $(ARGS)

app: ## build and start the menu-bar app
	@scripts/setup.sh app
	@$(MAKE) --no-print-directory ui starter
	cargo run --release -p headstart-app

clean: ## remove what was built (the models stay)
	rm -rf ui/dist ui/node_modules "$(CARGO_TARGET_DIR)"
