"""Models of ``transformers``, built from their configuration alone: no weights are read."""

from neurenix.interop.hugging_face.config import load_config
from neurenix.interop.hugging_face.kinds import KINDS, Kind, kind_of
from neurenix.interop.hugging_face.workload import workload_of

__all__ = ["KINDS", "Kind", "kind_of", "load_config", "workload_of"]
