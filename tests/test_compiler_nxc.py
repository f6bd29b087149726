"""Compiled programs as files: written, read, refused, and run on CPUs.

No TPU is here. For TPUs everything up to PJRT's own loading is tested, with the real compiler.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import random
import subprocess
import textwrap
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import neurenix as nx
from neurenix import chips, nn
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArtefactError,
    DeviceNotFoundError,
    OutOfMemoryError,
    ShapeError,
    UnknownNameError,
)
from neurenix.compiler import cpu_features, pytree_json
from neurenix.compiler.abstract_placement import abstract_mesh
from neurenix.compiler.call_signature import fixed_text
from neurenix.compiler.compile import Compiled
from neurenix.compiler.device_grid import device_grid
from neurenix.compiler.load_compiled import _checked, arrange, check_slice
from neurenix.compiler.nxc_format import Artefact, check_versions, read, write
from neurenix.compiler.program import Program, TraceOptions, trace
from neurenix.compiler.target import Target
from neurenix.compiler.workers import kept_workers
from neurenix.hardware.tpu_topology import topology_of_devices
from neurenix.preflight import CompileOptions, PreflightOptions

pytestmark = [pytest.mark.tpu_compile, pytest.mark.newest]


class Logs(NamedTuple):
    loss: jax.Array
    count: jax.Array


def step(unused, state, x):
    """Two weights, a batch, and something that nobody looks at."""
    gradient = x.T @ (x @ state["w"])
    return {"w": state["w"] - 0.01 * gradient, "n": state["n"] + 1}, Logs(jnp.sum(x), state["n"])


class Net(nn.Module):
    """With a random stream, which crosses as numbers."""

    def __init__(self, width: int = 8) -> None:
        self.a, self.noise, self.b = nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, 1)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.b(self.noise(jax.nn.relu(self.a(x))))


ARGUMENTS = (
    nx.spec((3,)),
    {"w": nx.spec((4, 2)), "n": nx.spec((), "int32")},
    nx.spec((16, 4), partition=("data",)),
)


def options(folder: Path, donate: tuple[int, ...] = (1,)) -> PreflightOptions:
    compiler = CompileOptions(cache_directory=folder / "cache")
    return PreflightOptions(donate_argnums=donate, compiler=compiler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artefacts")


@pytest.fixture(scope="module")
def for_tpu(folder: Path) -> Artefact:
    path = folder / "tpu.nxc"
    return nx.compile_for(step, *ARGUMENTS, on="v5e-8", path=path, options=options(folder))


@pytest.fixture(scope="module")
def for_cpu(folder: Path) -> Artefact:
    path = folder / "cpu.nxc"
    return nx.compile_for(step, *ARGUMENTS, on="cpu", path=path, options=options(folder))


def values() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    draw = np.random.default_rng(0)
    state = {"w": draw.normal(size=(4, 2)).astype(np.float32), "n": np.int32(7)}
    return np.zeros(3, np.float32), state, draw.normal(size=(16, 4)).astype(np.float32)


def repacked(artefact: Artefact, path: Path, members=None, **manifest) -> Path:
    """Write the artefact anew with other content and hashes that are right for it."""
    described = dict(artefact.manifest) | manifest
    held = {"executable.bin": artefact.executable, "program.bin": artefact.program}
    held |= members or {}
    if "members" not in manifest:
        described["members"] = {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in held.items()
        }
    text = json.dumps(described).encode()
    pack_signed(path, text, held)
    return path


def pack_signed(path: Path, text: bytes, members: dict[str, bytes]) -> None:
    comment = b"neurenix-artefact manifest-sha256=" + hashlib.sha256(text).hexdigest().encode()
    pack(path, {"manifest.json": text, **members}, comment)


def pack(path: Path, members: dict[str, bytes], comment: bytes, packed: int = 0) -> None:
    with zipfile.ZipFile(path, "w", packed) as file:
        for name, content in members.items():
            file.writestr(name, content)
        file.comment = comment


# Running.


def test_a_program_runs_from_its_file_and_nothing_is_compiled(for_cpu: Artefact) -> None:
    unused, state, x = values()
    placed = jax.device_put(state, jax.devices("cpu")[0])
    expected, logs = step(unused, state, x)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: compiled.append(event)
    )
    program = nx.load_compiled(for_cpu.path)
    after, said = program(unused, placed, x)
    assert not [event for event in compiled if "backend_compile" in event]
    np.testing.assert_allclose(after["w"], expected["w"], rtol=1e-5)
    assert (int(after["n"]), after["n"].dtype) == (8, jnp.int32)
    np.testing.assert_allclose(said["loss"], logs.loss, rtol=1e-5)  # a named tuple is a dictionary
    assert int(said["count"]) == 7
    assert placed["w"].is_deleted()  # donated


def test_the_listener_of_the_test_before_sees_compilations() -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: compiled.append(event)
    )
    jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(7)).block_until_ready()
    assert [event for event in compiled if "backend_compile" in event]


def test_results_go_back_in(for_cpu: Artefact) -> None:
    unused, state, x = values()
    program = nx.load_compiled(for_cpu.path)
    expected, given = state, jax.tree.map(jnp.asarray, state)
    for _ in range(3):
        expected, _ = step(unused, expected, x)
        given, _ = program(unused, given, x)
    np.testing.assert_allclose(given["w"], expected["w"], rtol=1e-4)
    assert int(given["n"]) == 10


EIGHT = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    import neurenix as nx
    from neurenix.compiler.compile import CompileOptions
    from neurenix.preflight import PreflightOptions

    def step(w, x):
        y = jnp.tanh(x @ w)
        return {"y": y, "mean": y.mean(0), "rolled": jnp.roll(x, 3, 0)}

    if sys.argv[1] == "write":
        w = nx.spec((8, 4), partition=(None, "tensor"))
        x = nx.spec((16, 8), partition=("data",))
        nx.compile_for(step, w, x, on="cpu-8", path="step.nxc", mesh={"data": 4, "tensor": 2})
    else:
        assert len(jax.devices()) == 8
        program = nx.load_compiled("step.nxc")
        draw = np.random.default_rng(0)
        w, x = draw.normal(size=(8, 4)), draw.normal(size=(16, 8))
        w, x = w.astype(np.float32), x.astype(np.float32)
        out = program(w, x)
        for name, expected in step(w, x).items():
            np.testing.assert_allclose(out[name], expected, rtol=1e-5, atol=1e-6)
        assert tuple(program.shardings["0"].spec) == (None, "tensor")
        print(len(out["y"].sharding.device_set), out["y"].sharding.shard_shape(out["y"].shape))
"""


def test_a_divided_program_runs_on_eight_devices(run_python) -> None:
    code = textwrap.dedent(EIGHT)
    written = run_python("write", code=code)
    assert written.returncode == 0, written.stderr
    env = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    done = run_python("run", code=code, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 (4, 2)")
    few = run_python(
        "run", code=code.replace("== 8", "== 2"), env=env | {"JAX_NUM_CPU_DEVICES": "2"}
    )
    assert "is a program for 8 CPU devices, and this process has 2" in few.stderr
    assert "JAX_NUM_CPU_DEVICES=8" in few.stderr


OTHER_ORDER = """
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from neurenix.compiler import cpu_features
    from neurenix.compiler.nxc_format import write
    from neurenix.compiler.compile import Compiled, CompileOptions
    from neurenix.compiler.load_compiled import load_compiled
    from neurenix.compiler.program import spec, trace, TraceOptions
    from neurenix.compiler.target import CpuHost, Target

    def f(x):
        return x.sum(0), jax.numpy.roll(x, 3, 0)

    order = [0, 3, 1, 2, 7, 5, 6, 4]
    mesh = Mesh(np.array([jax.devices()[i] for i in order]), ("data",))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    compiled = jax.jit(f, in_shardings=rows, out_shardings=(whole, rows)).lower(x).compile()
    program = trace(f, (spec((16, 4), partition=("data",)),), axes={"data": 8},
                    options=TraceOptions(platform="cpu"))
    def entry(shape, *partition):
        return {"shape": shape, "dtype": "float32", "partition": partition, "memory_kind": "device"}
    placement = {
        "device_ids": order, "coordinates": [[]] * 8, "machine": cpu_features.cpu(),
        "arguments": [{"partition": ["data"], "memory_kind": "device"}],
        "outputs": [entry([4]), entry([16, 4], "data")],
    }
    answer = Compiled(Target.of(CpuHost(8)), {}, "", "cpu", {}, False, (),
                      compiled.runtime_executable().serialize(), placement)
    write("permuted.nxc", program, answer, CompileOptions())
    total, rolled = load_compiled("permuted.nxc")(x)
    assert np.array_equal(total, x.sum(0)) and np.array_equal(rolled, np.roll(x, 3, 0))
    print([device.id for device in rolled.sharding.mesh.devices.flat])
"""


def test_devices_in_the_order_of_the_mesh(run_python) -> None:
    env = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    done = run_python(code=textwrap.dedent(OTHER_ORDER), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 3, 1, 2, 7, 5, 6, 4]"


def test_the_training_step_of_a_model_trains_as_fit_does(folder: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 4)).astype(np.float32), np.ones((8, 1), np.float32)

    def made() -> Any:
        nx.seed(0)
        return Net().compile("adam", "mse")

    path = folder / "model.nxc"
    nx.compile_for(made(), on="cpu", path=path, input_shape=(8, 4))
    trained, expected = made(), made()
    expected.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    program, state = nx.load_compiled(path), trained.trainer.step_state()
    for number in range(3):
        state, logs = program(state, {"x": x, "y": y})
        assert np.isfinite(logs).all() and int(state["step"]) == number + 1
    trained.trainer.take_step_state(state)
    assert trained.trainer.steps_made == 3
    for model in (trained, expected):  # its random stream goes on too
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for mine, other in zip(
        *(jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (trained, expected)), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)
    state = expected.trainer.step_state()._asdict()
    with pytest.raises(ArgumentTypeError, match="'step' is missing; 'stp' is not known. Did you"):
        expected.trainer.take_step_state({"stp": state.pop("step"), **state})
    for wrong in ("a", 3, None):
        with pytest.raises(ArgumentTypeError, match="step of the state is no array|is missing"):
            expected.trainer.take_step_state(state | {"step": wrong})
    given = trained.trainer.step_state()
    jax.tree.leaves(given)[0].delete()  # as a step does that runs on the same devices
    with pytest.raises(ArgumentError, match="of the state is gone.*that the step returned"):
        trained.trainer.take_step_state(given)
    trained.fit(x, y, verbose=0)
    with pytest.raises(ShapeError, match=r"step of the state has shape \(2,\)"):
        expected.trainer.take_step_state(state | {"step": np.zeros(2, np.int32)})


WRONG_CALLS = [
    (lambda u, s, x: (u, s), ArgumentTypeError, "'2' is missing"),
    (lambda u, s, x: (u, {"v": s["w"], "n": s["n"]}, x), ArgumentTypeError, "'1.w' is missing"),
    (lambda u, s, x: (u, {**s, "ww": x}, x), ArgumentTypeError, "'1.ww' is not known. Did you"),
    (lambda u, s, x: (u, s, x[:8]), ShapeError, r"shape \(8, 4\); the program .* \(16, 4\)"),
    (lambda u, s, x: (u, s, x.astype("float16")), ArgumentTypeError, "astype.'float32'"),
    (
        lambda u, s, x: (u, {**s, "n": 7.5}, x),
        ArgumentTypeError,
        "1.n is 7.5; .* int32, which",
    ),
    (lambda u, s, x: (u, {**s, "n": 2**40}, x), ArgumentTypeError, "1.n is 1099511627776; .*int32"),
    (lambda u, s, x: (u, {**s, "n": "seven"}, x), ArgumentTypeError, "1.n is a str"),
]


@pytest.mark.parametrize(("change", "kind", "message"), WRONG_CALLS)
def test_a_wrong_call_is_named_before_anything_runs(for_cpu, change, kind, message) -> None:
    program = nx.load_compiled(for_cpu.path)
    with pytest.raises(kind, match=message):
        program(*change(*values()))
    program(*values())


def scale(n, x, power):
    return x * n if n > 2 else x**power


class Settings:
    pass


def test_a_static_argument_has_one_text_in_every_process() -> None:
    text = fixed_text((4, frozenset("yxz"), None))
    assert text == "(4, frozenset({'x', 'y', 'z'}), None)"
    assert fixed_text((np.int64(4),)) == fixed_text((4,)) == "(4,)"
    assert fixed_text("read at 0x10") != fixed_text("read at 0x20")  # text, and no address
    assert fixed_text(Settings()) is None and fixed_text((4, Settings())) is None


def test_functions_are_told_apart_by_what_they_do() -> None:
    def made(factor: int):
        return lambda x: x * factor

    assert fixed_text(made(2)) == fixed_text(made(2)) != fixed_text(made(3))
    assert fixed_text(lambda x: x * 2) == fixed_text(lambda x: x * 2)
    assert fixed_text(lambda x: x * 2) != fixed_text(lambda x: x * 3)
    assert fixed_text(jax.nn.relu) != fixed_text(jax.nn.gelu) and "relu" in str(
        fixed_text(jax.nn.relu)
    )
    assert fixed_text(made(Settings())) is None
    total, wrapped = (lambda x: (x**2).sum()), [jax.grad, jax.vmap, jax.jit]
    texts = [fixed_text(total), *(fixed_text(wrap(total)) for wrap in wrapped)]
    assert texts[0] not in texts[1:]  # a gradient has a function inside, and is another

    def itself(x):
        return itself(x)

    assert fixed_text(itself) is None


def test_a_static_function_is_given_as_it_was(tmp_path: Path) -> None:
    called = jax.jit(lambda x, act: act(x), static_argnums=1)
    nx.compile_for(called, nx.spec((4,)), lambda x: x * 2, on="cpu", path=tmp_path / "x.nxc")
    program, ones = nx.load_compiled(tmp_path / "x.nxc"), np.ones(4, np.float32)
    for given in ((ones, lambda x: x * 2), (ones,)):
        np.testing.assert_array_equal(program(*given), 2 * ones)
    with pytest.raises(ArgumentError, match="is a part of it"):
        program(ones, lambda x: x * 3)
    scaled = jax.jit(lambda x, settings: x, static_argnums=1)
    nx.compile_for(scaled, nx.spec((4,)), Settings(), on="cpu", path=tmp_path / "x.nxc")
    program = nx.load_compiled(tmp_path / "x.nxc")
    np.testing.assert_array_equal(program(ones), ones)
    with pytest.raises(ArgumentError, match="a Settings, .* Leave all static arguments out"):
        program(ones, Settings())


def test_what_came_by_name_is_given_by_name(tmp_path: Path) -> None:
    """Its place in the program is that of its name in the alphabet."""

    def weighed(x, y, a):
        return x + 10 * y + 100 * a

    one = nx.spec((4,))
    nx.compile_for(partial(weighed, y=one, a=one), one, on="cpu", path=tmp_path / "x.nxc")
    program = nx.load_compiled(tmp_path / "x.nxc")
    x, y, a = (np.full(4, n, np.float32) for n in (1, 2, 3))
    np.testing.assert_array_equal(program(x, y=y, a=a), weighed(x, y, a))
    for given, named, message in (
        ((x, y, a), {}, "compiled with a, y by name; give a=…, y=…"),
        ((x,), {"y": y}, "give a=…"),
        ((x,), {"y": y, "a": a, "b": a}, "by position, and a, y by name; 'b' came by name"),
    ):
        with pytest.raises(ArgumentTypeError, match=message):
            program(*given, **named)


def test_modules_hold_what_a_call_leaves_as_with_nx_jit(tmp_path: Path) -> None:
    @nx.jit
    def step(model, optimizer, batch):
        def loss(model):
            return ((model(batch["x"]) - batch["y"]) ** 2).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    def made() -> tuple[Any, Any]:
        nx.seed(0)
        model = Net()
        return model, nx.Optimizer(model, nx.optim.Adam(1e-2))

    batch = {"x": np.ones((8, 4), np.float32), "y": np.ones((8, 1), np.float32)}
    (model, optimizer), (same, its_own) = made(), made()
    nx.compile_for(step, model, optimizer, batch, on="cpu", path=tmp_path / "x.nxc")
    program = nx.load_compiled(tmp_path / "x.nxc")
    for _ in range(3):
        np.testing.assert_allclose(
            program(same, its_own, batch), step(model, optimizer, batch), rtol=1e-6
        )
    assert its_own.step == 3
    np.testing.assert_allclose(same.a.kernel[...], model.a.kernel[...], rtol=1e-6)
    made_so = read(tmp_path / "x.nxc")
    for change in ({"variables": ["0.a"]}, {"fixed": {"3": 5}, "arguments": 4}):
        path = repacked(made_so, tmp_path / "y.nxc", call=made_so.manifest["call"] | change)
        with pytest.raises(ArtefactError, match="invalid: see call"):
            nx.load_compiled(path)
    wrong = Net()
    wrong.a = nn.Linear(5, 8)
    for given, kind, message in (
        ((nn.Linear(4, 1), its_own, batch), ArgumentTypeError, "'0.a.bias' is missing"),
        ((batch, its_own, batch), ArgumentTypeError, "Argument 0 of step is a module.*got dict"),
        ((same, its_own), ArgumentTypeError, "takes 3 arguments.*got 2"),
        ((wrong, its_own, batch), ShapeError, r"0.a.kernel has shape \(5, 8\)"),
    ):
        with pytest.raises(kind, match=message):
            program(*given)


def test_static_arguments_are_given_as_they_were_or_left_out(tmp_path: Path) -> None:
    function = jax.jit(scale, static_argnums=(0, 2))
    source = tmp_path / "source.nxc"
    made = nx.compile_for(function, 4, nx.spec((3,)), 2, on="cpu", path=source)
    assert made.manifest["call"]["arguments"] == 3
    assert made.manifest["call"]["fixed"] == {"0": "4", "2": "2"}
    x = np.arange(3, dtype=np.float32)
    program = nx.load_compiled(source)
    for arguments in ((4, x, 2), (x,), (np.int64(4), x, 2)):
        np.testing.assert_array_equal(program(*arguments), 4 * x)
    with pytest.raises(ArgumentError, match="Argument 0 of scale is 5, .* compiled for 4"):
        program(5, x, 2)
    with pytest.raises(ArgumentTypeError, match="'1' is not known"):
        program(4, x)
    good = {"arguments": 3, "fixed": {"2": "2"}}
    others = ("names", ["a", "b", "c"]), ("names", [1]), ("modules", [2]), ("variables", "a")
    for key, wrong in (("arguments", 1), ("arguments", 2), ("arguments", True), *others):
        path = repacked(made, tmp_path / "x.nxc", call=good | {key: wrong})
        with pytest.raises(ArtefactError, match="invalid: see call"):
            nx.load_compiled(path)


def test_64_bit_arguments_keep_their_bits_whoever_calls(tmp_path: Path) -> None:
    path = tmp_path / "x.nxc"
    with jax.enable_x64(True):
        count = nx.spec((), "int64")
        nx.compile_for(lambda x, n: x * n, nx.spec((3,), "float64"), count, on="cpu", path=path)
    program = nx.load_compiled(path)
    for number in (np.int64(2**40), 2**40):
        assert program(np.arange(3.0), number).tolist() == [0, 2**40, 2**41]


def test_a_donated_array_is_given_once(tmp_path: Path) -> None:
    x = nx.spec((8,))
    options = PreflightOptions(donate_argnums=1)
    path = tmp_path / "x.nxc"
    nx.compile_for(
        lambda a, b, c: (a.sum(), b + 1, c.sum()), x, x, x, on="cpu", path=path, options=options
    )
    program, z = nx.load_compiled(path), jax.device_put(jnp.zeros(8), jax.devices("cpu")[0])
    of_the_same_memory = jax.device_put(z, z.sharding)
    for arguments, says in (
        ((z, z, jnp.ones(8)), "0 and 1 of .* are one array, and 1 is donated"),
        ((jnp.ones(8), z, of_the_same_memory), "1 and 2 of .* are one array, and 1 is donated"),
    ):
        with pytest.raises(ArgumentTypeError, match=f"Arguments {says}.*jnp.copy"):
            program(*arguments)
        assert not z.is_deleted()
    host = np.zeros(8, np.float32)
    program(host, host, host)
    program(z, jnp.ones(8), z)  # what is not donated may stand anywhere
    taken = jax.device_put(jnp.ones(8), jax.devices("cpu")[0])
    program(z, taken, z)
    with pytest.raises(ArgumentTypeError, match="Argument 1 has been deleted: an earlier call"):
        program(z, taken, z)
    with pytest.raises(ArgumentTypeError, match="by position; 'x' came by name"):
        program(z, jnp.ones(8), x=z)


def test_a_file_is_named_by_a_path_and_its_sum_is_text() -> None:
    with pytest.raises(ArgumentTypeError, match="path must be that of a file; got 3"):
        nx.load_compiled(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="sha256 must be text of 64 digits; got 3"):
        nx.load_compiled("a.nxc", sha256=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("value", "dtype", "holds"),
    [
        (3, "float32", True), (True, "float32", True), (0.1, "bfloat16", True),
        (np.float64(2.5), "float32", True), (7.0, "int32", True),
        (1, "bool", True), (2, "complex64", True), (float("nan"), "float16", True),
        (2**24 + 1, "float32", False), (1e39, "float32", False), (7.5, "int32", False),
        (-1, "uint32", False), (2, "bool", False), (1j, "float32", False), (300, "int8", False),
        (float("inf"), "int32", False),
    ],
)  # fmt: skip
def test_python_numbers_are_of_the_dtype_that_holds_them(value, dtype: str, holds: bool) -> None:
    entry = {"path": "0", "shape": [], "dtype": dtype}
    if holds:
        number = _checked(value, entry)
        assert number.dtype == dtype and np.isclose(complex(number), value, 1e-2, equal_nan=True)
        return
    with pytest.raises(ArgumentTypeError, match=f"Argument 0 is .*{dtype}, which cannot hold it"):
        _checked(value, entry)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_arrays_of_64_bits_are_taken_as_jit_takes_them(dtype: str, tmp_path: Path) -> None:
    def twice(x):
        return x + x

    x = np.array([1, 2**40 + 3], dtype)
    jitted = jax.jit(twice)
    nx.compile_for(jitted, x, on="cpu", path=tmp_path / "x.nxc")
    program = nx.load_compiled(tmp_path / "x.nxc")
    assert program(x).dtype == jitted(x).dtype
    np.testing.assert_array_equal(program(x), jitted(x))
    other = {"int64": "int16", "uint64": "int64"}.get(dtype, "float16")
    with pytest.raises(ArgumentTypeError, match=f"Argument 0 is of {other}; the program was"):
        program(np.ones(2, other))


def test_a_wrong_argument_beside_modules_is_called_as_the_caller_counts_it(tmp_path: Path) -> None:
    def loss(model, x, scale, *, batch):
        return model(x).sum() * scale + batch["y"].sum()

    model, x, batch = Net(), np.ones((8, 4), np.float32), {"y": np.ones(8, np.int64)}
    call = partial(nx.jit(loss), batch=batch)
    nx.compile_for(call, model, x, x, on="cpu", path=tmp_path / "x.nxc")
    program = nx.load_compiled(tmp_path / "x.nxc")
    program(model, x, x, batch=batch)
    with pytest.raises(ArgumentTypeError, match="Argument 2 is of float16"):
        program(model, x, x.astype("float16"), batch=batch)
    with pytest.raises(ShapeError, match=r"Argument batch\.y has shape \(3,\)"):
        program(model, x, x, batch={"y": batch["y"][:3]})


# The file.


def test_the_manifest_says_what_it_is(for_tpu: Artefact) -> None:
    manifest = json.loads(zipfile.ZipFile(for_tpu.path).read("manifest.json"))
    assert manifest == for_tpu.manifest
    assert manifest["target"]["name"] == "v5e-8"
    assert manifest["target"]["topology_name"] == "v5e:2x4"
    assert set(manifest["versions"]) == {"jax", "jaxlib", "libtpu", "neurenix"}
    assert [(a["path"], a["shape"], a["dtype"], a["partition"], a["donated"])
            for a in manifest["arguments"]] == [
        ("1.n", [], "int32", [], True),
        ("1.w", [4, 2], "float32", [], True),
        ("2", [16, 4], "float32", ["data"], False),
    ]  # fmt: skip
    assert manifest["unused_arguments"] == ["0"]
    assert [o["shape"] for o in manifest["outputs"]] == [[], [4, 2], [], []]
    assert sorted(manifest["device_ids"]) == list(range(8))
    assert len(for_tpu.executable) > 1000
    assert for_tpu.sha256 == hashlib.sha256(for_tpu.path.read_bytes()).hexdigest()
    assert "v5e-8" in str(for_tpu)
    assert for_tpu.sha256 in str(for_tpu)


def test_nothing_in_it_is_a_pickle(for_tpu: Artefact, for_cpu: Artefact) -> None:
    for artefact in (for_tpu, for_cpu):
        with zipfile.ZipFile(artefact.path) as file:
            assert sorted(file.namelist()) == ["executable.bin", "manifest.json", "program.bin"]
            for name in file.namelist():
                assert file.read(name)[:1] != b"\x80"  # how a pickle begins


def test_reading_gives_what_was_written(for_tpu: Artefact) -> None:
    assert read(for_tpu.path) == for_tpu
    assert read(for_tpu.path, sha256=f" {for_tpu.sha256.upper()}\n") == for_tpu


def test_a_file_of_elsewhere_is_told_by_its_sha256(for_tpu: Artefact) -> None:
    with pytest.raises(ArtefactError, match=r"is not the expected file.*0000 was expected"):
        read(for_tpu.path, sha256="0000")


NO_ARTEFACTS = {
    "nothing": b"",
    "text": b"import jax\n",
    "pickle": b"\x80\x04N.",
}


@pytest.mark.parametrize("content", NO_ARTEFACTS.values(), ids=NO_ARTEFACTS)
def test_what_is_no_artefact(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.nxc").write_bytes(content)
    with pytest.raises(ArtefactError, match="not a Neurenix artefact"):
        nx.load_compiled(tmp_path / "x.nxc")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"'a\\x00b' cannot be read: embedded null byte"):
        nx.load_compiled("a\0b")
    with pytest.raises(ArtefactError, match=r"cannot be read: No such file"):
        nx.load_compiled(tmp_path / "x.nxc")


def test_a_foreign_zip_file(tmp_path: Path) -> None:
    pack(tmp_path / "x.nxc", {"manifest.json": b"{}"}, b"")
    with pytest.raises(ArtefactError, match="a ZIP file, not a Neurenix artefact"):
        nx.load_compiled(tmp_path / "x.nxc")


@pytest.mark.parametrize("eighths", range(1, 8))
def test_a_file_cut_short(for_tpu: Artefact, tmp_path: Path, eighths: int) -> None:
    content = for_tpu.path.read_bytes()
    (tmp_path / "x.nxc").write_bytes(content[: len(content) * eighths // 8])
    with pytest.raises(ArtefactError, match="cut short or damaged"):
        nx.load_compiled(tmp_path / "x.nxc")


def test_a_file_without_its_last_bytes(for_tpu: Artefact, tmp_path: Path) -> None:
    content = for_tpu.path.read_bytes()
    for missing in (1, 10, 64, 100, 200):
        (tmp_path / "x.nxc").write_bytes(content[:-missing])
        with pytest.raises(ArtefactError):
            nx.load_compiled(tmp_path / "x.nxc")


@pytest.mark.parametrize("member", ["manifest.json", "executable.bin", "program.bin"])
def test_a_changed_member(for_tpu: Artefact, tmp_path: Path, member: str) -> None:
    with zipfile.ZipFile(for_tpu.path) as file:
        members, comment = {n: file.read(n) for n in file.namelist()}, file.comment
    content = members[member]
    place = content.index(b"v5e-8") if member == "manifest.json" else len(content) // 2
    members[member] = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    pack(tmp_path / "x.nxc", members, comment)  # a whole ZIP file, its checksums right
    with pytest.raises(ArtefactError, match=f"damaged or was changed: {member}"):
        nx.load_compiled(tmp_path / "x.nxc")


def test_members_that_do_not_belong(for_tpu: Artefact, tmp_path: Path) -> None:
    with zipfile.ZipFile(for_tpu.path) as file:
        members, comment = {n: file.read(n) for n in file.namelist()}, file.comment
    pack(tmp_path / "more.nxc", members | {"code.py": b"print()"}, comment)
    pack(tmp_path / "packed.nxc", members, comment, zipfile.ZIP_DEFLATED)
    pack(tmp_path / "fewer.nxc", {"manifest.json": members["manifest.json"]}, comment)
    pack(tmp_path / "twice.nxc", members, comment)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "twice.nxc", "a") as file,
    ):
        file.writestr("program.bin", members["program.bin"])
    for name in ("more", "packed", "fewer", "twice"):
        with pytest.raises(ArtefactError, match="the list of members"):
            nx.load_compiled(tmp_path / f"{name}.nxc")
    pack(tmp_path / "foreign.nxc", members, b"made by hand")
    with pytest.raises(ArtefactError, match="is a ZIP file, not a Neurenix artefact"):
        nx.load_compiled(tmp_path / "foreign.nxc")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [(8, 1, "program.bin is not"), (8, 32, "program.bin is not"), (6, 99, "cut short or damaged")],
    ids=["encrypted", "patched", "of a later version"],
)
def test_a_zip_file_of_another_kind(for_tpu, tmp_path: Path, field, value, message) -> None:
    content = bytearray(for_tpu.path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + field] = value
    if field == 8:  # the flags, which the member's own header says as well
        content[content.rindex(b"PK\x03\x04") + 6] = value
    (tmp_path / "x.nxc").write_bytes(content)
    with pytest.raises(ArtefactError, match=message):
        nx.load_compiled(tmp_path / "x.nxc")


def test_no_flipped_byte_goes_unnoticed(for_tpu: Artefact, tmp_path: Path) -> None:
    content = for_tpu.path.read_bytes()
    draw = random.Random(0)
    # Headers at the front and the end, where ZIP has fields that say nothing of the content.
    places = [*range(120), *range(len(content) - 400, len(content))]
    places += [draw.randrange(len(content)) for _ in range(150)]
    noticed = 0
    for place in places:
        changed = bytes([content[place] ^ (1 << draw.randrange(8))])
        (tmp_path / "x.nxc").write_bytes(content[:place] + changed + content[place + 1 :])
        try:
            found = read(tmp_path / "x.nxc")
        except ArtefactError:
            noticed += 1
        else:
            assert found.manifest == for_tpu.manifest
            assert (found.executable, found.program) == (for_tpu.executable, for_tpu.program)
    assert noticed > len(places) // 2


def test_an_unknown_schema_is_told_before_anything_else(for_tpu: Artefact, tmp_path: Path) -> None:
    versions = {"neurenix": "9.1"}
    path = repacked(for_tpu, tmp_path / "x.nxc", schema=2, versions=versions, members={})
    with pytest.raises(ArtefactError, match=r"schema 2, written by neurenix 9\.1; .* schema 1"):
        nx.load_compiled(path)


@pytest.mark.parametrize(
    "change",
    [{"axes": None}, {"outputs": []}, {"arguments": [{"path": "0"}]}, {"output_tree": ["set", []]}],
)
def test_a_manifest_that_makes_no_sense(for_tpu: Artefact, tmp_path: Path, change) -> None:
    path = repacked(for_tpu, tmp_path / "x.nxc", **change)
    with pytest.raises(ArtefactError, match="is invalid"):
        nx.load_compiled(path)


SUM = {"bytes": 1, "sha256": ""}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", {}),
        ("versions", ["jax"]),
        ("axes", [1]),
        ("axes", [["data", 1, 1]]),
        ("device_ids", [[0]]),
        ("coordinates", [None]),
        ("machine", {"architecture": "x86_64", "features": 3}),
        ("unused_arguments", [["0"]]),
        ("outputs", [{}] * 4),
        ("model_flops", True),
    ],
)
def test_a_manifest_of_another_form(for_cpu: Artefact, tmp_path: Path, key: str, value) -> None:
    path = repacked(for_cpu, tmp_path / "x.nxc", **{key: value})
    with pytest.raises(ArtefactError, match=f"invalid: see {key}"):
        nx.load_compiled(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("path", 3), ("path", "2"), ("shape", 4), ("partition", 3), ("memory_kind", 3),
     ("donated", "yes"), ("device_shape", None)],
)  # fmt: skip
def test_an_argument_of_another_form(for_cpu: Artefact, tmp_path: Path, key: str, value) -> None:
    first, *others = for_cpu.manifest["arguments"]
    path = repacked(for_cpu, tmp_path / "x.nxc", arguments=[{**first, key: value}, *others])
    with pytest.raises(ArtefactError, match="invalid: see arguments"):
        nx.load_compiled(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("partition", ["rows"], "rows"), ("partition", ["data", "data"], "duplicate"),
     ("memory_kind", "flash", "flash"), ("dtype", "float33", "float33")],
)  # fmt: skip
def test_names_that_nobody_knows(for_cpu, tmp_path: Path, key: str, value, message: str) -> None:
    first, *others = for_cpu.manifest["arguments"]
    path = repacked(for_cpu, tmp_path / "x.nxc", arguments=[{**first, key: value}, *others])
    with pytest.raises(ArtefactError, match=f"invalid: .*{message}"):
        nx.load_compiled(path)
    path = repacked(for_cpu, tmp_path / "x.nxc", axes=[["data", 4]])
    with pytest.raises(ArtefactError, match="invalid: cannot reshape"):
        nx.load_compiled(path)
    for ids, places in (([0, 0], [[], []]), ([0], [])):
        path = repacked(for_cpu, tmp_path / "x.nxc", device_ids=ids, coordinates=places)
        with pytest.raises(ArtefactError, match="numbers its devices differently"):
            nx.load_compiled(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda first, *others: [first],
        lambda first, *others: [{**first, "shape": [5, 5]}, *others],
        lambda first, *others: [first, *others, first],
    ],
    ids=["fewer", "of another shape", "more"],
)
def test_results_that_the_executable_does_not_have(
    for_cpu: Artefact, tmp_path: Path, change
) -> None:
    *others, weights = for_cpu.manifest["outputs"]
    outputs = change(weights, *others)
    tree = ["tuple", ["leaf"] * len(outputs)]
    path = repacked(for_cpu, tmp_path / "x.nxc", outputs=outputs, output_tree=tree)
    with pytest.raises(ArtefactError, match="does not match its executable"):
        nx.load_compiled(path)(*values())


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"[" * 100_000, "no readable manifest"), (b"[]", "no readable"), (b"\xff", "no readable"),
     (b'{"schema": 2, "versions": ["9"]}', "schema 2, written by neurenix another version")],
)  # fmt: skip
def test_no_manifest_at_all(tmp_path: Path, text: bytes, message: str) -> None:
    pack_signed(tmp_path / "x.nxc", text, {"executable.bin": b"", "program.bin": b""})
    with pytest.raises(ArtefactError, match=message):
        read(tmp_path / "x.nxc")


@pytest.mark.parametrize(
    "sums",
    [
        {"executable.bin": SUM},
        {"executable.bin": SUM, "program.bin": {}},
        {"executable.bin": SUM, "program.bin": SUM, "manifest.json": SUM},
    ],
)
def test_sums_of_other_members(for_cpu: Artefact, tmp_path: Path, sums: dict) -> None:
    text = json.dumps({**for_cpu.manifest, "members": sums}).encode()
    pack_signed(tmp_path / "x.nxc", text, {"executable.bin": b"", "program.bin": b""})
    with pytest.raises(ArtefactError, match="invalid: see members"):
        read(tmp_path / "x.nxc")


# This machine.


def test_other_versions_are_named_with_the_command(for_tpu: Artefact, tmp_path: Path) -> None:
    here = for_tpu.manifest["versions"]
    versions = {**here, "jaxlib": "0.9.9", "libtpu": "0.0.1"}
    path = repacked(for_tpu, tmp_path / "x.nxc", versions=versions)
    with pytest.raises(ArtefactError) as caught:  # and not that there is no TPU: that comes after
        nx.load_compiled(path)
    text = str(caught.value)
    assert f"jaxlib 0.9.9, and here is {here['jaxlib']}" in text
    assert f"libtpu 0.0.1, and here is {here['libtpu']}" in text
    assert f"pip install jax=={here['jax']} jaxlib==0.9.9 libtpu==0.0.1" in text


def test_libtpu_does_not_matter_to_a_cpu(for_cpu: Artefact, tmp_path: Path) -> None:
    versions = {**for_cpu.manifest["versions"], "libtpu": "0.0.1", "neurenix": "9"}
    unused, state, x = values()
    program = nx.load_compiled(repacked(for_cpu, tmp_path / "x.nxc", versions=versions))
    after, said = program(unused, state, x)
    expected = state["w"] - 0.01 * x.T @ (x @ state["w"])
    np.testing.assert_allclose(after["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(said["loss"], x.sum(), rtol=1e-5)
    assert (int(after["n"]), int(said["count"])) == (8, 7)


def test_a_simulated_slice_runs_no_tpu_code(for_tpu: Artefact) -> None:
    with pytest.raises(DeviceNotFoundError, match=r"real TPUs \(v5e-8\), and .* simulates v5e-8"):
        nx.load_compiled(for_tpu.path)


def test_no_tpu_here(for_tpu: Artefact, run_python) -> None:
    code = f"import neurenix as nx; nx.load_compiled({str(for_tpu.path)!r})"
    done = run_python(code=code)
    if "DeviceNotFoundError" not in done.stderr:
        pytest.skip("this machine has a TPU")
    assert "is a program for v5e-8, and this machine has no TPU." in done.stderr


def tpu_devices(name: str) -> list:
    from jax.experimental import topologies

    where = chips.resolve(name)
    more = {"num_slices": where.num_slices} if where.num_slices > 1 else {}
    bounds = list(where.chips_per_host_bounds)
    return topologies.get_topology_desc(
        platform="tpu", topology_name=where.topology_name, chips_per_host_bounds=bounds, **more
    ).devices


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("tpu7x-8", {"data": 4, "tensor": 2}),  # two devices on a chip
        ("v6e-16", {"data": 8, "tensor": 2}),  # an axis longer than any of the slice's 4x4
        ("2x v5e-4", {"data": 8}),
    ],
)
def test_meshes_of_other_slices(folder: Path, tmp_path: Path, name: str, mesh) -> None:
    artefact = nx.compile_for(
        lambda w, x: x @ w,
        nx.spec((8, 8)),
        nx.spec((64, 8), partition=("data",)),
        on=name,
        path=tmp_path / "x.nxc",
        mesh=mesh,
        options=options(folder, ()),
    )
    devices = tpu_devices(name)
    check_slice(artefact, topology_of_devices(devices))
    assert [d.id for d in arrange(artefact, devices[::-1])] == artefact.manifest["device_ids"]
    assert artefact.manifest["outputs"][0]["partition"][0] == "data"


@pytest.mark.parametrize(
    ("name", "sizes", "slices"),
    [
        ("2x v5e-4", (2, 4), [[0] * 4, [1] * 4]),
        ("2x v5e-4", (1, 2, 4), [[[0] * 4, [1] * 4]]),
        ("4x v5e-4", (2, 8), [[0] * 4 + [1] * 4, [2] * 4 + [3] * 4]),
        ("4x v5e-4", (8, 2), [[n // 2] * 2 for n in range(8)]),
    ],
)
def test_slices_lie_along_the_first_axes_of_a_mesh(name: str, sizes, slices) -> None:
    grid = device_grid(tpu_devices(name), sizes, len(np.unique(slices)))
    assert np.vectorize(lambda device: device.slice_index)(grid).tolist() == slices
    assert len(set(grid.flat)) == grid.size


@pytest.mark.parametrize("name", ["v6e-8", "v5e-4", "v5e-16"])
def test_another_slice_is_named(for_tpu: Artefact, name: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        check_slice(for_tpu, topology_of_devices(tpu_devices(name)))
    assert "compiled for v5e-8 (8 devices)" in str(caught.value)
    assert f"this is {name}" in str(caught.value)
    assert f"--on {name}" in str(caught.value)


def test_the_devices_of_the_slice_are_taken_by_number_and_place(for_tpu: Artefact) -> None:
    devices = tpu_devices("v5e-8")
    check_slice(for_tpu, topology_of_devices(devices))
    check_versions(for_tpu)
    arranged = arrange(for_tpu, list(reversed(devices)))
    assert [device.id for device in arranged] == for_tpu.manifest["device_ids"]
    with pytest.raises(ArtefactError, match="numbers its devices differently"):
        arrange(for_tpu, tpu_devices("v5e-16"))
    places = list(reversed(for_tpu.manifest["coordinates"]))
    moved = Artefact(for_tpu.path, {**for_tpu.manifest, "coordinates": places}, "", b"", b"")
    with pytest.raises(ArtefactError, match="numbers its devices differently"):
        arrange(moved, devices)


def test_a_cpu_with_fewer_instructions(for_cpu: Artefact, tmp_path: Path) -> None:
    machine = cpu_features.cpu()
    path = repacked(
        for_cpu,
        tmp_path / "x.nxc",
        machine={**machine, "features": [*machine["features"], "avx4096"]},
    )
    with pytest.raises(ArtefactError, match="without avx4096"):
        nx.load_compiled(path)
    path = repacked(for_cpu, path, machine={"architecture": "s390x", "features": []})
    with pytest.raises(ArtefactError, match=r"compiled for a CPU \(s390x\) that has what this one"):
        nx.load_compiled(path)


def test_arrays_go_to_the_memory_that_the_file_names(for_cpu: Artefact, tmp_path: Path) -> None:
    first, *others = for_cpu.manifest["arguments"]
    arguments = [{**first, "memory_kind": "pinned_host"}, *others]
    program = nx.load_compiled(repacked(for_cpu, tmp_path / "x.nxc", arguments=arguments))
    kinds = [sharding.memory_kind for sharding in program.shardings.values()]
    assert kinds == ["pinned_host", "device", "device"]
    assert program.mesh.axis_types == (AxisType.Auto,)  # whatever is done with results next


def test_cpu_features_are_read_where_linux_tells_them(tmp_path: Path) -> None:
    assert cpu_features.cpu(tmp_path)["features"] == []
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 aes\n\nflags : x\n")
    assert cpu_features.cpu(tmp_path)["features"] == ["aes", "avx2", "fpu"]


def test_an_executable_that_the_runtime_refuses(for_cpu: Artefact, tmp_path: Path) -> None:
    members = {"executable.bin": for_cpu.executable[:500]}
    with pytest.raises(ArtefactError, match="runtime does not take the executable"):
        nx.load_compiled(repacked(for_cpu, tmp_path / "x.nxc", members))


# Making one.


def test_only_an_entry_with_an_executable_answers(folder: Path, tmp_path: Path) -> None:
    asked = options(tmp_path, ())

    def double(x):
        return x * 2

    report = nx.preflight(double, nx.spec((8, 128)), on="v5e-1", options=asked)
    assert not report.analysis.from_cache
    (entry,) = (tmp_path / "cache").iterdir()
    text_only = entry.stat().st_size
    where = {"on": "v5e-1", "options": asked}
    first = nx.compile_for(double, nx.spec((8, 128)), path=tmp_path / "1.nxc", **where)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.stat().st_size > text_only
    again = nx.compile_for(double, nx.spec((8, 128)), path=tmp_path / "2.nxc", **where)
    assert first.executable == again.executable  # from the cache, as it was
    report = nx.preflight(double, nx.spec((8, 128)), on="v5e-1", options=asked)
    assert report.analysis.from_cache


def test_donation_follows_arguments_that_are_not_used(tmp_path: Path) -> None:
    report = nx.preflight(step, *ARGUMENTS, on="v5e-8", options=options(tmp_path))
    assert sorted(buffer.path for buffer in report.hbm.buffers) == ["1.n", "1.w", "2"]
    assert report.hbm.aliased_bytes >= 4 * 2 * 4


def test_what_a_file_cannot_hold(tmp_path: Path) -> None:
    def printing(x):
        jax.debug.print("{}", x.sum())
        return x * 2

    def drawing(key, x):
        return x + jax.random.normal(key, x.shape)

    key = jax.eval_shape(lambda: jax.random.key(0))
    x = nx.spec((4,))
    for function, args, message in [
        (printing, (x,), r"calls the host .*test_compiler_nxc\.py:"),
        (drawing, (key, x), r"0 is a random key .*key_data"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            nx.compile_for(function, *args, on="cpu", path=tmp_path / "x.nxc")
    assert list(tmp_path.iterdir()) == []


def answer_for(program: Program, **more) -> Compiled:
    placement = {
        "device_ids": [*range(8)], "coordinates": [[]] * 8, "machine": {},
        "arguments": [
            {"partition": leaf.partition, "memory_kind": leaf.host_memory or "device"}
            for leaf in program.leaves
        ],
        "outputs": [{"shape": [16, 4], "dtype": "float32", "partition": [],
                     "memory_kind": "device"}] * pytree_json.count_leaves(program.output_tree),
    }  # fmt: skip
    target = Target.of(chips.resolve("v5e-8"))
    return Compiled(target, {}, "", "", {}, False, (), b"code", placement | more)


def test_an_artefact_holds_all_of_its_program(tmp_path: Path, monkeypatch) -> None:
    sharding = NamedSharding(abstract_mesh({"data": 8}), P("data"), memory_kind="pinned_host")
    rows = jax.ShapeDtypeStruct((16, 4), "float32", sharding=sharding)
    traced = TraceOptions(donate_argnums=(1,), exported=True)
    program = trace(lambda u, w, x: (w @ w.T, w + 1, x), (*ARGUMENTS[:1], nx.spec((16, 4)), rows),
                    axes={"data": 8}, options=traced)  # fmt: skip
    assert program.leaves[1].host_memory == "pinned_host" and program.model_flops
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_a=1")
    given = CompileOptions(compiler_options={"xla_b": "2"})
    write(tmp_path / "x.nxc", program, answer_for(program), given)
    with zipfile.ZipFile(tmp_path / "x.nxc") as file:  # equal content, equal bytes
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    made = read(tmp_path / "x.nxc")
    assert made.program == program.serialized and made.program
    assert made.manifest["fingerprint"] == program.fingerprint
    for index, (found, leaf) in enumerate(
        zip(made.manifest["arguments"], program.leaves, strict=True)
    ):
        assert found["donated"] == (index in program.donated)
        assert found["memory_kind"] == (leaf.host_memory or "device")
        assert (found["path"], found["role"], found["dtype"]) == (leaf.path, leaf.role, leaf.dtype)
        assert (found["shape"], found["device_shape"]) == ([*leaf.shape], [*leaf.device_shape])
    assert made.manifest["libtpu_init_args"] == "--xla_a=1"
    assert made.manifest["compiler_options"] == {"xla_b": "2"}


def test_no_file_without_what_it_takes_to_run(tmp_path: Path) -> None:
    path, x = tmp_path / "x.nxc", nx.spec((16, 4))
    program = trace(lambda x: x + 1, (x,), axes={"data": 8})
    twice = trace(lambda x: x["a.b"] + x["a"]["b"], ({"a.b": x, "a": {"b": x}},), axes={"data": 8})
    key = {"shape": [], "dtype": "key<fry>", "partition": [], "memory_kind": "device"}
    for made, answer, message in (
        (program, answer_for(program, problem="it has effects"), "it has effects"),
        (program, dataclasses.replace(answer_for(program), executable=b""), "no executable"),
        (program, answer_for(program, outputs=[key]), "the result is a random key"),
        (twice, answer_for(twice), r"have the same path, '0\.a\.b'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            write(path, made, answer, CompileOptions())
    assert not path.exists()


def test_a_refused_program_leaves_the_old_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.nxc"
    path.write_text("old")
    huge = nx.spec((2**17, 2**17))
    with pytest.raises(OutOfMemoryError, match=r"could not be compiled for v5e-1; nothing"):
        nx.compile_for(lambda x: x @ x, huge, on="v5e-1", path=path, options=options(folder, ()))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    traced = []
    for path in (tmp_path, tmp_path / "file" / "x.nxc", "/proc/x.nxc"):
        with pytest.raises(ArgumentError, match=r"cannot be written: "):
            nx.compile_for(traced.append, nx.spec((4,)), on="cpu", path=path)
    assert not traced


@pytest.mark.parametrize("name", ["v5e-9", "cpu-0", "gpu"])
def test_an_unknown_target(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownNameError):
        nx.compile_for(jnp.sin, nx.spec((4,)), on=name, path=tmp_path / "x.nxc")


def test_a_cpu_after_a_tpu_is_compiled_for_in_a_process_of_its_own(tmp_path: Path) -> None:
    uncached = PreflightOptions(compiler=CompileOptions(cache=False))
    with kept_workers():
        for on in ("v5e-1", "cpu"):
            x = nx.spec((4,))
            made = nx.compile_for(jnp.sin, x, on=on, path=tmp_path / on, options=uncached)
            assert made.target == on


def test_trees_come_back_from_plain_data() -> None:
    tree = {"b": [1, (2, {3: 4}, None)], "a": {}, "l": Logs(jnp.ones(()), jnp.ones(2))}
    described = json.loads(json.dumps(pytree_json.describe(tree)))
    loss, count = jax.tree.leaves(tree)[-2:]
    built = pytree_json.build(described, iter(jax.tree.leaves(tree)))
    assert built == {"a": {}, "b": [1, (2, {3: 4}, None)], "l": {"loss": loss, "count": count}}

    with pytest.raises(ValueError, match="no node 'set'"):
        pytree_json.build(["set", []], iter(()))


# The command.

SCRIPT = """
    import sys
    import neurenix as nx
    from neurenix import nn

    @nx.jit
    def train(w, x):
        return w + x.sum(0)

    print(sys.argv[1:])
    train(nx.ones((4,)), nx.ones((16, 4)))
    print("went on")
"""


def command(run_python, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "neurenix", "compile", *arguments)


def test_the_command_writes_a_file_that_runs(run_python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = command(run_python, "train.py", "--on", "cpu", "-o", "step.nxc", "--", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert "['--epochs', '3']" in done.stdout
    assert "went on" not in done.stdout
    assert "compiled for cpu with jax" in done.stdout
    out = nx.load_compiled(tmp_path / "step.nxc")(np.ones(4, "f4"), np.ones((16, 4), "f4"))
    assert np.asarray(out).tolist() == [17.0] * 4


def test_the_command_takes_the_slice_of_a_script_that_simulates_one(run_python, tmp_path) -> None:
    script = """
        import jax.numpy as jnp, neurenix as nx
        nx.simulate("v5e-8")
        strategy = nx.distribute.TPUStrategy()
        (x,) = strategy.distribute([jnp.ones((64, 8))])
        strategy.run(lambda x: (x * 2).sum(), args=(x,))
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = command(run_python, "train.py", "--on", "v6e-4", "-o", "step.nxc")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "step.nxc").manifest["axes"] == [["data", 4]]


def test_the_command_for_a_slice(run_python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = command(run_python, "train.py", "--on", "v5e-8", "-o", "step.nxc")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "step.nxc").target == "v5e-8"
    assert sorted(path.name for path in tmp_path.glob("*.nxc*")) == ["step.nxc"]


def test_mistakes_in_the_command(mistakes, tmp_path: Path) -> None:
    cases = [
        (("train.py", "-o", "x.nxc"), "--on"),
        (("train.py", "--on", "v5e-9", "-o", "x.nxc"), "There is no slice 'v5e-9'. Did you mean"),
        (("train.py", "--on", "v5e-8"), "--output"),
        (
            ("train.py", "--on", "v5e-8", "-o", "train.py/x.nxc"),
            "x.nxc cannot be written: Not a directory.",
        ),
        (("none.py", "--on", "v5e-8", "-o", "x.nxc"), "There is no script 'none.py'"),
        (("train.py", "--on", "v5e-8", "-o", "x.nxc"), "ended without a step"),
    ]
    said = mistakes("compile", [("pass", arguments) for arguments, _ in cases])
    for (arguments, message), text in zip(cases, said, strict=True):
        assert message in text, arguments
    assert not list(tmp_path.glob("*.nxc*"))


def test_flatbuffers_is_asked_for_by_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "flatbuffers" else found(name)
    )
    with pytest.raises(nx.MissingExtraError, match=r"neurenix\[nxc\]"):
        nx.compile_for(lambda x: x, nx.spec((3,)), on="cpu", path=tmp_path / "step.nxc")
