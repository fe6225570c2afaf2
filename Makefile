# Every target does all its set-up; a machine needs Python 3.11–3.13 and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SLOW_WORKERS ?= 2
# lifelines, with which tests compare, states pandas < 3, and works with later ones
LIVES := 'lifelines>=0.30' autograd autograd-gamma formulaic interface-meta

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # the tests' modules, and what the processes they start import, are compiled once

.PHONY: help
help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps $(LIVES)
	touch $(READY)

.PHONY: setup
setup: $(READY)  ## Make the virtual environment

.PHONY: demo
demo: $(READY)  ## Train twice on rendered factory labels, and compare (about 2 minutes)
	$(BIN)/fedfloor demo

.PHONY: broker
broker:
	@PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq mosquitto >/dev/null; } \
		|| { echo "a live park needs Mosquitto, the MQTT broker: sudo apt install mosquitto, then make demo-live"; exit 1; }

.PHONY: demo-live
demo-live: broker $(READY)  ## A park of real processes: train, release, notice drift, train on, roll back (about a minute)
	$(BIN)/fedfloor park live demo

.PHONY: test
test: $(READY)  ## All tests but those below (some 6 minutes on 2 cores), or ROOM=report: those that a room may concern
	@tests=$$($(BIN)/python tests/programs/affected.py $(ROOM)) || exit 2; set -x; \
		$(BIN)/pytest $$tests -m 'not slow and not live and not long' -n 2 --maxschedchunk 8 --durations 15

.PHONY: test-long
test-long: $(READY)  ## The tests of half a second and more (some 15 minutes on 2 cores), or those that ROOM=report may concern
	@tests=$$($(BIN)/python tests/programs/affected.py $(ROOM)) || exit 2; set -x; \
		$(BIN)/pytest $$tests -m 'long and not slow and not live' -n 2 --maxschedchunk 2 --durations 15

# What the wheel leaves out is not there either: src is read by the tests of the tree itself, which are left out
.PHONY: test-wheel
test-wheel: $(READY)  ## make test and test-long against the built wheel, in a copy of the tree without the sources
	rm -rf dist/wheel && mkdir -p dist/wheel/tree
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist/wheel .
	$(BIN)/pip install --quiet --no-deps --target dist/wheel/site dist/wheel/fedfloor-*.whl
	git archive HEAD | tar -x -C dist/wheel/tree --exclude src
	cd dist/wheel/tree && PYTHONPATH="$(CURDIR)/dist/wheel/site" "$(CURDIR)/$(BIN)/pytest" -m 'not slow and not live' \
		-n 2 --maxschedchunk 8 --durations 15 --ignore tests/package --ignore tests/docs

.PHONY: test-slow
test-slow: $(READY)  ## Whole runs on real data, processes that are killed, and a browser (about 18 minutes on 2 cores)
	$(BIN)/pytest -m 'slow and not live' -n $(SLOW_WORKERS) --maxschedchunk 1 --durations 15

.PHONY: test-live
test-live: $(READY)  ## Whole parks of real processes; needs Mosquitto, and root for the networks (about 3 minutes)
	$(BIN)/pytest -m live -n $(SLOW_WORKERS) --maxschedchunk 1 --durations 15

# The walk of a plan, a visit's training, where models meet, what travels and what it costs, three methods
QUICK := plan_nodes plan_suite engine_visit engine_walk engine_tree parts_means network_price engine_scopes identity methods_contract

.PHONY: quick
quick: $(READY)  ## The kernel and three methods, for while you work (below a minute on 2 cores)
	$(BIN)/pytest $(QUICK:%=tests/*/test_%.py) -m 'not slow and not live' -n 2 --maxschedchunk 8 \
		-k '(not test_methods_contract or [fedavg] or [fedsr] or [fedgs]) and not killed'

.PHONY: check
check: $(READY)  ## Style, types and doctests, then make test and test-long
	$(BIN)/ruff check src agent tests benchmarks papers docs release.py
	$(BIN)/ruff format --check src agent tests benchmarks papers docs release.py
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/pytest --doctest-modules src papers -q
	$(MAKE) test
	$(MAKE) test-long

.PHONY: twins
twins: $(READY)  ## FedAvg, FedSR, HierFAVG and ring beside plain loops, 8 rounds, 3 seeds (about 15 minutes; needs MNIST)
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python tests/programs/twins.py --rounds 8 --seeds 0,1,2 --out results/twins.md

.PHONY: twins-baselines
twins-baselines: $(READY)  ## FedAvg, FedProx and MOON beside plain loops (about 15 minutes; needs MNIST, Fashion-MNIST)
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python tests/programs/twins_baselines.py --rounds 8 --seed 0 --out results/twins-baselines.md

DEVICES := fedavg,fedprox,moon,fedmmd,fedfusion,fedfusion-conv,fedfusion-single,cgau,cgau-1,fedl,scaffold
CLOUD := ida,ida-intrac,ida-fedavg,fedavgm,fedadagrad,fedadam,fedyogi,qffl
METHODS := $(DEVICES),$(CLOUD),fedsr,hierfavg,ring

.PHONY: methods
methods: $(READY)  ## The baselines on FEMNIST, 20 rounds, 3 seeds, resumable (about half an hour; needs FEMNIST)
	$(BIN)/fedfloor compare femnist-methods --methods $(METHODS) --seeds 0,1,2 --resume --out runs/femnist-methods
	$(BIN)/fedfloor report runs/femnist-methods --markdown runs/femnist-methods/table.md

.PHONY: network
network: $(READY)  ## Four methods on FEMNIST, priced on two networks (about half an hour, resumable; needs FEMNIST)
	$(BIN)/fedfloor compare femnist-methods --methods fedavg,fedsr,hierfavg,ring --seeds 0,1,2 \
		--set rounds=60 --set evaluate.every=2 --resume --out runs/femnist-network
	rm -rf runs/femnist-lte-cat-m2 runs/femnist-5g-edge
	$(BIN)/fedfloor price runs/femnist-network --network lte-cat-m2 --target 0.8 --at seconds=900 --out runs/femnist-lte-cat-m2
	$(BIN)/fedfloor price runs/femnist-network --network 5g-edge --target 0.8 --at seconds=15 --out runs/femnist-5g-edge

ALL := fedavg,fedsr,hierfavg,ring,fedgs,hfedms,hfedms-s,astraea,fldg,fldgl,kcenter,fedcs,fedprox,moon,fedmmd,fedfusion,cgau,fedl
ALL := $(ALL),scaffold,qffl,ida,fedavgm,fedadagrad,fedadam,fedyogi

.PHONY: choose
choose: $(READY)  ## Nearly all methods on skewed data, still and streaming, on two networks (about an hour, resumable; needs Fashion-MNIST)
	mkdir -p runs; for park in static:0.65 stream:0.7; do name=choose-$${park%:*}; \
		$(BIN)/fedfloor compare $$name --methods $(ALL) --seeds 0,1,2 --resume --out runs/$$name --json > runs/$$name.json || exit; \
		for network in 5g-edge lte-cat-m2; do rm -rf runs/$$name-$$network; \
			$(BIN)/fedfloor price $$(ls -d runs/$$name/*-seed* | grep -v fedcs) --network $$network --target $${park#*:} \
				--out runs/$$name-$$network --json > runs/$$name-$$network.json || exit; done; \
		$(BIN)/fedfloor compare $$name --methods fedcs --seeds 0,1,2 --resume --set network.profile=lte-cat-m2 \
			--set methods.fedcs.deadline_s=16 --out runs/$$name-fedcs --json > runs/$$name-fedcs.json || exit; done
	$(BIN)/python -m benchmarks.choose && $(BIN)/python -m benchmarks.pages

.PHONY: golden-record golden-check
golden-record: $(READY)  ## Write down plans, prices, ledgers and models of eleven experiments, before a change that should alter none
	$(BIN)/python tests/programs/golden.py record

golden-check: $(READY)  ## Compare this code with what golden-record wrote down, to the bit (about a minute)
	$(BIN)/python tests/programs/golden.py check

.PHONY: kills
kills: $(READY)  ## FedSR's MNIST experiment killed ten times and resumed: the same bits? (about 3 minutes; needs MNIST)
	$(BIN)/python tests/programs/kills.py

.PHONY: outages
outages: $(READY)  ## 100 random ends of devices, edges, brokers and clouds in parks of real processes (15 minutes; needs Mosquitto)
	PYTHONPATH=.:tests/support $(BIN)/python tests/programs/outages.py --faults 100 --parks 5 --out results/outages.md

.PHONY: bench
bench: $(READY)  ## Speed of rounds beside a bare training loop
	$(BIN)/fedfloor bench simulation

.venv-peers/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet 'torch>=2.11,<2.14' 'pfl[pytorch]==0.6.*' 'flwr[simulation]>=1.41,<1.42'
	.venv-peers/bin/pip install --quiet --editable .
	touch .venv-peers/.ready

.PHONY: bench-peers
bench-peers: .venv-peers/.ready  ## Seconds per round beside pfl-research, Flower's simulation and a bare loop (about 10 minutes)
	.venv-peers/bin/python benchmarks/peers/run.py --repeats 5

.PHONY: bench-gpu
bench-gpu: $(READY)  ## Cohorts on one GPU: equality, speed, the papers' workloads (about 40 minutes, resumable)
	PYTHON=$(BIN)/python sh benchmarks/gpu.sh runs/bench-gpu

.PHONY: screenshots
screenshots: $(READY)  ## The pictures of the report and the live page in docs/pictures (a minute; needs Chromium)
	$(BIN)/python docs/screenshots.py

.PHONY: docs
docs: $(READY)  ## The documentation as a web site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python docs/links.py site

.PHONY: release
release: $(READY)  ## Build both wheels in dist/, twice the same bytes, with bills of materials; train with that of fedfloor elsewhere
	rm -rf dist
	$(BIN)/python release.py dist
	$(PYTHON) -m venv dist/empty
	dist/empty/bin/pip install --quiet dist/fedfloor-*.whl
	cd dist && empty/bin/fedfloor run demo --set rounds=2 --set name=release --out run && empty/bin/fedfloor report run
	rm -rf dist/empty dist/run

.PHONY: agent
agent: broker $(READY)  ## Build the wheel of devices without PyTorch in dist/, and serve models with it in an empty environment
	rm -rf dist/fedfloor_agent-*
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist ./agent
	$(BIN)/pytest tests/rollout/test_rollout_wheel.py -s && ls -l dist/fedfloor_agent-*.whl

.PHONY: clean
clean:  ## Delete the virtual environment and caches
	rm -rf .venv .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache site
