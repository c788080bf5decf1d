"""What the adapter itself refuses."""

from __future__ import annotations

from collections.abc import Iterable

from cgstate.errors import CGStateError


class UnsupportedRelease(CGStateError):
    """This release of vLLM lacks names that the adapter needs; nothing of vLLM was changed.

    Attributes:
        version: The release, as vLLM tells it.
        missing: What was looked for and not found, as dotted names.
    """

    def __init__(self, version: str, missing: Iterable[str]) -> None:
        self.version = version
        self.missing = tuple(missing)
        super().__init__(version, self.missing)

    def __str__(self) -> str:
        return (
            f"vLLM {self.version} cannot be used with cgstate: {', '.join(self.missing)} not found. "
            "Its V2 CUDA graph manager is supported in the shapes of vLLM 0.26, 0.29 and 0.33; set CGSTATE_VLLM=0 to go without"
        )
