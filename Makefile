# Thin front-end: every target calls meson/ninja or one script in scripts/. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all

BUILD     ?= build
STATE_DIR ?= /var/lib/space
LISTEN    ?= 127.0.0.1:7780
CLEANUP   ?=
K         ?=
ALL       ?=
ENGINE    ?=
SLOWER    ?= 1
PREFIX    ?= /usr/local
DESTDIR   ?=
SECONDS_EACH ?= 15
export BUILD STATE_DIR LISTEN CLEANUP PREFIX DESTDIR SLOWER

SOURCES = $(shell find src tests bench -name '*.[ch]')

.PHONY: help setup all run stop check check-escape check-kvm check-power check-fresh unit bench bench-kvm fuzz install uninstall format lint clean purge

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r t d; do printf '  make %-12s %s\n' "$$t" "$$d"; done
	@echo
	@echo '  STATE_DIR=$(STATE_DIR)  LISTEN=$(LISTEN)  BUILD=$(BUILD)  CLEANUP=keep|suspend|stop|delete (make run)  K=pattern (make check: which black-box tests)'

setup: ## install the Debian/Ubuntu packages that are missing (root)
	@scripts/setup.sh

all: ## build everything into $(BUILD)/
	@scripts/build.sh

run: ## the main job: install, build, start the server, build seed:latest, run examples/first-sandbox (root)
	@scripts/run.sh

stop: ## end the server that `make run` started; its sandboxes go on
	@scripts/run.sh --stop

purge: ## end the server and delete every sandbox and resource of STATE_DIR (root)
	@scripts/run.sh --purge

check: ## unit tests, then the black-box tests in real VMs (root)
	@scripts/check.sh $(if $(K),-k '$(K)') $(if $(ENGINE),--engine $(ENGINE))

check-kvm: all ## black-box tests with KVM, in a machine that has it, with systemd and cgroup v2 (root; slow)
	@tests/kvm/check.py --bin "$(BUILD)" $(if $(K),-k '$(K)') $(if $(ALL),--all) $(if $(ENGINE),--engine $(ENGINE))

check-power: all ## cut the power of such a machine again and again: all that was told must be true afterwards (root; slow)
	@tests/kvm/power.py --bin "$(BUILD)" $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE))

check-fresh: ## `make run`, then `make check` of what K matches, from a clean checkout on a new machine (root; hours)
	@tests/kvm/fresh.py $(if $(K),--check '$(K)')

check-escape: all ## the escape suite: a hostile guest and a hostile VMM try to get out (root)
	@tests/escape/run.py --bin "$(BUILD)" $(if $(K),-k '$(K)')

unit: all ## unit tests only
	@scripts/build.sh --test

bench: ## measure against the bare limits, and print the table (root)
	@scripts/bench.sh

bench-kvm: all ## the figures that depend on the engine, with KVM, in a machine that has it (root; an hour)
	@tests/kvm/bench.py --bin "$(BUILD)" $(if $(ENGINE),--engine $(ENGINE))

fuzz: ## fuzz every target for SECONDS_EACH seconds, starting from the kept corpora
	@.ci/fuzz.sh $(SECONDS_EACH)

install: all ## install programs and man pages below PREFIX
	@DESTDIR="$(DESTDIR)" meson install -C $(BUILD) --no-rebuild

uninstall: ## remove what `make install` put there
	@DESTDIR="$(DESTDIR)" ninja -C $(BUILD) uninstall

format: ## rewrite the C sources in the project's format
	@clang-format -i $(SOURCES)

lint: ## format, sizes, banned functions, clang-tidy
	@.ci/lint.sh

clean: ## remove build directories
	@rm -rf $(BUILD) build-*
