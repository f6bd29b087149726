"""The house of Neurenix: which floor may import which, how long a file may be, what import costs.

The order below is the whole rule. A module stands on the floor of the longest name that fits it;
it imports modules of its own package, and of floors strictly below.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neurenix
from neurenix import tensor

pytestmark = [pytest.mark.pure, pytest.mark.newest]

ROOT = Path(neurenix.__file__).parent
REPOSITORY = Path(__file__).parent.parent

FLOORS = {
    "neurenix._core": 0,
    "neurenix._migration": 5,
    "neurenix.chips": 10,
    "neurenix.rules": 10,
    "neurenix._jax": 16,
    "neurenix._jaxlib": 16,
    "neurenix._cpu": 17,
    "neurenix._dtypes": 17,
    "neurenix._copy_host_arrays": 17,
    "neurenix.simulation": 18,
    "neurenix.hardware": 19,
    "neurenix.device": 20,
    "neurenix.random": 21,
    "neurenix.tensor": 22,
    "neurenix._jaxpr": 25,
    "neurenix._nnx": 25,
    "neurenix._padding_mask": 26,
    "neurenix._jit": 26,
    "neurenix.checkpoint": 28,
    "neurenix._user_functions": 28,
    "neurenix.optim": 30,
    "neurenix.losses": 30,
    "neurenix.metrics": 30,
    "neurenix.distribute": 30,
    "neurenix.data": 30,
    "neurenix.compiler": 30,
    "neurenix.transforms": 35,
    "neurenix.train": 40,
    "neurenix.callbacks": 45,
    "neurenix.nn": 50,
    "neurenix.models": 55,
    "neurenix.preflight": 60,
    "neurenix.cli": 70,
}

# Imported inside the function that needs them: an extra, or slow to load and seldom needed.
LAZY = {"grain", "keras", "onnx", "rich", "sklearn", "tensorboardX", "torch", "typer"}
# At the top of a module, these and the standard library only.
EAGER = {"flax", "jax", "jaxlib", "numpy", "optax", "safetensors"}
# Loaded first where a process begins: the command line reads its own arguments.
EAGER_IN = {"neurenix.cli": {"typer"}}

# Who alone may use names of a package that are not public.
PRIVATE_IN = {
    "jax": {"neurenix._jax"},
    "jaxlib": {"neurenix._jax", "neurenix._jaxlib"},
    "flax": {"neurenix._nnx"},
}

SOURCES = sorted(ROOT.rglob("*.py"))
# The list of public names and the door of `python -m neurenix` reach every floor.
DOORS = (ROOT / "__init__.py", ROOT / "__main__.py")
INSIDE = [path for path in SOURCES if path not in DOORS]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path) for path in SOURCES}


def house_of(module: str) -> str:
    """Return the entry of ``FLOORS`` that ``module`` belongs to."""
    fitting = [house for house in FLOORS if module == house or module.startswith(house + ".")]
    assert fitting, f"{module} stands on no floor: say in FLOORS where it belongs"
    return max(fitting, key=len)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(path: Path) -> list[tuple[str, bool, int]]:
    """Return ``(module, inside a function, line)`` for each import, also for type checkers only."""
    found: list[tuple[str, bool, int]] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, lazy, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.append((whole if whole in NAMES else base, lazy, node.lineno))
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or inside)

    visit(ast.parse(path.read_text()), False)
    return found


def own(module: str) -> bool:
    return module == "neurenix" or module.startswith("neurenix.")


@pytest.mark.parametrize("path", INSIDE, ids=module_name)
def test_imports_go_strictly_downwards(path: Path) -> None:
    module = module_name(path)
    house = house_of(module)
    for target, _, line in imports(path):
        if not own(target):
            continue
        assert target != "neurenix", f"{path}:{line}: import the module, not the list of names"
        other = house_of(target)
        assert other == house or FLOORS[other] < FLOORS[house], (
            f"{path}:{line}: {module} (floor {FLOORS[house]}) imports {target} "
            f"(floor {FLOORS[other]})"
        )


@pytest.mark.parametrize("path", INSIDE, ids=module_name)
def test_only_slow_or_optional_packages_are_imported_inside_functions(path: Path) -> None:
    module = module_name(path)
    eager = EAGER | next((e for house, e in EAGER_IN.items() if module.startswith(house)), set())
    for target, lazy, line in imports(path):
        root = target.partition(".")[0]
        where = f"{path}:{line}: {target}"
        if own(target):
            # The commands load what they run: `neurenix --version` must not wait for a compiler,
            # and a worker that estimates must not wait for JAX.
            may = module.startswith("neurenix.cli") or module == "neurenix.compiler.worker"
            assert not lazy or may, f"{where} is imported lazily"
        elif root in sys.stdlib_module_names:
            continue
        elif lazy:
            assert root in LAZY | EAGER | {"orbax", "libtpu"}, f"{where} is not in LAZY"
        else:
            assert root in eager, f"{where} is imported at the top, and is not in EAGER"


def private_names(path: Path) -> list[str]:
    """Return the uses of what JAX, jaxlib or Flax keep to themselves; of jaxlib that is all."""
    tree = ast.parse(path.read_text())
    theirs: set[str] = set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                root, *parts = f"{base}{alias.name}".split(".")
                if root not in PRIVATE_IN:
                    continue
                theirs.add(alias.asname or alias.name.partition(".")[0])
                if root == "jaxlib" or any(part.startswith("_") for part in parts):
                    found.append(f"{path}:{node.lineno}: {base}{alias.name}")
    theirs.add("nnx")  # which comes by way of _nnx
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Attribute):  # jax.a._b
            name, inside = node.attr, ast.unparse(node.value)
        elif isinstance(node, ast.Subscript):  # vars(nnx.A)["_b"]
            name, inside = getattr(node.slice, "value", None), ast.unparse(node.value)
            inside = inside.removeprefix("vars(").rstrip(")") if "vars(" in inside else "?"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getattr"):
            name, inside = getattr(node.args[1], "value", None), ast.unparse(node.args[0])
        if isinstance(name, str) and name.startswith("_") and not name.startswith("__"):
            if inside.partition(".")[0] in theirs:
                found.append(f"{path}:{node.lineno}: {inside}.{name}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_private_names_of_jax_and_flax_stand_in_few_modules(path: Path) -> None:
    """What the next version may rename is in one place for each, with the reason for it."""
    allowed = {package for package, owners in PRIVATE_IN.items() if module_name(path) in owners}
    found = private_names(path)
    if allowed:
        assert found, f"{path} has no private names: it is not needed"
    else:
        assert not found, found


def test_there_is_no_cycle_between_modules() -> None:
    graph = {
        module_name(path): {t for t, _, _ in imports(path) if t in NAMES and t != "neurenix"}
        for path in SOURCES
    }
    # A package imports its own files; a file that imports its own package would be a cycle.
    finished: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in finished:
            return
        for target in sorted(graph[module]):
            walk(target, (*trail, module))
        finished.add(module)

    for module in sorted(graph):
        walk(module, ())


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_no_file_is_long_and_each_says_what_it_owns(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 500, f"{path} is longer than 500 lines"
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


@pytest.mark.parametrize("name", sorted({*neurenix.__all__} - {*tensor.__all__}))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(neurenix, name) is not None
    assert name in dir(neurenix)


def test_every_function_on_arrays_is_the_one_that_tensor_has() -> None:
    assert {*tensor.__all__} <= {*neurenix.__all__}
    for name in tensor.__all__:
        assert getattr(neurenix, name) is getattr(tensor, name)


def test_no_name_has_two_owners() -> None:
    assert len(neurenix.__all__) == len({*neurenix.__all__})


def test_type_checkers_see_the_names_that_exist() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (block,) = [node for node in tree.body if is_type_checking(node)]
    assert isinstance(block, ast.If)
    seen: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname in (alias.name, None)
            if alias.name == "*":
                assert node.module == "neurenix.tensor"
                seen |= dict.fromkeys(tensor.__all__, "neurenix.tensor")
            else:
                seen[alias.name] = node.module or ""
    expected = neurenix._OWNER_OF | dict.fromkeys(tensor.__all__, "neurenix.tensor")
    for module in neurenix._MODULES:
        callable_too = module in ("device", "preflight", "tensor")
        expected[module] = f"neurenix.{module}" if callable_too else "neurenix"
    expected["preflight"] += ".namespace"  # the module as it is once it can be called
    expected["tensor"] += ".creation"
    assert seen == expected


def test_an_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'simulate'"):
        neurenix.simulat  # noqa: B018  the access is the test


def test_import_loads_nothing_heavy_and_starts_no_backend(run_python) -> None:
    heavy = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax", "sklearn", "rich", "typer")
    done = run_python(code=f"import sys, neurenix; print([m for m in {heavy} if m in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_every_module_starts_no_backend(run_python) -> None:
    names = sorted(name for name in NAMES if not name.endswith("__main__"))
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized(), 'a backend was started'\n"
        f"optional = {sorted(LAZY - {'rich', 'typer'})!r}\n"
        "print([m for m in optional if m in sys.modules])"
    )
    done = run_python(code=code)
    assert done.returncode == 0, done.stderr
    # flax and orbax import what they like; what we import ourselves is checked above.
    loaded = set(ast.literal_eval(done.stdout.strip()))
    assert not loaded & {"sklearn", "torch", "keras", "onnx"}, loaded


def test_the_repository_names_no_package_index() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    # Spelt in two parts, so that this file does not name what it forbids.
    hosts = re.compile(
        "files.python"
        "hosted|pypi"
        r"\.org|--(extra-)?index"
        r"-url|://[^ ]*/simple\b|--find"
        "-links"
    )
    naming = []
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        if path.is_file() and path.suffix not in (".png", ".npz"):
            text = path.read_text(errors="replace")
            naming += [f"{name}: {found.group()}" for found in hosts.finditer(text)]
    assert not naming, naming
