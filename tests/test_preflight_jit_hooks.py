"""Scripts in plain JAX and Flax, whose step is named; each as its author wrote it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix import chips
from neurenix._core.errors import ArgumentError, CompilationError, NeurenixError
from neurenix.preflight.describe_program import describe
from neurenix.preflight.script.jit_hooks import compiled_in
from neurenix.preflight.script.run_script import first_step, preflight_script

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

BEGIN = """
import functools
import jax
import jax.numpy as jnp
import neurenix as nx
from flax import nnx
W, X = jnp.ones((4, 4)), jnp.ones((2, 4))
def update(w, x, scale=1.0):
    return w + scale * (x @ w).sum()
"""
TAKEN = "\nopen('taken', 'w').close()"
WAYS = {
    "decorated": ("train_step", "@jax.jit\ndef train_step(w, x): return update(w, x)\n"),
    "donating": (
        "train_step",
        "@functools.partial(jax.jit, donate_argnums=0)\ndef train_step(w, x): return w\n",
    ),
    "with options": (
        "train_step",
        "@jax.jit(donate_argnums=0)\ndef train_step(w, x): return w\n",
    ),
    "by name": ("update", "train_step = nnx.jit(fun=update)\n"),
    "a partial": ("update", "train_step = jax.jit(functools.partial(update, scale=2.0))\n"),
    "a lambda": ("<lambda>", "train_step = jax.jit(lambda w, x: w)\n"),
    "imported": ("update", "from jax import jit\ntrain_step = jit(update)\n"),
    "of nnx": ("train_step", "@nnx.jit\ndef train_step(w, x): return w\n"),
    "of nx": ("train_step", "@nx.jit\ndef train_step(w, x): return w\n"),
    "of a class": (
        "Run.step",
        "class Run:\n"
        "    @functools.partial(jax.jit, static_argnums=0)\n"
        "    def step(self, w, x): return w\n"
        "train_step = functools.partial(Run.step, Run())\n",
    ),
    "an object": (
        "Step",
        "class Step:\n    def __call__(self, w, x): return w\ntrain_step = jax.jit(Step())\n",
    ),
    "an object of nnx": (
        "Step",
        "class Step:\n    def __call__(self, w, x): return w\ntrain_step = nnx.jit(Step())\n",
    ),
    "in a function": (
        "step",
        "def make():\n    @jax.jit\n    def step(w, x): return w\n    return step\n"
        "train_step = make()\n",
    ),
    "after others": (
        "train_step",
        "@jax.jit\ndef init(x): return x\n@nx.jit\ndef evaluate(x): return x.sum()\n"
        "init(X), evaluate(X)\n@jax.jit\ndef train_step(w, x): return w\n",
    ),
    "after a fit": (
        "update",
        "model = nx.nn.Sequential(nx.nn.Linear(4, 4)).compile('sgd', 'mse')\n"
        "model.fit(X, X, batch_size=2, verbose=0)\ntrain_step = jax.jit(update)\n",
    ),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield ``write(code)``, the path of a script of that code, in the folder it runs in."""
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> Path:
        (tmp_path / "train.py").write_text(BEGIN + code)
        return tmp_path / "train.py"

    environment = dict(os.environ)
    yield write
    os.environ.clear()  # a script may change it
    os.environ.update(environment)


@pytest.mark.parametrize(("name", "code"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("call", ["train_step(W, X)", "train_step(W, x=X)", "lower"])
def test_the_first_call_of_the_named_function_is_the_step(
    script: Any, name: str, code: str, call: str
) -> None:
    if call == "lower":
        call = "getattr(train_step, 'lower', train_step)(W, X)"
    target, args, *_ = first_step(script(code + call + TAKEN), step=name)
    assert not Path("taken").exists()
    arrays = [leaf.shape for leaf in jax.tree.leaves((args, getattr(target, "keywords", {})))
              if hasattr(leaf, "shape")]  # fmt: skip
    assert arrays == [(4, 4), (2, 4)]
    assert (jax.jit, jax.pmap, nnx.jit) == BEFORE


BEFORE = jax.jit, jax.pmap, nnx.jit


FITS = """
model = nx.nn.Sequential(nx.nn.Linear(4, 4)).compile("adam", "mse")
normalise = nx.jit(lambda x: x / 2)
model.fit(normalise(X), X, batch_size=2, verbose=0)
open("taken", "w").close()
"""


@pytest.mark.parametrize("step", ["fit", "Trainer.fit", "training step"])
def test_the_step_of_fit_is_named_too_where_other_functions_come_first(
    script: Any, step: str
) -> None:
    target, args, *_ = first_step(script(FITS), step=step)
    assert not Path("taken").exists()
    assert isinstance(target, nx.Trainer) and [leaf.shape for leaf in args] == [(2, 4)] * 2


def test_what_libraries_compile_for_themselves_is_not_listed(script: Any) -> None:
    said = "It compiled <lambda>. It called fit, whose step is named by --step fit.$"
    with pytest.raises(ArgumentError, match=said):
        first_step(script(FITS), step="step")


def test_a_function_of_pmap_is_found_and_refused(script: Any) -> None:
    code = "step = jax.pmap(update)\nstep(jnp.stack([W] * 8), jnp.stack([X] * 8))"
    with pytest.raises(
        ArgumentError, match=r"update is compiled by jax\.pmap, which .*shard_map\("
    ):
        preflight_script(script(code + TAKEN), on=["v5e-8"], step="update")
    assert not Path("taken").exists()


def test_it_is_compiled_as_it_is(script: Any) -> None:
    code = "@functools.partial(jax.jit, static_argnames='scale')\ndef step(w, x, scale): return w\n"
    target, args, *_ = first_step(script(code + "step(W, X, scale=3.0)"), step="step")
    assert target.keywords == {"scale": 3.0}
    np.testing.assert_array_equal(target(*args), np.ones((4, 4)))


def test_what_it_is_asked_for_stays_what_jax_made(script: Any) -> None:
    code = """
@jax.jit
def step(w, x):
    "Words."
    return update(w, x)
assert step.__name__ == "step" and step.__doc__ == "Words."
assert jax.eval_shape(step, W, X).shape == (4, 4)
assert step.eval_shape(W, X).shape == (4, 4)
assert jax.grad(lambda w: step(w, X).sum())(W).shape == (4, 4)
assert jax.vmap(step, in_axes=(None, 0))(W, X).shape == (2, 4, 4)
step(W, X)
"""
    assert len(first_step(script(code), step="step")[1]) == 2


def test_it_can_be_copied_exported_and_asked_for_its_type(script: Any) -> None:
    code = """
import copy
import jax.export
step, of_nnx = jax.jit(update), nnx.jit(update)
assert isinstance(step, type(jax.jit(len))) and isinstance(of_nnx, type(nnx.jit(len)))
assert isinstance(step, jax.stages.Wrapped) and "jits" not in repr(step)
assert jax.export.export(step)(W, X).out_avals[0].shape == (4, 4)
for made in (copy.copy(step), copy.deepcopy(step)):
    assert jax.eval_shape(made, W, X).shape == (4, 4)
copy.deepcopy({"step": step})["step"](W, X)
"""
    assert len(first_step(script(code), step="update")[1]) == 2


@pytest.mark.parametrize("where", ["with jax.set_mesh(mesh)", "jax.set_mesh(mesh)\nif 1"])
def test_a_step_of_a_mesh_in_context_is_described_outside_of_it(script: Any, where: str) -> None:
    code = f"""
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
@functools.partial(jax.jit, donate_argnums=0)
def step(w, x): return w + jax.lax.with_sharding_constraint(x.T @ x, P("data"))
{where}:
    step(jnp.ones((8, 8)), jnp.ones((8, 8)))
"""
    before = jax.sharding.get_mesh()
    try:
        target, args, *_ = first_step(script(code), step="step")
        program = describe(target, args, chips.resolve("v5e-8"))
    finally:
        jax.set_mesh(before)
    assert len(program.leaves) == 2 and program.donated == (0,)


def test_arrays_are_laid_as_in_shardings_says(script: Any) -> None:
    code = """
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("data", "model"))
over = lambda *axes: NamedSharding(mesh, P(*axes))
def step(state, kind, batch, scale): return {"w": state["w"] + batch["x"].sum(), "no": None}
step = jax.jit(
    step,
    in_shardings=[{"w": over(None, "model"), "no": None}, {"x": over("data"), "n": None}, None],
    donate_argnums=0,
    static_argnums=1,
)
step({"w": np.ones((8, 8)), "no": None}, "text", {"x": W, "n": 3.0}, 1.0)
"""
    target, args, *_ = first_step(script(code), step="step")
    program = describe(target, args, chips.resolve("v5e-8"))
    assert program.axes == {"data": 4, "model": 2} and program.donated == (0,)
    assert [leaf.device_shape for leaf in program.leaves] == [(8, 4), (1, 4)]


@pytest.mark.parametrize(
    ("code", "step", "said"),
    [
        ("jax.jit(update)(W, X)", "updat", "named 'updat'. Did you mean 'update'? It compiled upd"),
        ("nx.jit(update)(W, X)", "step", "named 'step'. It compiled update."),
        ("update(W, X)", "update", "named 'update'. It compiled none."),
        ("jax.jit(update)", "date", "named 'date'."),
        (
            "step = jax.jit(update)\njax.jit(lambda w: jax.lax.fori_loop(0, 2, lambda i, w: step(w,"
            " X), w))(W)",
            "update",
            "it compiled update, and called it inside of other functions at most",
        ),
        ("jax.jit(update)", "update", "it compiled update, and called it inside of other"),
        (
            "@jax.jit\ndef init(x): return x\n@nnx.jit\ndef train_step(x): return x",
            None,
            "What jax.jit and nnx.jit compile may be anything: name the step, such as --step "
            "train_step (the script has init, train_step), or call nx.preflight(",
        ),
        ("step = jax.jit(lambda x: x)", None, "--step '<lambda>', or call"),
        ("print('jax.jit(step)')  # jax.jit(step)", None, "For plain JAX call nx.preflight("),
    ],
)
def test_a_script_without_the_step_is_told_of_those_it_has(
    script: Any, code: str, step: str | None, said: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        first_step(script(code), step=step)
    assert (jax.jit, jax.pmap, nnx.jit) == BEFORE


@pytest.mark.parametrize("step", ["", " ", ".", "Run."])
def test_no_name_is_refused_before_the_script_runs(script: Any, step: str) -> None:
    with pytest.raises(ArgumentError, match="names no function that could be the step"):
        first_step(script(TAKEN), step=step)
    assert not Path("taken").exists()


def test_a_script_that_takes_long_is_told_too(script: Any) -> None:
    code = "import time\nstep = jax.jit(update)\nfor _ in range(6000): time.sleep(0.01)"
    with pytest.raises(CompilationError, match=r"within 1 s\. .* such as --step update, or call"):
        first_step(script(code), timeout_seconds=1)


def test_functions_are_found_in_the_text_of_a_script() -> None:
    text = """
@jit
def a(): ...
@eqx.filter_jit
async def b(): ...
class C:
    @partial(jax.jit, static_argnums=0)
    def c(self): ...
    def run(self): self.d = jax.jit(self._d, donate_argnums=0)
e = jax.jit(functools.partial(module.e, 3))
f = jax.jit(make(1))
@nx.jit
def g(): ...
h = neurenix.jit(h)
@cache
def i(): ...
@numba.jit
def k(): ...
l = torch.jit.script(nn.jit(L))
"""
    found = [("a", "jit"), ("b", "eqx.filter_jit"), ("e", "jax.jit"), ("c", "jax.jit")]
    assert sorted(compiled_in(text)) == sorted([*found, ("_d", "jax.jit")])
    assert compiled_in("def :") == compiled_in("a\0") == compiled_in("1" + "+1" * 20000) == []


LAID = """
import os
count = jax.device_count()
open(f"ran-on-{count}", "x").close()
row = jax.NamedSharding(jax.make_mesh((count // 2, 2), ("row", "column")), jax.P("row", "column"))
X = jax.device_put(jnp.ones((2 * count, 4)), row)
step = jax.jit(update)
os.environ["PYTHONPATH"] = "gone"
os.chdir("/")
"""


def test_a_mesh_of_the_scripts_own_is_made_by_a_run_with_as_many_devices(script: Any) -> None:
    names = ["v5e-8", "v5e-16", "v6e-16", "v5e-4"]
    folder = Path.cwd()
    try:
        reports = preflight_script(script(f"{LAID}step(W, X)"), on=names, step="update")
    finally:
        os.chdir(folder)
    assert [report.slice.name for report in reports] == names
    meshes = [report.to_dict()["mesh"] for report in reports]
    assert meshes == [{"row": count // 2, "column": 2} for count in (8, 16, 16, 4)]
    found = [leaf.shape for report in reports for leaf in report.analysis.program.leaves[1:]]
    assert found == [(16, 4), (32, 4), (32, 4), (8, 4)]
    assert sorted(path.name for path in folder.glob("ran-on-*")) == [
        "ran-on-16",  # one run for both slices
        "ran-on-4",
        "ran-on-8",
    ]


def test_a_mesh_that_a_script_has_set_is_made_so_too(script: Any) -> None:
    code = """
jax.set_mesh(jax.make_mesh((jax.device_count() // 2, 2), ("row", "column")))
step = jax.jit(lambda w, x: jax.sharding.reshard(x, jax.P("row", "column")) @ w)
step(W, jnp.ones((2 * jax.device_count(), 4)))
"""
    before = jax.sharding.get_mesh()
    try:
        reports = preflight_script(script(code), on=["v5e-8", "v5e-4"], step="<lambda>")
    finally:
        jax.set_mesh(before)
    meshes = [report.to_dict()["mesh"] for report in reports]
    assert meshes == [{"row": 4, "column": 2}, {"row": 2, "column": 2}]


def test_an_axis_of_the_usual_name_changes_nothing(script: Any) -> None:
    code = LAID.replace("os.chdir", "str").replace('"row", "column"', '"data", "model"')
    reports = preflight_script(script(f"{code}step(W, X)"), on=["v5e-8", "v5e-4"], step="update")
    assert [r.to_dict()["mesh"] for r in reports] == [{"data": n, "model": 2} for n in (4, 2)]
    assert [r.analysis.program.leaves[1].shape for r in reports] == [(16, 4), (8, 4)]


def test_in_shardings_over_such_an_axis_do_not_either(script: Any) -> None:
    path = script("""
count = jax.device_count()
row = jax.NamedSharding(jax.make_mesh((count,), ("data",)), jax.P("data"))
step = jax.jit(update, in_shardings=(None, row))
step(W, jnp.ones((2 * count, 4)))
""")
    reports = preflight_script(path, on=["v5e-8", "v5e-4"], step="update")
    assert [r.analysis.program.leaves[1].shape for r in reports] == [(16, 4), (8, 4)]


def test_what_a_run_with_other_devices_has_started_ends_with_it(script: Any) -> None:
    started = "import subprocess; other = subprocess.Popen(['sleep', '600'])"
    told = "open('started', 'w').write(str(other.pid)); os.kill(os.getpid(), 9)"
    code = f"import os\n{LAID.replace('os.chdir', 'str')}if count == 16: {started}; {told}"
    with pytest.raises(NeurenixError, match="exit code -9"):
        preflight_script(script(f"{code}\nstep(W, X)"), on=["v5e-8", "v5e-16"], step="update")
    other = int(Path("started").read_text())
    _wait_for(lambda: not _is_running(other))


def test_of_a_killed_process_no_second_run_is_left(script: Any, tmp_path: Path) -> None:
    told = "open('started', 'w').write(f'{os.getpid()} {other.pid}'); other.wait()"
    started = f"import subprocess; other = subprocess.Popen(['sleep', '600']); {told}"
    code = f"import os\n{LAID.replace('os.chdir', 'str')}if count == 16: {started}\nstep(W, X)"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "neurenix", "preflight", "--on", "v5e-8,v5e-16"]
    with subprocess.Popen(
        [*command, "--step", "update", script(code)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(lambda: Path("started").exists() and " " in Path("started").read_text())
        finally:
            process.kill()
    numbers = [int(number) for number in Path("started").read_text().split()]
    _wait_for(lambda: not any(map(_is_running, numbers)))
    _wait_for(lambda: not list(scratch.glob("neurenix-rerun-*")))


def _wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(FileNotFoundError):  # it ended just now
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    return False


def test_of_a_process_killed_while_a_second_run_starts_none_is_left(
    script: Any, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = LAID.replace("os.chdir", "str") + "step(W, X)"
    command = [sys.executable, "-m", "neurenix", "preflight", "--on", "v5e-8,v5e-16"]
    with subprocess.Popen(
        [*command, "--step", "update", script(code)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        found: list[int] = []
        try:
            _wait_for(lambda: found.extend(_second_runs_of(process.pid)) or bool(found))
            os.kill(found[0], signal.SIGSTOP)  # Python itself has only begun
        finally:
            process.kill()
    os.kill(found[0], signal.SIGCONT)
    _wait_for(lambda: not _is_running(found[0]))
    _wait_for(lambda: not list(scratch.glob("neurenix-rerun-*")))


def _second_runs_of(number: int) -> Iterator[int]:
    for children in Path(f"/proc/{number}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if "script_subprocess" in Path(f"/proc/{child}/cmdline").read_text():
                    yield int(child)


@pytest.mark.parametrize(
    ("at_16", "said", "noted"),
    [
        ("raise KeyError('odd')", "failed before any training step: KeyError", "with 16 devices"),
        ("import signal; os.kill(os.getpid(), 9)", r"with 16 devices for v5e-16, .*code -9", ""),
    ],
)
def test_a_run_with_other_devices_that_fails_is_told(
    script: Any, at_16: str, said: str, noted: str
) -> None:
    code = f"import os\n{LAID.replace('os.chdir', 'str')}if count == 16: {at_16}\nstep(W, X)"
    with pytest.raises(NeurenixError, match=said) as raised:
        preflight_script(script(code), on=["v5e-8", "v5e-16"], step="update")
    assert noted in "".join(raised.value.__notes__)


PLAIN = """
import functools
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen
from flax.training.train_state import TrainState

class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(8)(linen.relu(linen.Dense(256)(x)))

net = Net()
init = jax.jit(net.init)
params = init(jax.random.key(0), jnp.ones((1, 64)))["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(1e-3))

@functools.partial(jax.jit, donate_argnums=0, static_argnames="smooth")
def train_step(state, batch, smooth):
    def loss(params):
        logits = state.apply_fn({"params": params}, batch["x"])
        labels = optax.smooth_labels(jax.nn.one_hot(batch["y"], 8), smooth)
        return optax.softmax_cross_entropy(logits, labels).mean()
    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value

batch = {"x": np.ones((64, 64), "float32"), "y": np.zeros(64, "int32")}
for _ in range(3):
    state, loss = train_step(state, batch, smooth=0.1)
print("trained")
"""


@pytest.mark.tpu_compile
def test_a_script_of_linen_unchanged(commands: Any, tmp_path: Path) -> None:
    named, first, unnamed = commands(
        "preflight",
        [
            (PLAIN, ("train.py", "--on", "v5e-1", "--step", "train_step", "--json", "r.json")),
            (PLAIN, ("train.py", "--on", "v5e-1", "--step", "Module.init")),
            (PLAIN, ("train.py", "--on", "v5e-1")),
        ],
    )
    assert named.status == "0", named
    assert "Preflight of train_step on v5e-1" in named.stdout and "trained" not in named.stdout
    (report,) = json.loads((tmp_path / "r.json").read_text())
    assert report["model_flops"] >= 2 * 3 * 64 * (64 * 256 + 256 * 8) - 2 * 64 * 64 * 256
    parameters = 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert parameters <= report["hbm_per_device"]["roles"]["parameters"] < 1.5 * parameters
    assert "does not mention" not in named.stderr
    assert first.status == "0" and "Preflight of init on v5e-1" in first.stdout, first
    assert unnamed.status == "2" and "trained" in unnamed.stdout
    hint, end = (
        unnamed.stderr.index("does not mention Neurenix"),
        unnamed.stderr.index("ended with"),
    )
    assert hint < end and "--step train_step" in unnamed.stderr[hint:end]


@pytest.mark.tpu_compile
def test_the_other_commands_take_the_step_too(command: Any, tmp_path: Path) -> None:
    planned = command("plan", "--on", "v5e-1", "--step", "train_step", "train.py", script=PLAIN)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert (
        "neurenix preflight --on v5e-1 --mesh data=1 --step train_step train.py" in planned.stdout
    )
    kept = command(
        "compile", "--on", "v5e-1", "-o", "s.nxc", "--step", "train_step", "train.py", script=PLAIN
    )
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert (tmp_path / "s.nxc").exists() and "train_step compiled for v5e-1" in kept.stdout


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("at_16", "said"),
    [
        (
            "raise OSError('too many')",
            "train.py failed before any training step: OSError: too many",
        ),
        ("os.kill(os.getpid(), 9)", "16 devices for v5e-16, ended the process (exit code -9)"),
    ],
)
def test_a_plan_asks_a_run_with_as_many_devices(
    command: Any, tmp_path: Path, at_16: str, said: str
) -> None:
    script = f"{BEGIN}{LAID}if count == 16: {at_16}\nstep(W, X)"
    slices = "v5e-4,v5e-8,v5e-16,v6e-16"
    done = command("plan", "--on", slices, "--step", "update", "train.py", script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "row=2, column=2" in done.stdout and "row=4, column=2" in done.stdout
    assert {path.name for path in tmp_path.glob("ran-on-*")} == {f"ran-on-{n}" for n in (4, 8, 16)}
    lost = done.stdout[done.stdout.index("3. v5e-16") :]
    assert lost.count(said) == 2  # of one run
