"""A simulated slice: put in place in time, refused when late, and it does not hang."""

from __future__ import annotations

import json

import jax
import pytest

from neurenix import simulation
from neurenix._core.errors import SimulationError, UnknownNameError

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

SHOW = "print([len(jax.devices()), len(jax.devices('tpu')), len(jax.devices('cpu'))])"


def test_this_session_is_a_v5e_8() -> None:
    active = simulation.simulated()
    assert active is not None
    assert (active.name, active.num_devices, active.device_kind) == ("v5e-8", 8, "TPU v5 lite")
    assert simulation.simulate("v5litepod-8") == active
    assert len(jax.devices()) == len(jax.devices("tpu")) == 8


def test_too_late_says_what_to_do() -> None:
    jax.devices()
    with pytest.raises(SimulationError) as error:
        simulation.simulate("v6e-4")
    message = str(error.value)
    assert "simulated v5e-8" in message
    assert "neurenix run --simulate v6e-4" in message


def test_unknown_slice_and_numerics() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'v5e-4' or 'v5e-8'"):
        simulation.simulate("v5e-7")
    with pytest.raises(UnknownNameError, match="Known: float32, tpu"):
        simulation.simulate("v5e-8", numerics="bf16")


@pytest.mark.parametrize(
    ("name", "devices", "said"),
    [
        ("v3-8", 8, "(8 devices, 4 chips)"),
        ("v5p-8", 4, "(4 devices, 4 chips)"),
        ("tpu7x-2x2x1", 8, "(8 devices, 4 chips)"),
        ("2x v5e-4", 8, "(8 devices, 8 chips)"),
        ("v5e-1", 1, "(1 device, 1 chip)"),
    ],
)
def test_devices_are_those_of_the_slice(run_python, name: str, devices: int, said: str) -> None:
    done = run_python(
        code=f"from neurenix.simulation import simulate; simulate({name!r}); import jax; {SHOW}"
    )
    assert json.loads(done.stdout) == [devices, devices, 1], done.stderr
    assert done.stderr.count(f"is simulated on this machine's CPU {said}") == 1


@pytest.mark.parametrize("platforms", ["cpu", "tpu", "cpu,tpu", ""])
def test_the_choice_of_platforms_does_not_hide_it(run_python, platforms: str) -> None:
    done = run_python(
        code=f"import jax, neurenix.simulation; {SHOW}",
        env={"NEURENIX_SIMULATE": "v5e-4", "JAX_PLATFORMS": platforms},
    )
    assert json.loads(done.stdout) == [4, 4, 1], done.stderr


def test_environment_is_obeyed_by_whatever_is_used_first(run_python) -> None:
    code = (
        "import neurenix as nx; found = nx.devices(nx.DeviceType.TPU);"
        "print(len(found), found[0].is_simulated, nx.simulated().numerics)"
    )
    done = run_python(
        code=code, env={"NEURENIX_SIMULATE": "v5e-4", "NEURENIX_SIMULATE_NUMERICS": "tpu"}
    )
    assert done.stdout.split() == ["4", "True", "tpu"], done.stderr


def test_environment_that_is_wrong_is_named(run_python) -> None:
    done = run_python(code="import neurenix.simulation", env={"NEURENIX_SIMULATE": "v5e-9"})
    assert done.returncode != 0
    assert "Did you mean 'v5e-8' or 'v5e-16'" in done.stderr
    assert "NEURENIX_SIMULATE=v5e-9" in done.stderr


def test_environment_that_comes_too_late_is_an_error_not_a_shrug(run_python) -> None:
    done = run_python(
        code="import jax; jax.devices(); from neurenix.simulation import simulated; simulated()",
        env={"NEURENIX_SIMULATE": "v5e-8"},
    )
    assert done.returncode != 0
    assert "JAX has already started its backends" in done.stderr


def test_another_slice_while_there_is_time(run_python) -> None:
    code = (
        "from neurenix.simulation import simulate, simulated; simulate('v5e-8', numerics='tpu');"
        "simulate('v5e-4'); import jax, jax.numpy as jnp;"
        "print(len(jax.devices()), simulated().name, jnp.matmul(jnp.array([[1.001]]), jnp.eye(1)))"
    )
    done = run_python(code=code)
    assert done.stdout.split() == ["4", "v5e-4", "[[1.001]]"], done.stderr


def test_whoever_runs_a_program_may_choose_its_slice(run_python) -> None:
    code = (
        "from neurenix.simulation.slice import simulate, simulate_alone; simulate_alone('v5e-4');"
        "print(simulate('v5e-8').name); import jax; print(len(jax.devices()))"
    )
    done = run_python(code=code)
    assert done.stdout.split() == ["v5e-4", "4"], done.stderr


def test_more_threads_than_allowed(run_python) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (20_000, 20_000));"
        "from neurenix.simulation import simulate; simulate('v5p-12288')"
    )
    done = run_python(code=code)
    assert "SimulationError" in done.stderr
    assert "61440 threads" in done.stderr


NUMERICS = """
import jax, jax.numpy as jnp, numpy as np
from neurenix.simulation import simulate
simulate("v5e-1", numerics="tpu")
rng = np.random.RandomState(0)
rounded = lambda z: np.asarray(jnp.asarray(z).astype(jnp.bfloat16).astype(jnp.float32))
a, b = rng.rand(64, 48).astype("f"), rng.rand(48, 32).astype("f")
product = np.asarray(jax.jit(jnp.matmul)(a, b))
np.testing.assert_allclose(product, rounded(a) @ rounded(b), rtol=1e-6)
assert abs(product - a @ b).max() > 1e-3
np.testing.assert_allclose(jnp.matmul(a, b, precision="highest"), a @ b, rtol=1e-6)
np.testing.assert_allclose(jnp.matmul(a, b, precision="high"), a @ b, rtol=1e-6)
with jax.default_matmul_precision("highest"):
    np.testing.assert_allclose(jnp.matmul(a, b), a @ b, rtol=1e-6)

gradient = jax.jit(jax.grad(lambda a: jnp.sum(jnp.matmul(a, b) * weight)))
weight = rng.rand(64, 32).astype("f")
np.testing.assert_allclose(gradient(a), rounded(weight) @ rounded(b).T, rtol=1e-6)
assert abs(np.asarray(gradient(a)) - weight @ b.T).max() > 1e-3

def conv(x, k, precision=None):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=dims, precision=precision
    )
x, k = rng.rand(2, 8, 8, 3).astype("f"), rng.rand(3, 3, 3, 4).astype("f")
exact = conv(rounded(x), rounded(k), "highest")
np.testing.assert_allclose(conv(x, k), exact, rtol=1e-6)
assert abs(conv(x, k) - conv(x, k, "highest")).max() > 1e-3
slope = lambda p: jax.grad(lambda k: jnp.sum(conv(x, k, p) ** 2))(k)
assert abs(slope(None) / slope("highest") - 1).max() > 1e-5

exported = jax.export.export(jax.jit(jnp.matmul), platforms=["tpu"])(a, b)
assert "reduce_precision" not in exported.mlir_module()
print("rounded")
"""


def test_tpu_numerics_round_and_survive_differentiation(run_python) -> None:
    done = run_python(code="import jax.export\n" + NUMERICS)
    assert done.stdout == "rounded\n", done.stderr


def test_numerics_are_exact_unless_asked(run_python) -> None:
    code = (
        "from neurenix.simulation import simulate; simulate('v5e-1'); import jax.numpy as jnp;"
        "print(float(jnp.matmul(jnp.array([[1.001]]), jnp.eye(1))[0, 0]))"
    )
    assert abs(float(run_python(code=code).stdout) - 1.001) < 1e-6


# Steps that nobody waits for, of plain JAX and of a strategy: each has a sum over all devices.
SOAK = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from neurenix.simulation import simulate
simulate("{name}")
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
x = jax.device_put(np.ones((len(jax.devices()), 16), np.float32), split)
w = jax.device_put(np.zeros((16,), np.float32), whole)
step = jax.jit(lambda w, x: w + jnp.mean(x, axis=0), donate_argnums=0, out_shardings=whole)
assert "all-reduce" in step.lower(w, x).compile().as_text()
for _ in range(5_000):
    w = step(w, x)
print(float(w[0]), len(jax.devices()))
"""


SOAK_OF_A_STRATEGY = """
import jax, numpy as np
from flax import nnx
import neurenix as nx
nx.simulate("{name}")
strategy = nx.distribute.TPUStrategy()
with strategy.scope():
    holder = nnx.Dict(total=nnx.Variable(jax.numpy.zeros(16)))
(x,) = strategy.distribute([np.ones((len(jax.devices()), 16), np.float32)])
def step(holder, x):
    mean = nx.distribute.get_replica_context().all_reduce("mean", x[0])
    holder.total[...] += mean
    return mean
for _ in range(5_000):
    strategy.run(step, (holder, x))
print(float(holder.total[...][0]), len(jax.devices()))
"""


@pytest.mark.parametrize(
    ("code", "name"), [(SOAK_OF_A_STRATEGY, "v5e-8"), (SOAK, "v5e-32")], ids=["8", "32"]
)
def test_five_thousand_steps_in_flight(run_python, code: str, name: str) -> None:
    done = run_python(code=code.format(name=name), timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) == 5000.0
