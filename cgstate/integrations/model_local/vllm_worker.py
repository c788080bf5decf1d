"""vLLM's GPU worker with model-local graphs: ``--worker-cls cgstate.integrations.model_local.vllm_worker.ModelLocalWorker``.

Importing this module imports vLLM. It serves both of vLLM's runners, since the hooks are the worker's.
"""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from cgstate.integrations.model_local.worker import ModelLocalWorkerMixin

__all__ = ["ModelLocalWorker"]


class ModelLocalWorker(ModelLocalWorkerMixin, Worker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's worker; components are configured by ``additional_config``, or by vLLM-Omni's ``model_config``."""
