"""What the code says of a class and its fields, read from its source: Python keeps the texts under fields nowhere."""

import ast
import inspect
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def summary(kind: type) -> str:
    """Return the first paragraph of what is said of a class, in one line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def field_texts(kind: type) -> dict[str, str]:
    """Return what is said of each field of a class, by name; those of its bases too. "": nothing."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("dtfm_"):
            found |= _own_texts(one)
    return found


def constant_texts(module: ModuleType) -> dict[str, str]:
    """Return what is said under each constant of a module, by name."""
    return _texts(_tree(str(module.__file__)).body)


def _own_texts(kind: type) -> dict[str, str]:
    tree = _tree(str(sys.modules[kind.__module__].__file__))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    return _texts(body)


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if is_text else ""  # type: ignore[union-attr]
        found[name] = " ".join(text.split())
    return found
