"""The machine at hand, for what is measured on it."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and its software.

    Attributes:
        device: The GPU's name.
        driver: The driver's version.
        torch: torch's version.
        python: Python's version.
    """

    device: str
    driver: str
    torch: str
    python: str

    @classmethod
    def here(cls) -> Machine:
        """This machine, by its first GPU."""
        import torch

        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        return cls(torch.cuda.get_device_name(0), driver, torch.__version__, platform.python_version())


def commit() -> str:
    """The commit of the checkout at hand; empty where there is none."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return head.stdout.strip()
