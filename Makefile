VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PYTHONUNBUFFERED := 1
# Whatever the environment says, code is compiled once: the tests' and each process's that they start.
export PYTHONDONTWRITEBYTECODE :=

# Tests run beside each other: many of them wait. `make test WORKERS=4 PYTEST="-k swarm --durations=15"`
WORKERS ?= 3
PYTEST ?=
TESTS := --numprocesses $(WORKERS) --dist worksteal $(PYTEST)

# pip would compile every module of every package, for half a minute; these lead to all that is ever imported.
IMPORTED := dtfm_node.daemon, dtfm_coordinator.tools.local_swarm, transformers.models.llama.modeling_llama

# What is compiled when it is first used; else each of the tests' processes that come first would do it for itself.
COMPILED := $(wildcard coordinator/dtfm_coordinator/allocator/*.py coordinator/dtfm_coordinator/allocator/*/*.py) \
	$(wildcard lab/dtfm_lab/bounds/*.py) \
	protocol/dtfm_protocol/plan/schedule_rules.py protocol/dtfm_protocol/model/memory_model.py

.PHONY: demo demo-finetune check test lint coverage docs equivalence bench-allocator bench-engine bench-page bench-joining bench-world chaos fuzzing flood soak clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/pip install --no-compile --quiet --index-url $(TORCH_INDEX) --constraint constraints.txt torch)
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'import $(IMPORTED)'
	touch $@

$(VENV)/compiled: $(VENV)/installed $(COMPILED)
	$(BIN)/python -m tests.harness.machine_code
	touch $@

demo: $(VENV)/installed
	$(BIN)/dtfm-coordinator swarm examples/demo.toml --nodes 4 --state-dir state/demo --sample "The "

# A small model that has read Python's manual learns to answer, by adapters that a swarm trains beside it.
FINETUNE := state/finetune
ANSWERED = for function in sqrt shuffle sleep; do printf "Where is $$function? "; $(BIN)/dtfm-coordinator generate \
	--state-dir $(1) --prompt "$$(printf "User: Where is $$function?\nAssistant:")" --temperature 0 --tokens 16 || exit 1; done
demo-finetune: $(VENV)/installed
	$(BIN)/python examples/finetune_data.py $(FINETUNE)/chat.jsonl
	$(BIN)/dtfm-node solo examples/finetune_base.toml --state-dir $(FINETUNE)/base-run
	test -d $(FINETUNE)/base || $(BIN)/dtfm-coordinator export --state-dir $(FINETUNE)/base-run $(FINETUNE)/base
	$(BIN)/dtfm-coordinator swarm examples/finetune.toml --nodes 4 --state-dir $(FINETUNE)/run
	@printf '\nBefore:\n'; $(call ANSWERED,$(FINETUNE)/base-run)
	@printf '\nAfter:\n'; $(call ANSWERED,$(FINETUNE)/run)

check: lint $(VENV)/compiled
	$(BIN)/pytest -m "unit and not slow" $(TESTS)

test: $(VENV)/compiled
	$(BIN)/pytest $(TESTS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

coverage: $(VENV)/compiled
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

docs: $(VENV)/installed
	$(BIN)/python -m docs.generate

equivalence: $(VENV)/installed
	$(BIN)/python -m benchmarks.equivalence

bench-allocator: $(VENV)/installed
	$(BIN)/python -m benchmarks.allocator --out benchmarks/results/allocator.md
	$(BIN)/python -m benchmarks.allocator --held-out --out benchmarks/results/held_out.md
	$(BIN)/python -m benchmarks.optimality --out benchmarks/results/optimality.md
	$(BIN)/python -m benchmarks.v100 --out benchmarks/results/v100.md
	$(BIN)/python -m benchmarks.fuller_cost --out benchmarks/results/fuller_cost.md
	$(BIN)/python -m benchmarks.reductions --out benchmarks/results/reductions.md
	$(BIN)/python -m benchmarks.scale --out benchmarks/results/scale.md

bench-engine: $(VENV)/installed
	$(BIN)/python -m benchmarks.stream --out benchmarks/results/stream.md
	$(BIN)/python -m benchmarks.pipelines --out benchmarks/results/pipelines.md
	$(BIN)/python -m benchmarks.overlap --out benchmarks/results/overlap.md
	$(BIN)/python -m benchmarks.memory --out benchmarks/results/memory.md
	$(BIN)/python -m benchmarks.codecs --out benchmarks/results/codecs.md
	$(BIN)/python -m benchmarks.alarms --out benchmarks/results/alarms.md
	$(BIN)/python -m benchmarks.update_cost --out benchmarks/results/update_cost.md
	$(BIN)/python -m benchmarks.kept_states --out benchmarks/results/kept_states.md
	$(BIN)/python -m benchmarks.state_votes --out benchmarks/results/state_votes.md
	$(BIN)/python -m benchmarks.equivalence --out benchmarks/results/equivalence.md

bench-page: $(VENV)/installed
	$(BIN)/python -m benchmarks.owners_page --out benchmarks/results/owners_page.md

bench-joining: $(VENV)/installed
	$(BIN)/python -m benchmarks.joining --out benchmarks/results/joining.md

bench-world: $(VENV)/installed
	$(BIN)/python -m benchmarks.world.lab --out benchmarks/results/lab.md
	$(BIN)/python -m benchmarks.world.prediction --out benchmarks/results/prediction.md
	$(BIN)/python -m benchmarks.world.slow_links --out benchmarks/results/slow_links.md
	$(BIN)/python -m benchmarks.world.result --out benchmarks/results/paper_result.md
	$(BIN)/python -m benchmarks.world.slowdown --out benchmarks/results/slowdown.md
	$(BIN)/python -m benchmarks.world.nat --out benchmarks/results/nat.md
	$(BIN)/python -m benchmarks.world.adaptation --runs 3 --out benchmarks/results/adaptation.md
	$(BIN)/python -m benchmarks.world.late_newcomer --worlds here home --out benchmarks/results/late_newcomer.md
	$(BIN)/python -m benchmarks.world.lost_peer --out benchmarks/results/lost_peer.md
	$(BIN)/python -m benchmarks.world.figures benchmarks/results

chaos: $(VENV)/installed
	$(BIN)/python -m benchmarks.chaos --only lone --out benchmarks/results/chaos_lone.md
	$(BIN)/python -m benchmarks.chaos --only replicated --out benchmarks/results/chaos_replicated.md
	$(BIN)/python -m benchmarks.chaos --only machines --out benchmarks/results/chaos_machines.md

fuzzing: $(VENV)/installed
	$(BIN)/python -m benchmarks.fuzzing --out benchmarks/results/fuzzing.md

flood: $(VENV)/installed
	$(BIN)/python -m benchmarks.flood --out benchmarks/results/flood.md

soak: $(VENV)/installed
	$(BIN)/python -m benchmarks.chaos.soak --out benchmarks/results/soak.md

clean:
	rm -rf $(VENV) state build
