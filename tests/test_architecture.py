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
    "neurenix._processes": 17,
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
    "neurenix.data": 29,
    "neurenix.compiler": 30,
    "neurenix.transforms": 35,
    "neurenix.train": 40,
    "neurenix.callbacks": 45,
    "neurenix.nn": 50,
    "neurenix.models": 55,
    "neurenix.interop": 57,
    "neurenix.preflight": 60,
    "neurenix.cli": 70,
}

# Imported inside the function that needs them: an extra, or slow to load and seldom needed.
LAZY = {"grain", "keras", "onnx", "rich", "sklearn", "tensorboardX", "torch", "typer"}
# At the top of a module, these and the standard library only.
EAGER = {"flax", "jax", "jaxlib", "numpy", "optax", "safetensors"}
# Loaded first where a process begins: the command line reads its own arguments.
EAGER_IN = {"neurenix.cli": {"typer"}}

# Who alone may use names of these packages that are private or may change.
PRIVATE_IN = {
    "jax": {"neurenix._jax", "neurenix._jaxlib"},
    "jaxlib": {"neurenix._jax", "neurenix._jaxlib"},
    "libtpu": {"neurenix._jaxlib"},
    "flax": {"neurenix._nnx"},
}
OWNERS = set().union(*PRIVATE_IN.values())
# All of these may change without notice, whatever the names inside are.
UNSTABLE = ("jaxlib", "libtpu", "jax.experimental", "jax.extend", "jax.interpreters")
# Names with an underscore that the standard library documents.
DOCUMENTED = {"_exit", "_getframe", "_current_frames", "_fields", "_asdict", "_replace"}

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
            assert root in LAZY | EAGER | {"orbax"}, f"{where} is not in LAZY"
        else:
            assert root in eager, f"{where} is imported at the top, and is not in EAGER"


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def is_unstable(name: str) -> bool:
    """Return whether ``jax.a.b`` may change without notice, or a part of it is private."""
    root, *parts = name.split(".")
    within = any(name == base or name.startswith(base + ".") for base in UNSTABLE)
    return root in PRIVATE_IN and (within or any(map(is_private, parts)))


def dotted(node: ast.expr) -> str:
    """Return ``"jax.a.b"`` of such an expression, nothing of another."""
    if isinstance(node, ast.Name):
        return node.id
    inside = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inside}.{node.attr}" if inside and isinstance(node, ast.Attribute) else ""


def names_defined(tree: ast.AST) -> set[str]:
    """Return what a file defines: functions, classes, arguments, variables, attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "__setattr__":
            found.add(getattr(node.args[1], "value", ""))
    return found


OWN_NAMES = set().union(*(names_defined(ast.parse(path.read_text())) for path in SOURCES))
OWN_NAMES |= {part for name in NAMES for part in name.split(".")}


def private_names(tree: ast.AST) -> list[str]:
    """Return where a file uses what other packages keep to themselves, or may change."""
    found = []
    for node in ast.walk(tree):
        names: list[object] = []  # that are private where no file of ours defines them
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any(is_unstable(f"{base}{alias.name}") for alias in node.names):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Attribute):  # jax.a._b
            names = [node.attr]
            if is_unstable(dotted(node)):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
            if node.attr == "__class__" and isinstance(node.ctx, ast.Store):
                found.append(f"{node.lineno}: {ast.unparse(node)} = …")
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            names = [getattr(node.slice, "value", None)]
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", "")).strip("_")
            names = [keyword.arg for keyword in node.keywords]
            if function.endswith(("getattr", "getattribute", "setattr", "delattr")):
                name = getattr(node.args[1], "value", None) if node.args[1:] else None
                names.append(name)
                if name in ("__class__", "_jit_info"):  # which CompiledFunction has as well
                    found.append(f"{node.lineno}: {ast.unparse(node)}")
        known = OWN_NAMES | DOCUMENTED
        if any(is_private(name) and name not in known for name in names):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_private_and_unstable_names_stand_in_three_modules(path: Path) -> None:
    """What the next version may rename is in one place for each, with the reason for it."""
    if module_name(path) not in OWNERS | {"neurenix._core.callable_module"}:
        found = private_names(ast.parse(path.read_text()))
        assert not found, [f"{path}:{line}" for line in found]


@pytest.mark.parametrize("module", sorted(OWNERS))
def test_unstable_names_are_looked_up_and_not_imported(module: str) -> None:
    """An import would stop the import of Neurenix where the next version has no such name."""
    path = ROOT / f"{module.removeprefix('neurenix.')}.py"
    text = path.read_text()
    imported = [
        found for found in private_names(ast.parse(text)) if re.match(r"\d+: (from|import)", found)
    ]
    assert not imported
    assert "find(" in text or "need(" in text, f"{path} looks nothing up: it is not needed"


@pytest.mark.parametrize(
    "code",
    [
        "from jax._src import core",
        "from jax.experimental import pallas",
        "import jax.extend.backend",
        "from jaxlib.mlir import ir",
        "import libtpu",
        "import jax\njax._src.core.trace_ctx",
        "jax.experimental.multihost_utils.process_allgather(1)",
        "getattr(getattr(f, 'jitted_fn', f), '_jit_info', None)",
        "getattr(concurrent.futures.thread, '_threads_queues', ())",
        "object.__setattr__(variable, '__class__', Frozen)",
        "variable.__class__ = Frozen",
        "vars(nnx.Variable)['_raw_value']",
        "jitted._fun",
        "traced.lower(_private_parameters=1)",
    ],
)
def test_the_check_of_private_names_sees_them(code: str) -> None:
    assert private_names(ast.parse(code))


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
    heavy += ("torch", "transformers")
    done = run_python(code=f"import sys, neurenix; print([m for m in {heavy} if m in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_every_module_starts_no_backend(run_python) -> None:
    names = sorted(name for name in NAMES if not name.endswith("__main__"))
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "from neurenix._jax import backends_are_started\n"
        "assert not backends_are_started(), 'a backend was started'\n"
        "assert not [m for m in sys.modules if m.startswith('jax.experimental.pallas')]\n"
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
