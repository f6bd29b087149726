"""Arguments that nobody has placed: the compiler divides them, as it does for ``jax.jit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import neurenix as nx
from neurenix import chips
from neurenix._core.errors import ArgumentError, NeurenixError
from neurenix.compiler.program import Program
from neurenix.preflight.describe_program import describe
from program_helpers import module_text

pytestmark = pytest.mark.tpu_compile

OPTIMIZER = optax.adamw(1e-3)
ROWS, WIDTH, HIDDEN = 16, 64, 32


@jax.jit
def step(parameters: Any, state: Any, x: Any) -> Any:
    def loss(own: Any) -> Any:
        return jnp.mean((x @ own["w"] @ own["v"]) ** 2)

    gradients = jax.grad(loss)(parameters)
    updates, state = OPTIMIZER.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state


def laid(*partition: Any) -> NamedSharding:
    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    return NamedSharding(Mesh(devices, ("fsdp", "tensor")), P(*partition))


def arguments(parameters: Any = None) -> tuple[Any, ...]:
    """Return divided parameters, state that ``jax.jit`` has made of zeros, and NumPy's rows."""
    parameters = parameters or {
        "w": jax.device_put(jnp.ones((WIDTH, HIDDEN)), laid("fsdp", "tensor")),
        "v": jax.device_put(jnp.ones((HIDDEN, WIDTH)), laid("tensor", "fsdp")),
    }
    state = jax.jit(OPTIMIZER.init)(parameters)
    return parameters, state, np.ones((ROWS, WIDTH), np.float32)


def described(*args: Any, on: str = "v5e-8") -> Program:
    return describe(step, args, chips.resolve(on))


def test_each_is_divided_as_jax_divides_it() -> None:
    args = arguments()
    report = nx.preflight(step, *args, on="v5e-8")
    shardings = jax.tree.leaves(step.lower(*args).compile().input_shardings[0])
    taken = zip(shardings, jax.tree.leaves(args), strict=True)
    expected = [sharding.shard_shape(leaf.shape) for sharding, leaf in taken]
    leaves = report.analysis.program.leaves
    assert [leaf.device_shape for leaf in leaves] == expected
    assert {leaf.path: leaf.device_shape for leaf in leaves if leaf.is_unplaced} == {
        "1.0.mu.v": (16, 16),
        "1.0.mu.w": (16, 16),
        "1.0.nu.v": (16, 16),
        "1.0.nu.w": (16, 16),
        "2": expected[-1],
    }
    roles = report.to_dict()["hbm_per_device"]["roles"]
    assert roles["parameters"] == 2 * 16 * 128 * 4  # in tiles of 8 × 128
    assert roles["optimizer"] == 2 * roles["parameters"] + 4  # and the count


def test_what_is_placed_stays_where_it_is() -> None:
    parameters, state, x = arguments()
    whole = jax.device_put(state, laid())
    leaves = nx.preflight(step, parameters, whole, x, on="v5e-8").analysis.program.leaves
    held = {leaf.path: leaf.device_shape for leaf in leaves}
    assert held["1.0.mu.w"] == (WIDTH, HIDDEN)


def test_before_it_is_compiled_the_state_counts_as_its_parameters_do() -> None:
    shapes = [leaf.device_shape for leaf in described(*arguments()).leaves]
    assert shapes == [(16, 16)] * 2 + [()] + [(16, 16)] * 4 + [(ROWS, WIDTH)]


def test_where_nothing_is_placed_nothing_is_divided() -> None:
    args = arguments({"w": jnp.ones((WIDTH, HIDDEN)), "v": jnp.ones((HIDDEN, WIDTH))})
    program = described(*args)
    assert not any(leaf.is_unplaced for leaf in program.leaves)
    specs = jax.tree.map(lambda leaf: nx.spec(leaf.shape, leaf.dtype), args)
    assert program.fingerprint == described(*specs).fingerprint


def test_a_spec_is_whole_and_so_is_what_nx_jit_takes() -> None:
    parameters, state, x = arguments()
    rows = nx.spec(x.shape)
    assert described(parameters, state, rows).leaves[-1].partition == ()
    assert not described(parameters, state, rows).leaves[-1].is_unplaced
    compiled = nx.jit(step.__wrapped__)
    program = describe(compiled, (parameters, state, x), chips.resolve("v5e-8"))
    assert not any(leaf.is_unplaced for leaf in program.leaves)


def test_where_what_is_placed_is_not_used_the_rest_is_whole() -> None:
    rows = jax.device_put(jnp.ones((64, 64)), laid("fsdp"))
    doubled = jax.jit(lambda table, x: x * 2)
    program = describe(doubled, (rows, jnp.ones((64, 128))), chips.resolve("v5e-8"))
    assert [(leaf.path, leaf.is_unplaced) for leaf in program.leaves] == [("1", False)]


def over_rows(x: Any) -> Any:
    return jax.shard_map(
        lambda own: jax.lax.psum(jnp.sum(own**2, axis=0), ("fsdp", "tensor")),
        mesh=laid().mesh,
        in_specs=P(("fsdp", "tensor")),
        out_specs=P(),
    )(x)


def constrained(x: Any) -> Any:
    return jnp.sum(jax.lax.with_sharding_constraint(x, laid("fsdp", "tensor")) ** 2, axis=0)


def with_divided_results(x: Any) -> Any:
    return jax.jit(lambda x: x * 2, out_shardings=laid("fsdp", "tensor"))(x)


def with_results_divided_by_their_types(x: Any) -> Any:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    return jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P("fsdp", "tensor")))(x)


NAMING = [over_rows, constrained, with_divided_results, with_results_divided_by_their_types]


@pytest.mark.parametrize("named", NAMING)
def test_a_function_that_names_the_mesh_has_what_it_is_given_divided(named: Any) -> None:
    function, x = jax.jit(named), np.ones((ROWS, WIDTH), np.float32)
    report = nx.preflight(function, x, on="v5e-8")
    expected = function.lower(x).compile().input_shardings[0][0].shard_shape(x.shape)
    assert expected != x.shape
    assert [leaf.device_shape for leaf in report.analysis.program.leaves] == [expected]
    assert "undivided" not in {finding.rule for finding in report.findings}
    held = report.to_dict()["hbm_per_device"]["roles"]
    assert sum(held.values()) == expected[0] * 128 * 4  # in tiles of 8 × 128


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_mesh_that_is_set_is_that_of_the_program(kind: AxisType) -> None:
    is_auto = kind == AxisType.Auto
    lay = jax.lax.with_sharding_constraint if is_auto else jax.sharding.reshard
    product = jax.jit(lambda w, x: lay(x, P(("fsdp", "tensor"))) @ w)
    arrays = np.ones((WIDTH, HIDDEN), np.float32), np.ones((ROWS, WIDTH), np.float32)
    with jax.set_mesh(jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(kind,) * 2)):
        program = describe(product, arrays, chips.resolve("v5e-8"))
        with pytest.raises(ArgumentError, match="axis: fsdp .* not found in mesh: .'data',"):
            describe(product, arrays, chips.resolve("v5e-16"))
    with pytest.raises(ArgumentError, match=r"mesh=\{'fsdp': …\}, or ask inside of `with jax.set"):
        describe(product, arrays, chips.resolve("v5e-8"))
    assert program.axes == {"fsdp": 4, "tensor": 2}
    assert [leaf.is_unplaced for leaf in program.leaves] == [is_auto] * 2


def test_what_lies_on_one_device_is_refused_beside_what_lies_on_many() -> None:
    rows = jax.device_put(jnp.ones((ROWS, WIDTH)), laid("fsdp"))
    alone = {"w": jax.device_put(jnp.ones((WIDTH, HIDDEN)), jax.devices()[0])}
    product = jax.jit(lambda x, own: x @ own["w"])
    with pytest.raises(ValueError, match="incompatible devices"):
        product(rows, alone)
    with pytest.raises(ArgumentError, match=r"1\.w has been put on one device .* 0 lies on 8"):
        describe(product, (rows, alone), chips.resolve("v5e-8"))
    doubled = jax.jit(lambda x, own: x * 2)
    doubled(rows, alone)  # what is not used may lie anywhere
    assert describe(doubled, (rows, alone), chips.resolve("v5e-8")).unused == ("1.w",)


def test_axes_that_types_speak_of_leave_the_compiler_nothing() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh, P("data")))
    product = jax.jit(jnp.dot)
    leaves = describe(product, (x, np.ones((8, 8), np.float32)), chips.resolve("v5e-8")).leaves
    assert [leaf.device_shape for leaf in leaves] == [(2, 8), (8, 8)]


def test_a_program_of_many_arguments_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurenix.compiler.lowering._MOST_PARAMETERS", 3)
    options = nx.preflight.PreflightOptions(compiler=nx.preflight.CompileOptions(cache=False))
    report = nx.preflight(step, *arguments(), on="v5e-8", options=options)
    held = {leaf.path: leaf.device_shape for leaf in report.analysis.program.leaves}
    assert held["1.0.mu.w"] == held["0.w"] == (16, 16)
    assert held["2"] == (ROWS, WIDTH // 4)


@pytest.mark.parametrize("named", NAMING[1:])
def test_an_artefact_of_such_a_function_is_divided_as_jax_divides_it(
    named: Any, tmp_path: Path
) -> None:
    function, x = jax.jit(named), np.ones((ROWS, WIDTH), np.float32)
    artefact = nx.compile_for(function, x, on="v5e-8", path=tmp_path / "step.nxc")
    compiled = function.lower(x).compile()
    told = artefact.manifest
    taken, made = compiled.input_shardings[0][0], compiled.output_shardings
    assert told["arguments"][0]["device_shape"] == list(taken.shard_shape(x.shape))
    assert [part for part in told["outputs"][0]["partition"] if part] == [*made.spec]


def test_the_mesh_of_its_own_is_told_from_the_one_that_layers_name() -> None:
    heads = np.ones((8, 128, 2, 64), np.float32)

    def function(heads: Any, x: Any) -> Any:  # the kernel names the mesh that it is traced on
        return nx.nn.dot_product_attention(heads, heads, heads), constrained(x)

    x = np.ones((ROWS, WIDTH), np.float32)
    assert describe(function, (heads, x), chips.resolve("v5e-8")).axes == dict(laid().mesh.shape)


@pytest.mark.parametrize(
    ("on", "dtype", "taken"),
    [("v5e-8", "bfloat16", True), ("v3-8", "bfloat16", False), ("v3-8", "float32", True)],
)
def test_inside_a_mesh_of_its_own_attention_has_the_kernel_of_the_slice(
    on: str, dtype: str, taken: bool
) -> None:
    def attention(x: Any) -> Any:
        return nx.nn.dot_product_attention(x, x, x)

    partition = P(("fsdp", "tensor"))
    over = {"mesh": laid().mesh, "in_specs": partition, "out_specs": partition}
    function = jax.jit(jax.shard_map(attention, check_vma=False, **over))
    x = jnp.ones((8, 128, 2, 64), dtype)
    function(x)  # on the CPU, which has no kernel
    report = nx.preflight(function, x, on=on)
    assert (b"tpu_custom_call" in report.analysis.program.lowered.module) is taken


def test_a_kernel_may_ask_which_tpu_it_is_for() -> None:
    def function(x: Any) -> Any:
        return x * pltpu.get_tpu_info().generation

    for on, generation in (("v5e-8", 5), ("v6e-8", 6)):
        program = describe(function, (ones(),), chips.resolve(on))
        assert f"dense<{generation}.0" in module_text(program)


def ones() -> Any:
    return np.ones((ROWS, WIDTH), np.float32)


def held_to_its_types(x: Any) -> Any:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp", "tensor")))


def holding_nothing(x: Any) -> Any:
    if x.shape[0] != 3:
        raise AssertionError
    return x


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (held_to_its_types, "acts as an assert when"),
        (holding_nothing, r"an assertion fails \(.*raise Assert"),
    ],
)
def test_an_assertion_that_fails_is_told_with_its_line(function: Any, said: str) -> None:
    for asked in (function, jax.jit(function)):
        with pytest.raises(ArgumentError, match=f"{function.__name__} cannot be traced.*{said}"):
            describe(asked, (ones(),), chips.resolve("v5e-8"))


def test_an_artefact_says_how_the_compiler_divided_it(tmp_path: Path) -> None:
    artefact = nx.compile_for(step, *arguments(), on="v5e-8", path=tmp_path / "step.nxc")
    told = {a["path"]: (a["partition"], a["device_shape"]) for a in artefact.manifest["arguments"]}
    assert told["1.0.mu.w"] == told["0.w"] == (["fsdp", "tensor"], [16, 16])
    assert told["1.0.nu.v"] == told["0.v"] == (["tensor", "fsdp"], [16, 16])


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 2, "model": 4}])
def test_an_artefact_over_another_mesh_than_the_functions_own_is_refused(
    axes: dict[str, int], tmp_path: Path
) -> None:
    def function(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, laid("fsdp", "tensor")) ** 2

    x, path = np.ones((ROWS, WIDTH), np.float32), tmp_path / "step.nxc"
    with pytest.raises(NeurenixError, match=r"no axis of its mesh .* give that one as mesh="):
        nx.compile_for(function, x, on="v5e-8", path=path, mesh=axes)
    assert not path.exists()


EIGHT_DEVICES = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import neurenix as nx

mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
divided = NamedSharding(mesh, P("fsdp", "tensor"))
x = np.arange(1024, dtype=np.float32).reshape(16, 64)
step = jax.jit(lambda x: jnp.sum(jax.lax.with_sharding_constraint(x, divided) ** 2, axis=0))
nx.compile_for(step, x, on="cpu-8", path="sum.nxc")
program = nx.load_compiled("sum.nxc")
np.testing.assert_allclose(program(x), np.sum(x**2, axis=0), rtol=1e-6)
print(program.shardings["0"].spec)
"""


def test_an_artefact_of_what_nobody_has_placed_divides_it_too(run_python: Any) -> None:
    eight = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    ran = run_python(code=EIGHT_DEVICES, env=eight)
    assert ran.stdout.strip().endswith("('fsdp', 'tensor')"), ran.stderr
