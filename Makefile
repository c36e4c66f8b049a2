# Every target that needs .venv sets it up first; a second run starts at once.
PYTHON ?=
export PYTHON

# Test files run side by side on a CPU, one after the other on a GPU: what one does would be in another's times.
PROCESSES ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo 0 || echo 2)

SETUP := scripts/setup
RUN   := .venv/bin/python -m

.PHONY: help run test lint format te print-requirements deploy-check clean

help:
	@echo "make run     start the app and open it in a browser (OPTIONS=... go to streamlit run)"
	@echo "make test    run every test that can run here (TESTS=... go to pytest)"
	@echo "make lint    formatting, lint and types"
	@echo "make format  put the code in the project's format"
	@echo "make te      add TransformerEngine (needs an NVIDIA GPU; builds 4 to 20 minutes)"
	@echo "make deploy-check  manifests, Dockerfile and Terraform through the linters (installs checkov once)"
	@echo "make clean   remove .venv"
	@echo "PYTHON=python3.12 make ... names the Python; 3.11, 3.12 and 3.13 work"

run:
	@$(SETUP)
	@exec $(RUN) streamlit run streamlit_app.py --server.address localhost --server.fileWatcherType none $(OPTIONS)

test:
	@$(SETUP) dev
	@$(RUN) pytest --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder $(TESTS)

lint:
	@$(SETUP) dev
	@$(RUN) ruff format --check --quiet .
	@$(RUN) ruff check --quiet .
	@$(RUN) basedpyright --pythonpath .venv/bin/python

format:
	@$(SETUP) dev
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

te:
	@$(SETUP) te

print-requirements:
	@$(SETUP) --print $(EXTRAS)

deploy-check:
	@$(SETUP) dev
	@$(RUN) deploy.check

clean:
	@rm -rf .venv .venv.lock .venv.log .venv-deploy
