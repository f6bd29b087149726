"""Neurenix: deep learning with one programming model for every accelerator.

Public names are imported from their modules on first use (:pep:`562`), so ``import neurenix`` is
fast and starts no backend. Array functions are listed in ``neurenix.tensor``, all others here.

Example:
    >>> import neurenix as nx
    >>> model = nx.nn.Sequential(nx.nn.Linear(4, 8), nx.nn.ReLU(), nx.nn.Linear(8, 2))
    >>> model(nx.zeros((3, 4))).shape
    (3, 2)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from neurenix._core.names import MissingAttributeError
from neurenix._migration import top_level

if TYPE_CHECKING:  # for editors and type checkers; a test compares it with _EXPORTS
    from neurenix import callbacks as callbacks
    from neurenix import chips as chips
    from neurenix import data as data
    from neurenix import distribute as distribute
    from neurenix import hardware as hardware
    from neurenix import losses as losses
    from neurenix import metrics as metrics
    from neurenix import models as models
    from neurenix import nn as nn
    from neurenix import optim as optim
    from neurenix import random as random
    from neurenix import train as train
    from neurenix._core.errors import ArgumentError as ArgumentError
    from neurenix._core.errors import ArgumentTypeError as ArgumentTypeError
    from neurenix._core.errors import ArtefactError as ArtefactError
    from neurenix._core.errors import CheckpointError as CheckpointError
    from neurenix._core.errors import CompilationError as CompilationError
    from neurenix._core.errors import ConversionError as ConversionError
    from neurenix._core.errors import DataError as DataError
    from neurenix._core.errors import DeviceError as DeviceError
    from neurenix._core.errors import DeviceInitializationError as DeviceInitializationError
    from neurenix._core.errors import DeviceNotFoundError as DeviceNotFoundError
    from neurenix._core.errors import IncompatibleVersionError as IncompatibleVersionError
    from neurenix._core.errors import MissingExtraError as MissingExtraError
    from neurenix._core.errors import ModuleInUseError as ModuleInUseError
    from neurenix._core.errors import NeurenixError as NeurenixError
    from neurenix._core.errors import NotCompiledError as NotCompiledError
    from neurenix._core.errors import OutOfMemoryError as OutOfMemoryError
    from neurenix._core.errors import RecompilationError as RecompilationError
    from neurenix._core.errors import ShapeError as ShapeError
    from neurenix._core.errors import SimulationError as SimulationError
    from neurenix._core.errors import TrainingDivergedError as TrainingDivergedError
    from neurenix._core.errors import UnknownNameError as UnknownNameError
    from neurenix._jit.recompilation import RecompilationWarning as RecompilationWarning
    from neurenix.compiler.load_compiled import LoadedProgram as LoadedProgram
    from neurenix.compiler.load_compiled import load_compiled as load_compiled
    from neurenix.device import Device as Device
    from neurenix.device import DeviceType as DeviceType
    from neurenix.device import device as device
    from neurenix.device import device_of as device_of
    from neurenix.device import devices as devices
    from neurenix.device import to as to
    from neurenix.interop.onnx import from_onnx as from_onnx
    from neurenix.interop.onnx import register_onnx_op as register_onnx_op
    from neurenix.interop.onnx import to_onnx as to_onnx
    from neurenix.interop.torch import from_torch as from_torch
    from neurenix.interop.torch import register_torch_op as register_torch_op
    from neurenix.interop.torch import to_torch as to_torch
    from neurenix.preflight import compile_for as compile_for
    from neurenix.preflight import spec as spec
    from neurenix.preflight.namespace import preflight as preflight
    from neurenix.random import FrozenDrawWarning as FrozenDrawWarning
    from neurenix.random import seed as seed
    from neurenix.simulation import SimulatedSlice as SimulatedSlice
    from neurenix.simulation import simulate as simulate
    from neurenix.simulation import simulated as simulated
    from neurenix.tensor import *  # noqa: F403  it has __all__
    from neurenix.tensor.creation import tensor as tensor
    from neurenix.train import History as History
    from neurenix.train import Optimizer as Optimizer
    from neurenix.train import Trainer as Trainer
    from neurenix.transforms import grad as grad
    from neurenix.transforms import jit as jit
    from neurenix.transforms import multi_step as multi_step
    from neurenix.transforms import value_and_grad as value_and_grad

__version__ = "0.1.0"

# Public modules. ``device``, ``preflight`` and ``tensor`` are callable.
_MODULES = (
    "callbacks chips data device distribute hardware losses metrics models nn optim preflight "
    "random tensor train"
).split()

_EXPORTS = {
    "neurenix._core.errors": (
        "ArgumentError ArgumentTypeError ArtefactError CheckpointError CompilationError "
        "ConversionError DataError "
        "DeviceError DeviceInitializationError DeviceNotFoundError IncompatibleVersionError "
        "MissingExtraError ModuleInUseError "
        "NeurenixError NotCompiledError OutOfMemoryError RecompilationError ShapeError "
        "SimulationError TrainingDivergedError UnknownNameError"
    ),
    "neurenix._jit.recompilation": "RecompilationWarning",
    "neurenix.compiler.load_compiled": "LoadedProgram load_compiled",
    "neurenix.device": "Device DeviceType device_of devices to",
    "neurenix.interop.onnx": "from_onnx register_onnx_op to_onnx",
    "neurenix.interop.torch": "from_torch register_torch_op to_torch",
    "neurenix.preflight": "compile_for spec",
    "neurenix.random": "FrozenDrawWarning seed",
    "neurenix.simulation": "SimulatedSlice simulate simulated",
    "neurenix.train": "History Optimizer Trainer",
    "neurenix.transforms": "grad jit multi_step value_and_grad",
}
_OWNER_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}


def _loaded(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"neurenix.{name}")
    if name == "__all__":
        value = ["__version__", *_MODULES, *_OWNER_OF, *_tensor_names()]
    elif name.startswith("_"):
        raise AttributeError(f"module 'neurenix' has no attribute {name!r}")
    elif name in _OWNER_OF:
        value = getattr(importlib.import_module(_OWNER_OF[name]), name)
    elif name in _tensor_names():
        value = getattr(importlib.import_module("neurenix.tensor"), name)
    else:
        raise MissingAttributeError("module 'neurenix'", name, _public_names, top_level.names)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # for type checkers, a name not listed above is an error
    __getattr__ = _loaded


def __dir__() -> list[str]:
    return sorted(_public_names())


def _public_names() -> list[str]:
    return _loaded("__all__")


def _tensor_names() -> list[str]:
    return importlib.import_module("neurenix.tensor").__all__
