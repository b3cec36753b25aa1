# Two commands do everything: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TRAINS := $(VENV)/.trains

.PHONY: train test check docs install system clean

# What training needs; where everything is installed already, that does.
train: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(TRAINS))
	$(BIN)/manyhands train LunarLander-v3

# Half as many again as there are cores: tests that kill and restart things wait a lot. The slowest files come first.
SIDE_BY_SIDE := $(shell python3 -c "import os; print(max(2, 3 * os.cpu_count() // 2))")
test: install check system
	$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadfile --no-loadscope-reorder --durations 15

check: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Without the network, then and later. The variable leaves out an advertisement.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/docs/index.html"

install: $(INSTALLED)

# Installed again only when what is asked for has changed.
$(INSTALLED): EXTRAS := dev
$(TRAINS): EXTRAS := box2d,learn,plots,tensorboard,video
$(INSTALLED) $(TRAINS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "manyhands needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ apt-get update && apt-get install -y python3-venv && $(PYTHON) -m venv $(VENV); }
	@echo "Installing into $(VENV); a minute or two the first time."
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# Of all that pip says, the packages that it fetches and unpacks, and what goes wrong.
PIP_INSTALL := bash -o pipefail -c '$(BIN)/pip install --progress-bar off --disable-pip-version-check "$$@" | \
	sed -nu -e "/\.metadata/d" -e "s/^Processing .*\//  fetching /p" \
		-e "s/^ *Downloading \([^ ]*\/\)\{0,1\}\([^ ]*\)/  fetching \2/p" \
		-e "s/^ *Using cached /  fetched before: /p" \
		-e "s/^Installing collected packages.*/  unpacking/p"' pip

# What the tests need besides Python: a RabbitMQ that they start themselves as a private node, and certificates.
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
system:
	@{ command -v rabbitmq-server || test -x /usr/lib/rabbitmq/bin/rabbitmq-server; } > /dev/null && \
		command -v openssl > /dev/null || { \
		$(SUDO) apt-get update -qq && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends rabbitmq-server openssl; }

clean:
	rm -rf $(VENV) .venv-peers build src/*.egg-info
