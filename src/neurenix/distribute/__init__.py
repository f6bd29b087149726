"""Strategies, replicas and meshes, which run one program on many devices."""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix.distribute.batch_input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    PerReplicaDataset,
)
from neurenix.distribute.cluster import TPUClusterResolver
from neurenix.distribute.mesh import DATA_AXIS, data_mesh
from neurenix.distribute.replica import (
    ReplicaContext,
    compute_average_loss,
    get_replica_context,
)
from neurenix.distribute.rules import ShardingRules, constrain
from neurenix.distribute.strategy import (
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
    auto,
    get_strategy,
)
from neurenix.distribute.values import PerReplica

__all__ = [
    "DATA_AXIS",
    "DistributedDataset",
    "DistributedIterator",
    "InputContext",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
    "PerReplicaDataset",
    "ReplicaContext",
    "ShardingRules",
    "Strategy",
    "TPUClusterResolver",
    "TPUStrategy",
    "auto",
    "compute_average_loss",
    "constrain",
    "data_mesh",
    "get_replica_context",
    "get_strategy",
]

# Names of TensorFlow, PyTorch and JAX, and the names here.
_ELSEWHERE = {
    "DataParallel": "distribute.MirroredStrategy",
    "DeviceMesh": "jax.sharding.Mesh, or distribute.data_mesh",
    "DistributedDataParallel": "distribute.MirroredStrategy, or distribute.auto",
    "FullyShardedDataParallel": "distribute.ShardingRules, of a strategy",
    "Mesh": "jax.sharding.Mesh, or distribute.data_mesh",
    "ModelParallel": "distribute.ShardingRules, of a strategy",
    "MultiWorkerMirroredStrategy": "distribute.MirroredStrategy, after jax.distributed.initialize",
    "NamedSharding": "jax.sharding.NamedSharding",
    "PartitionSpec": "jax.sharding.PartitionSpec",
    "all_reduce": "distribute.get_replica_context().all_reduce(op, value)",
    "cluster_resolver": "distribute.TPUClusterResolver",
    "get_rank": "jax.process_index",
    "get_world_size": "jax.process_count",
    "init_process_group": "jax.distributed.initialize",
    "initialize": "jax.distributed.initialize",
}

if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)
