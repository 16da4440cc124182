"""Benchmarks still find what they measure: few of them run in tests, and what they call moves."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in {"benchmarks", "tests"} or "dtfm" in error.name:
            raise
        pytest.skip(f"{error.name} is not installed")
