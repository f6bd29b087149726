"""Strategies, replicas and the mesh: how one program uses many devices."""

from neurenix.distribute.cluster import TPUClusterResolver
from neurenix.distribute.input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    PerReplicaDataset,
)
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
