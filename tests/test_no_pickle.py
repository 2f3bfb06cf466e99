"""Nothing in the package unpickles, marshals or evaluates what came from elsewhere, nor opens a channel that does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("tiers", "migration", "paging", "service", "connectors", "benchmarks", "examples", "src/hybridkv")

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "xmlrpc", "yaml"}
PARTS = {("multiprocessing", "connection"), ("multiprocessing", "managers"), ("multiprocessing", "shared_memory")}
CALLS = {"eval", "exec", "compile", "__import__"}


def sources() -> list[Path]:
    found = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not path.name.endswith("_pb2.py")}
    return sorted(path for path in found if not any(parent.is_symlink() for parent in path.parents))


def findings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {name.name}" for name in node.names if _is_bad(name.name))
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
            yield from (f"imports {name}" for name in names if _is_bad(name))
        elif isinstance(node, ast.Call):
            yield from _in_call(node)


def _is_bad(module: str) -> bool:
    parts = tuple(module.split("."))
    return parts[0] in MODULES or parts[:2] in PARTS


def _in_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {word.arg: _constant(word.value) for word in node.keywords}
    if name in CALLS:
        yield f"calls {name}"
    if given.get("allow_pickle", False) is not False:
        yield "lets NumPy unpickle"
    if name == "torch.load" and given.get("weights_only") is not True:
        yield "lets torch unpickle"
    if name.endswith("import_module") and _is_bad(str(_constant(node.args[0])) if node.args else ""):
        yield "imports it by name"


def _constant(node: ast.expr) -> object:
    """Its value; the node itself where that is not known before it runs."""
    return node.value if isinstance(node, ast.Constant) else node


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_unpickles(path: Path) -> None:
    assert list(findings(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "from multiprocessing import connection",
        "import multiprocessing.connection as c",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import torch\ntorch.load(f)",
        "importlib.import_module('pickle')",
        "eval(text)",
    ],
)
def test_the_scan_finds_what_it_looks_for(text: str) -> None:
    assert list(findings(ast.parse(text)))
