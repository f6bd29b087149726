"""What a function is called with: arrays, keyword arguments, static arguments. Nothing compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen

import neurenix as nx
from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._nnx import nnx
from neurenix.compiler.compile import options_of
from neurenix.compiler.program import Program
from neurenix.preflight import CompileOptions, PreflightOptions
from neurenix.preflight.describe_program import describe
from neurenix.preflight.script.run_script import first_step

pytestmark = pytest.mark.cpu8

ROWS, WIDTH = 64, 16
PRODUCT = 2 * ROWS * WIDTH * WIDTH
NAMED: Any = {"mode": "relu"}  # which a type checker refuses, where it can see it
BATCHES: Any = {"batches": [8]}
MISSPELT: Any = {"dtyp": "int8"}
X, W = nx.spec((ROWS, WIDTH)), nx.spec((WIDTH, WIDTH))


class Pair(NamedTuple):
    first: Any
    second: Any


def step(w: Any, x: Any, layers: int = 1, *, mode: str = "", mask: Any = None) -> Any:
    for _ in range(layers):
        x = jnp.dot(x, w)
    x = getattr(jax.nn, mode)(x) if mode else x
    return x if mask is None else x * mask


def program(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
    return describe(function, args, chips.resolve("v5e-1"), options=PreflightOptions(**options))


def arrays(program: Program) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in program.leaves]


@pytest.mark.parametrize(
    "target",
    [
        functools.partial(step, layers=3, mode="relu"),
        functools.partial(functools.partial(step, layers=9, mode="relu"), layers=3),
        functools.partial(jax.jit(step, static_argnames=("layers", "mode")), layers=3, mode="relu"),
        jax.jit(functools.partial(step, layers=3, mode="relu")),
    ],
)
def test_a_partial_fixes_what_is_no_array(target: Any) -> None:
    told = program(target, W, X)
    assert told.model_flops == 3 * PRODUCT
    assert arrays(told) == [W.shape, X.shape]


@pytest.mark.parametrize(
    "jitted",
    [
        jax.jit(step, static_argnums=2),
        jax.jit(step, static_argnames="layers"),
        jax.jit(step, static_argnums=-1),
        nnx.jit(step, static_argnums=2),
    ],
)
def test_static_arguments_of_a_compiled_function_stay_static(jitted: Any) -> None:
    told = program(jitted, W, X, 3)
    assert told.name == "step"
    assert told.model_flops == 3 * PRODUCT
    assert arrays(told) == [W.shape, X.shape]


def test_a_static_function_may_come_first() -> None:
    apply = jax.jit(lambda f, x: f(x), static_argnums=0)
    assert arrays(program(apply, jnp.tanh, X)) == [X.shape]


@pytest.mark.parametrize("function", [step, jax.jit(step), nx.jit(step)])
def test_arrays_in_a_partial_are_arguments(function: Any) -> None:
    told = program(functools.partial(function, mask=X), W, X)
    assert arrays(told) == [W.shape, X.shape, X.shape]
    told = program(functools.partial(function, jnp.ones(W.shape)), X)
    assert arrays(told) == [W.shape, X.shape]
    assert told.constant_bytes == 0


def test_donation_is_of_the_arguments_that_the_caller_counts() -> None:
    def update(config: str, new: Any, old: Any, *, more: Any) -> Any:
        return old + new, more

    jitted = jax.jit(update, static_argnums=0, donate_argnums=2, donate_argnames="more")
    assert program(functools.partial(jitted, more=X), "a", X, X).donated == (1, 2)
    assert program(functools.partial(update, "a", more=X), X, X, donate_argnums=(1,)).donated == (
        1,
    )
    assert program(lambda new, old: old + new, X, X, donate_argnums=1).donated == (1,)
    for wrong in ("0", 1.5, [None]):
        with pytest.raises(ArgumentTypeError, match="donate_argnums is the number"):
            program(lambda new, old: old + new, X, X, donate_argnums=wrong)
    with pytest.raises(ArgumentError, match="names argument 2, and there are 2 arguments"):
        program(functools.partial(update, "a", more=X), X, X, donate_argnums=(2,))


def test_what_may_be_donated_is_told_as_the_caller_counts_and_never_the_batch() -> None:
    adam = optax.adam(1e-3)

    def train(x: Any, y: Any, params: Any, state: Any, *, scale: Any = 1.0) -> Any:
        loss, grads = jax.value_and_grad(lambda p: (x @ p["w"] - y).var() * scale)(params)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = {"w": W}  # as large as x and y
    state = jax.eval_shape(adam.init, params)
    told = program(train, W, W, params, state)
    assert list(told.replaceable) == [2, 3]
    paths = [told.leaves[i].path for i in told.replaceable[3]]
    assert paths == ["3.0.count", "3.0.mu.w", "3.0.nu.w"]
    plain = functools.partial(train, W)
    assert list(program(plain, W, params, state).replaceable) == [1, 2]
    compiled = functools.partial(jax.jit(lambda n, *args: train(*args), static_argnums=0), 1)
    assert list(program(compiled, W, W, params, state).replaceable) == [3, 4]
    named = functools.partial(jax.jit(lambda old, *, new: (new + old).T @ new), new=W)
    assert list(program(named, nx.spec((1, WIDTH))).replaceable) == ["new"]


def test_donation_of_a_function_of_flax_without_modules() -> None:
    assert program(nnx.jit(lambda x: x + 1, donate_argnums=0), X).donated == (0,)


def test_modules_beside_what_is_fixed() -> None:
    def loss(model: Any, x: Any, scale: int = 0, *, mode: str = "", mask: Any = None) -> Any:
        assert isinstance(scale, int)
        y = getattr(jax.nn, mode)(model(x))
        return (y if mask is None else y * mask).sum() * scale

    model = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
    for told in (
        program(functools.partial(loss, scale=2, mode="relu", mask=X), model, X),
        program(functools.partial(loss, model, mode="relu", mask=X, scale=2), X),
        program(functools.partial(nx.jit(functools.partial(loss, mode="relu", scale=2)), mask=X),
                model, X),
    ):  # fmt: skip
        assert [leaf.role for leaf in told.leaves] == ["parameters"] * 2 + ["batch"] * 2
    told = program(functools.partial(nnx.jit(loss, static_argnums=2, static_argnames="mode"),
                                     mode="relu"), model, X, 2)  # fmt: skip
    assert [leaf.role for leaf in told.leaves] == ["parameters"] * 2 + ["batch"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: program(step, W, X, 1, "relu"), r"Argument 3 of step is a str.*static_argnums=3"),
        (
            lambda: program(step, W, X, jnp.tanh),
            r"2 \(layers\) of step is .*functools.partial\(step, layers=…\) or jax.jit\(step, stat",
        ),
        (
            lambda: program(lambda f, x: f(x), jnp.tanh, X),
            r'Argument 0 \(f\) .*Fix it: jax.jit\(<lambda>, static_argnames="f"\)\.',
        ),
        (
            lambda: program(functools.partial(jax.jit(step), mode="relu"), W, X),
            r"Argument 'mode' of step is a str.*static_argnames=\"mode\"",
        ),
        (lambda: program(jnp.add, X, {"a": "b"}), "holds a str.*outside of what is traced"),
        (
            lambda: nx.preflight(step, W, X, **NAMED, on="v5e-8"),
            r"no argument 'mode'.*nx.preflight\(functools.partial\(step, mode=…\), …\)",
        ),
        (lambda: nx.preflight(step, W, X, **MISSPELT, on="v5e-8"), "Did you mean 'dtype'"),
        (
            lambda: nx.preflight.search(step, W, X, **BATCHES, on="v5e-8"),
            r"no argument 'batches'.*space=nx.preflight.SearchSpace\(batches=…\)",
        ),
        (
            lambda: nx.preflight.search(step, W, X, **NAMED, on="v5e-8"),
            r"nx.preflight.search\(functools.partial\(step, mode=…\), …\)",
        ),
        (
            lambda: nx.preflight(step, W, X, on="v5e-8, v6e-8"),
            r'several slices are a list: on=\["v5e-8", "v6e-8"\]',
        ),
        (
            lambda: nx.compile_for(step, W, X, **NAMED, on="cpu", path="f.nxc"),
            r"nx.compile_for\(functools.partial\(step, mode=…\), …\)",
        ),
    ],
)
def test_what_is_no_array_is_named_with_the_way_to_fix_it(call: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        call()


def test_a_number_whose_value_is_needed_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"the number layers\?.*functools.partial\(step, layer"):
        program(step, W, X, 3)


def test_an_argument_by_name_that_lacks_is_said_with_the_way_to_give_it() -> None:
    def named(x: Any, *, size: int) -> Any:
        return x * size

    with pytest.raises(ArgumentError, match=r"'size'\. What goes by name .*functools.partial\(na"):
        program(named, X)


def test_the_slice_is_named_for_which_a_batch_cannot_be_divided() -> None:
    rows = nx.spec((ROWS, WIDTH), partition=("data",))
    with pytest.raises(ShapeError, match="64 over 256 devices") as raised:
        nx.preflight(jnp.tanh, rows, on=["v5e-8", "v5e-256"])
    assert [note.partition(";")[0] for note in raised.value.__notes__] == ["That is for v5e-256"]
    with pytest.raises(ShapeError) as raised:  # it may be as wrong for the others
        nx.preflight(jnp.tanh, rows, on=["v5e-256", "v5e-8"])
    assert not hasattr(raised.value, "__notes__")


def test_a_script_may_call_its_step_with_names(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import jax.numpy as jnp\nimport neurenix as nx\n"
        "step = nx.jit(lambda w, *, x: x @ w)\n"
        f"step(jnp.ones({W.shape}), x=jnp.ones({X.shape}))\n"
    )
    target, args, *_ = first_step(script)
    assert arrays(program(target, *args)) == [W.shape, X.shape]


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any, scale: Any = None) -> Any:
        return self.encode(x) if scale is None else self.encode(x) * scale

    def encode(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (lambda net: net, "Net"),
        (lambda net: net.encode, "encode"),
        (lambda net: nnx.jit(lambda net, x: net(x)).__get__(net), "<lambda>"),
        (lambda net: functools.partial(net, scale=None), "Net"),
        (lambda net: nx.jit(net), "Net"),
        (lambda net: nx.jit(net.encode), "encode"),
    ],
)
def test_a_module_of_flax_that_changes_is_a_program(form: Any, name: str) -> None:
    told = program(form(Net(nnx.Rngs(0))), X)
    assert told.name == name
    roles = {leaf.path: leaf.role for leaf in told.leaves}
    assert list(roles.values()).count("parameters") == 4
    assert list(roles.values()).count("model_state") == 2
    assert roles["1.0"] == "batch"
    assert told.constant_bytes == 0
    assert told.model_flops == PRODUCT


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_an_abstract_module_with_random_streams_is_a_program(kind: str) -> None:
    net = nnx.eval_shape(lambda: Net(nnx.Rngs(jax.random.key(0, impl=kind))))
    told = program(net, X)
    assert told.model_flops == PRODUCT
    words = {"threefry2x32": 2, "rbg": 4}[kind]
    assert (words,) in [leaf.shape for leaf in told.leaves if leaf.dtype == "uint32"]


def test_a_module_of_linen_is_refused_with_the_way_to_give_its_parameters() -> None:
    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(8)(x)

    m = Dense()
    with pytest.raises(ArgumentError, match=r"Dense is a module of flax.linen.*m.apply\(v, x\)"):
        program(m, X)
    told = program(lambda v, x: m.apply(v, x), jax.eval_shape(m.init, jax.random.key(0), X), X)
    assert told.model_flops == 2 * ROWS * WIDTH * 8


@pytest.mark.parametrize("kind", [nnx.Linear, nx.nn.Linear, nx.Trainer, linen.Dense, Net])
def test_a_class_is_no_module_and_is_to_be_built(kind: type) -> None:
    message = rf"^{kind.__name__} is a class; build it first: {kind.__name__}\(…\)\.$"
    with pytest.raises(ArgumentTypeError, match=message):
        program(kind, X)
    with pytest.raises(ArgumentTypeError, match=message):
        nx.preflight(kind, on="v5e-8", input_shape=(ROWS, WIDTH))
    with pytest.raises(ArgumentTypeError, match=message):
        nx.Trainer(kind, loss="mse")


def test_a_class_of_ones_own_may_be_the_function() -> None:
    assert arrays(program(Pair, X, X)) == [X.shape] * 2


def test_a_script_may_ask_about_a_module_of_flax_itself() -> None:
    net = Net(nnx.Rngs(0))
    net.eval()
    by_shape = describe(net, (), chips.resolve("v5e-1"), input_shape=X.shape)
    assert by_shape.model_flops == PRODUCT
    assert [leaf.shape for leaf in by_shape.leaves if leaf.role == "batch"] == [X.shape]
    with pytest.raises(ArgumentTypeError, match=r"Argument 1 \(scale\) of Net is a str"):
        program(net, X, "twice")


def test_a_module_that_a_function_closes_over_and_changes_is_an_error_with_the_way_out() -> None:
    net = Net(nnx.Rngs(0))
    for function in (lambda x: net(x), jax.jit(net), nnx.jit(net)):
        with pytest.raises(ArgumentError, match=r"not given, at .*arguments.py:\d+.*model, x, on="):
            program(function, X)


def test_a_gradient_of_a_module_is_not_taken_for_its_loss() -> None:
    def loss(net: Any, x: Any) -> Any:
        return net(x).sum()

    told = program(nnx.value_and_grad(loss), Net(nnx.Rngs(0)), X)
    assert told.model_flops == 2 * PRODUCT  # no gradient of the inputs


EMBED, SPMD = "xla_embed_ir_in_executable", "xla_jf_spmd_threshold_for_windowed_einsum_mib"


@pytest.mark.parametrize("around", [lambda jitted: jitted, functools.partial])
def test_compiler_options_of_a_jitted_function_are_taken_over(around: Any) -> None:
    jitted = jax.jit(
        step, static_argnames="mode", donate_argnums=1, compiler_options={EMBED: True, SPMD: 1}
    )
    found = program(functools.partial(around(jitted), mode="relu"), W, X)
    assert found.compiler_options == {EMBED: True, SPMD: 1}
    assert found.donated == (1,) and found.model_flops == PRODUCT
    plain = jax.jit(step, static_argnames="mode", donate_argnums=1)
    same = program(functools.partial(plain, mode="relu"), W, X)
    assert same.fingerprint == found.fingerprint and not same.compiler_options
    own = options_of(found, CompileOptions(compiler_options={SPMD: 2}, workers=1))
    assert own == CompileOptions(compiler_options={EMBED: True, SPMD: 2}, workers=1)


def test_compiler_options_stay_with_modules_and_an_effort_below_the_default_is_refused() -> None:
    effort = "exec_time_optimization_effort"
    lazy = jax.jit(lambda net, x: net(x), compiler_options={effort: -1.0})
    found = program(lazy, Net(nnx.Rngs(0)), X)
    with pytest.raises(ArgumentError, match=rf"compiler_options\['{effort}'\] is -1\.0"):
        options_of(found, CompileOptions())
    assert options_of(found, CompileOptions(compiler_options={effort: 0.0})).compiler_options
    with pytest.raises(ArgumentError, match="jax.jit compiles with compiler_options"):
        program(lambda x: jax.jit(jnp.tanh, compiler_options={EMBED: True})(x), X)


def test_a_file_of_a_jitted_function_names_its_compiler_options(tmp_path: Path) -> None:
    jitted = jax.jit(jnp.tanh, compiler_options={"xla_cpu_enable_fast_math": False})
    made = nx.compile_for(jitted, nx.spec((3,)), on="cpu", path=tmp_path / "tanh.nxc")
    assert made.manifest["compiler_options"] == {"xla_cpu_enable_fast_math": False}
