"""Graphs inside of models, declared by the model and owned by the runner, under the names that vLLM-Omni proposes for them."""

from cgstate.integrations.model_local.deploy import read_deploy
from cgstate.integrations.model_local.interface import (
    BaseModelLocalCUDAGraphRoutine,
    ModelLocalCaptureMode,
    ModelLocalCUDAGraphComponent,
    ModelLocalCUDAGraphDescriptor,
    ModelLocalGraphHandle,
    ModelLocalRuntimeKey,
    ModelLocalRuntimeResolution,
    SupportsModelLocalCUDAGraph,
    supports_model_local_cudagraph,
)
from cgstate.integrations.model_local.manager import ModelLocalCUDAGraphManager
from cgstate.integrations.model_local.worker import ModelLocalWorkerMixin

__all__ = [
    "BaseModelLocalCUDAGraphRoutine",
    "ModelLocalCUDAGraphComponent",
    "ModelLocalCUDAGraphDescriptor",
    "ModelLocalCUDAGraphManager",
    "ModelLocalCaptureMode",
    "ModelLocalGraphHandle",
    "ModelLocalRuntimeKey",
    "ModelLocalRuntimeResolution",
    "ModelLocalWorkerMixin",
    "SupportsModelLocalCUDAGraph",
    "read_deploy",
    "supports_model_local_cudagraph",
]
