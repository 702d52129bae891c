"""A package's public names, loaded on first use. The stub beside the package is the one list of them.

An editor and mypy read ``__init__.pyi``; Python reads the same file here and imports a module when one of its names is
first used. So the names, their modules and their types cannot disagree, and importing a package costs little.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the imports in its ``__init__.pyi``."""
    module_of = _modules(Path(init_file).with_suffix(".pyi"))
    names = sorted(module_of)

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return load, lambda: names, names


def _modules(stub: Path) -> dict[str, str]:
    """Name -> module, for every ``from module import name as name`` of a stub."""
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports if node.module for alias in node.names if alias.asname}
