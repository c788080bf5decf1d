"""What can be chosen about a simulated device: its size, its seed, and the rules that differ between releases of torch."""

from __future__ import annotations

from dataclasses import dataclass

from cgstate.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class SimConfig:
    """The device's data sheet. Sizes are scaled down: a MiB of the real device is a KiB here (see `memory`).

    Attributes:
        capacity_bytes: Memory of the device, in bytes.
        workspace_bytes: Size of one library workspace, in bytes (32 MiB on the chip that was measured, fact W1).
        seed: First seed of the default generator.
        sanitize: True: use of memory that was given back raises `SimMemoryError`. False: it corrupts, or loses the context, as
            on the hardware (fact W2).
        clear_workspaces_on_destroy: Newer releases: destroying a graph frees the workspaces of its capture stream (fact W2).
        release_pool_on_destroy: Newer releases: destroying a graph whose capture failed gives its pool use back (fact F4).
    """

    capacity_bytes: int = 64 * MIB
    workspace_bytes: int = 32 * KIB
    seed: int = 0
    sanitize: bool = True
    clear_workspaces_on_destroy: bool = False
    release_pool_on_destroy: bool = False

    def __post_init__(self) -> None:
        if self.capacity_bytes <= 0 or self.workspace_bytes < 8:
            raise ConfigError("the simulated device needs a positive capacity and a workspace of at least one 8-byte cell")
