# make setup   what everything below needs: .venv, and on Debian as root Mosquitto and Fashion-MNIST
# make demo    a whole federation on this machine (METHOD=hassle: few labels; BROKER=embedded|mosquitto)
# make check   ruff and mypy
# make test    check, then the tests (LEVEL=x86-64-v3: at a lower vector level than the processor's)
# make test-lowest   the tests with the lowest versions that pyproject.toml allows, in .venv-lowest
# make soak    long campaigns

PYTHON ?= python3
BROKER ?= auto
METHOD ?= fedbac
DEMO ?=
LEVEL ?=
BIN := .venv/bin
LOWEST := .venv-lowest/bin
AT_LEVEL := $(if $(LEVEL),$(BIN)/python -m fedbac_edge.host.vector_level $(LEVEL))
CODE := fedbac_edge device_agent broker export tests benchmarks

.PHONY: setup demo check test test-lowest soak clean
.DEFAULT_GOAL := setup

# The Python is looked at first: nothing is installed for one that is too old.
setup:
	@sh .ci/virtual-environment $(PYTHON) check
	@$(MAKE) --no-print-directory .venv/packages.stamp

demo: setup
	@$(BIN)/python -m fedbac_edge.cli demo --broker-kind $(BROKER) --method $(METHOD) $(DEMO)

check: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --strict

test: setup check
	$(AT_LEVEL) $(BIN)/python -m pytest -q -n 3 --dist loadfile --durations=25

# Without the tools of development, ray and what only checks or measures; pip takes some minutes the first time.
test-lowest: .venv-lowest/packages.stamp
	$(LOWEST)/python -m pytest -q -n 3 --dist loadfile --durations=25

soak: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[soak]'
	nice -n 19 $(BIN)/python -m pytest -q -m soak --timeout 3600

clean:
	rm -rf .venv .venv-lowest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/packages.stamp: pyproject.toml constraints.txt | .venv/system.stamp
	@sh .ci/virtual-environment $(PYTHON)
	@echo "Python packages for .venv: minutes, and 1.7 GB of disk with a CPU build of torch (CUDA's take several more)"
	@$(BIN)/python .ci/install-packages .venv/packages.log -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt byzfl
	@touch .venv/system.stamp $@

.venv-lowest/packages.stamp: pyproject.toml constraints.txt .ci/lowest | .venv/system.stamp
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) .ci/lowest > .venv-lowest/requirements.txt
	$(LOWEST)/python -m pip install -r .venv-lowest/requirements.txt
	$(LOWEST)/python -m pip install --quiet --no-deps -e .
	$(LOWEST)/python -m pip install --quiet --no-deps -c constraints.txt byzfl
	@touch $@

# Packages of the system. Other systems, and users who are not root, are told what is missing; nothing fails,
# since without Mosquitto there is the embedded broker.
.venv/system.stamp: pyproject.toml
	@sh .ci/system-packages $(PYTHON)
	@sh .ci/virtual-environment $(PYTHON)
	@touch $@
