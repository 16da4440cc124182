"""pyproject.toml declares what the code imports, each package in the list of those who need it, and no other."""

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("protocol", "node", "coordinator", "lab", "benchmarks", "docs", "tests")
NEEDS = {
    "protocol": "",
    "node": "",
    "coordinator": "coordinator",
    "lab": "lab",
    "benchmarks": "lab",
    "docs": "dev",
    "tests": "dev",
}
"""The extra that whoever runs a folder's code has installed; "": none."""
DISTRIBUTIONS = {"google": "protobuf", "pydantic_core": "pydantic", "yaml": "PyYAML"}
"""Of imports that have another name than what pip installs, or come with another package; a dash for an
underscore does not count."""
ELSEWHERE = {
    "torchft": "benchmarks/chaos/baselines.py makes an environment for it",
    "wandb": "`serve --wandb` is for those who have it",
}
LATE = {"datasets": "data", "pyarrow": "data"}
"""Packages that a few functions import, and the extra of who needs them; without it, these say what to install."""
TOOLS = {
    "axe-core-python",
    "coverage",
    "mypy",
    "pytest-asyncio",
    "pytest-xdist",
    "ruff",
    "tensorboard",
    "types-psutil",
}
"""Of the extra dev: run, or imported by another package, and not here."""


@functools.cache
def imported(folder: str) -> dict[str, str]:
    """What is imported anywhere in a folder, late imports too, but for this repository and Python's own: the
    distribution, and a file that does it."""
    own = {path.name for top in FOLDERS for path in (ROOT / top).glob("dtfm_*")} | {*FOLDERS}
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            if name not in own and name not in sys.stdlib_module_names and name not in {**ELSEWHERE, **LATE}:
                found[canonicalize_name(DISTRIBUTIONS.get(name, name))] = str(path.relative_to(ROOT))
    return found


def names(tree: ast.AST) -> Iterator[str]:
    """The top-level modules of all imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module.split(".")[0]


def declared(extra: str) -> set[str]:
    """The packages that an extra adds itself; "": those that all have."""
    asked = PROJECT["dependencies"] if extra == "" else PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(one).name) for one in asked} - {PROJECT["name"]}


def installed(extra: str) -> set[str]:
    """The packages that whoever asks for an extra has, with those of the extras that it includes."""
    found = declared("")
    if extra:
        found |= declared(extra)
        for one in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if one.name == PROJECT["name"]:
                found = found.union(*map(installed, one.extras))
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_everything_that_is_imported_is_declared_for_whoever_runs_it(folder: str) -> None:
    undeclared = {name: path for name, path in imported(folder).items() if name not in installed(NEEDS[folder])}
    assert undeclared == {}


def test_a_volunteer_installs_nothing_that_only_others_import() -> None:
    assert declared("") == {*imported("protocol"), *imported("node")}


@pytest.mark.parametrize("extra", ["coordinator", "lab", "dev"])
def test_no_extra_holds_what_nobody_imports(extra: str) -> None:
    needed = set().union(*(imported(folder) for folder, needs in NEEDS.items() if needs in (extra, "lab")))
    assert declared(extra) - TOOLS <= needed


def test_the_extras_include_each_other() -> None:
    assert installed("") < installed("coordinator") <= installed("lab") < installed("dev")
    assert declared("data") < installed("dev")


def test_what_only_some_jobs_need_is_imported_where_it_is_used() -> None:
    """A program without it must start."""
    found = set()
    for path in (
        path for folder in ("protocol", "node", "coordinator", "lab") for path in (ROOT / folder).rglob("*.py")
    ):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {name for name in names(tree) if name in LATE}
        top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        assert not set(names(top)) & set(LATE), path
    assert found == set(LATE)
    assert declared("data") == set(LATE)
