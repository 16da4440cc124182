"""The architecture as docs/explanation/architecture.md states it, held to the imports and the files."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"dtfm_protocol": "protocol", "dtfm_node": "node", "dtfm_coordinator": "coordinator", "dtfm_lab": "lab"}
"""Import packages, and the folder at the repository's root that holds each."""
MAY_IMPORT = {
    "dtfm_protocol": set(),
    "dtfm_node": {"dtfm_protocol"},
    "dtfm_coordinator": {"dtfm_protocol"},
    "dtfm_lab": {"dtfm_protocol", "dtfm_coordinator"},
}
LEVELS = {
    "dtfm_protocol": "errors validation_words bounds schema identity process wire job view plan transport discovery "
    "control checkpoint model data open_planes",
    "dtfm_node": "limits control links engine state runner devices doctor commands node_options arrival daemon main",
    "dtfm_coordinator": "allocator faults membership links records plan_change swarm owner leader serve tools commands "
    "main",
    "dtfm_lab": "networks bounds emulation compare",
}
"""The folders and files of each package, plain data first: each may import those before it, and none after it."""
TOP = [*FOLDERS.values(), "tests", "benchmarks", "deploy", "docs", "examples"]
OFTEN = {"__init__.py", "main.py", "command.py"}
"""File names that say all when read with their folder's."""

CLASS_LINES = 200
LONGER = {
    "Admission": "one memory of who is a member, and the check that reads all of it",
    "CheckpointCollector": "a checkpoint that comes in piece by piece: each piece is judged by those before",
    "ControlPlane": "one session with a broker: what it sends, reads and remembers, over any number of connections",
    "Controller": "a job from its first plan to its end, in the order in which it happens",
    "Daemon": "a node from its start to its end; most lines make its parts and hand them to each other",
    "DirectDataPlane": "one data plane: half of it hands questions on to the parts that answer them",
    "FrontDoor": "one visitor's way from its first byte to a handshake, in steps of a few lines",
    "LibP2PDataPlane": "one libp2p daemon: half of it is what its start takes and says",
    "LinkTable": "one table of links, and each question that is asked of it",
    "ModelDemand": "one table of a model's sizes, and each sum of them that a placement asks for",
    "Plan": "one signed document, and what follows from its routes alone",
    "PlanChange": "one machine, an event a method",
    "PlanChangeDriver": "the shell of that machine, an action a method",
    "PlanWorker": "the work under one plan, in the order in which it happens",
    "Trainer": "the steps of one plan, in the order in which a step happens",
    "TlsStream": "one connection: what TLS, the kernel and a cap each do with its bytes, in and out",
    "TrainingStage": "one state of one stage: what is computed on it, and how it becomes the next",
    "Timeouts": "a table, two lines a row",
}
"""Classes of more lines than that, and why each is not cut."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Pairs of product modules of which the first imports the second, at its top or later."""
    return tuple((module, to) for module in modules() for to in imported(module) if to != module)


def imported(module: str) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from {name if name in modules() else node.module for name in whole}


def test_packages_import_only_those_below_them() -> None:
    """But for the command line of what stands on made-up networks, which the coordinator's program finds late."""
    wrong = [
        f"{module} imports {to}"
        for module, to in imports()
        if (here := module.partition(".")[0]) != (there := to.partition(".")[0]) and there not in MAY_IMPORT[here]
    ]
    assert [
        line
        for line in wrong
        if not re.fullmatch(r"dtfm_coordinator\.commands\.(lab|job)_commands imports dtfm_lab\..*", line)
    ] == []


def test_the_lab_stands_on_the_allocator_and_not_on_the_service() -> None:
    reached = {to for module, to in imports() if module.startswith("dtfm_lab") and to.startswith("dtfm_coordinator")}
    assert {name for name in reached if not name.startswith("dtfm_coordinator.allocator")} == set()


@pytest.mark.parametrize("package", LEVELS)
def test_inside_a_package_imports_run_one_way(package: str) -> None:
    levels = LEVELS[package].split()
    parts = {name.split(".")[1] for name in modules() if name.startswith(f"{package}.")}
    assert parts == set(levels), "a folder or file that has no level, or a level that has none"
    upward = []
    for module, to in imports():
        if module.startswith(f"{package}.") and to.startswith(f"{package}."):
            above, below = module.split(".")[1], to.split(".")[1]
            if levels.index(above) < levels.index(below):
                upward.append(f"{module} imports {to}")
    assert upward == []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, to in imports():
        if modules()[module].name != "__init__.py" and modules()[to].name != "__init__.py":
            graph[module].add(to)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        pytest.fail(", ".join(f"{to} imports {module}" for module, to in pairwise(circle)))


def test_no_folders_import_each_other_in_a_circle() -> None:
    """Of those that lie in one folder."""
    for folder in (name for name, path in modules().items() if path.name == "__init__.py"):
        depth = folder.count(".") + 1
        graph: dict[str, set[str]] = defaultdict(set)
        for module, to in imports():
            if module.startswith(f"{folder}.") and to.startswith(f"{folder}."):
                above, below = module.split(".")[depth], to.split(".")[depth]
                if above != below:
                    graph[above].add(below)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"in {folder}: {' imported by '.join(error.args[1])}")


def test_each_file_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for path in modules().values():
        places[path.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in OFTEN} == {}


def test_each_public_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for module in modules():
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_class_is_short_or_has_a_reason() -> None:
    classes = [node for module in modules() for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)]
    assert {one.name for one in classes if (one.end_lineno or 0) - one.lineno + 1 > CLASS_LINES} == set(LONGER)


@pytest.mark.parametrize("folder", [name for name, path in modules().items() if path.name == "__init__.py"])
def test_a_folders_map_names_each_of_its_files_and_no_other(folder: str) -> None:
    listed = re.findall(r"^- `(\w+)/?`: \S", ast.get_docstring(tree(folder)) or "", flags=re.MULTILINE)
    there = {name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == folder}
    assert sorted(listed) == sorted(there)


def test_a_package_has_a_dozen_folders_at_most() -> None:
    for package, folder in FOLDERS.items():
        assert len(list((ROOT / folder / package).glob("*/__init__.py"))) <= 12, package


def test_what_is_said_to_be_somewhere_is_there() -> None:
    """Paths of Python files and folders in documents."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob("deploy/*.md")]
    missing = []
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for path in re.findall(
            r"`((?:protocol|node|coordinator|lab|tests|benchmarks|deploy|docs|examples)/[\w./-]*)`", text
        ):
            if not (ROOT / path).exists():
                missing.append(f"{document.relative_to(ROOT)}: {path}")
    assert missing == []


def test_sections_of_docstrings_are_indented_below_their_headings() -> None:
    flat = []
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if re.search(r"^(Args|Returns|Yields|Raises):\n(?! {4}\S)", text, flags=re.MULTILINE):
                    flat.append(f"{module}.{node.name}")
    assert flat == []
