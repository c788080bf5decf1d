"""The errors of the simulated device: one tree that mimics the real one, so that a handler written for it sees the same shapes.

Ground floor of the room: imports nothing from it. `torch.OutOfMemoryError` and `torch.AcceleratorError` are `RuntimeError`s too.
"""

from __future__ import annotations

ILLEGAL_HANDLE = 400
ILLEGAL_STATE = 401
ILLEGAL_ADDRESS = 700
DEVICE_ASSERT = 710
NOT_PERMITTED = 800
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_MERGE = 902
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATION = 905
CAPTURED_EVENT = 907
CAPTURE_WRONG_THREAD = 908

_MESSAGES = {
    ILLEGAL_HANDLE: "invalid resource handle",
    ILLEGAL_STATE: "the operation cannot be performed in the present state",
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    DEVICE_ASSERT: "device-side assert triggered",
    NOT_PERMITTED: "operation not permitted",
    CAPTURE_UNSUPPORTED: "operation not permitted when stream is capturing",
    CAPTURE_INVALIDATED: "operation failed due to a previous error during capture",
    CAPTURE_MERGE: "operation would result in a merge of separate capture sequences",
    CAPTURE_UNJOINED: "capturing stream has unjoined work",
    CAPTURE_ISOLATION: "dependency created on uncaptured work in another stream",
    CAPTURED_EVENT: "operation not permitted on an event last recorded in a capturing stream",
    CAPTURE_WRONG_THREAD: "attempt to terminate a thread-local capture sequence from another thread",
}


class SimError(RuntimeError):
    """Anything that the simulated device, its allocator or its libraries refuse."""


class SimOutOfMemory(SimError):
    """No memory, even after unused cached memory was given back where that was allowed (fact F6)."""


class SimAcceleratorError(SimError):
    """An error code of the device.

    Attributes:
        error_code: The code, as the real runtime numbers it.
    """

    def __init__(self, error_code: int, what: str = "") -> None:
        """``what`` was refused, where the code alone does not say."""
        super().__init__(f"device error {error_code}: {_MESSAGES[error_code]}{what and f' ({what})'}")
        self.error_code = error_code

    @property
    def sticky(self) -> bool:
        """Whether the context is lost with it (fact F7)."""
        return self.error_code in (ILLEGAL_ADDRESS, DEVICE_ASSERT)


class SimInternalAssert(SimError):
    """An assertion of the allocator: a pool was opened after its last use was given back (fact P1)."""


class SimRecordingError(SimError):
    """The allocator is recording into that pool already, or still: an earlier capture was never ended (fact F5)."""

    def __init__(self) -> None:
        super().__init__("beginAllocateToPool: already recording to mempool_id")


class SimGeneratorError(SimError):
    """A random number was asked for while the generator believes in a capture that this stream is not part of (F2, P2, S2)."""

    def __init__(self) -> None:
        super().__init__("Offset increment outside graph capture encountered unexpectedly.")


class SimLibraryError(SimError):
    """A library could not make its handle inside a capture (fact F8)."""

    def __init__(self) -> None:
        super().__init__("the library is not initialized: it cannot create its handle while the stream is capturing")


class SimUnrecordable(SimError):
    """An operation of torch that the recorder cannot note so that a replay would do the same.

    Attributes:
        operation: Its name.
    """

    def __init__(self, operation: str, why: str) -> None:
        super().__init__(f"{operation} cannot be recorded: {why}")
        self.operation = operation


class SimMemoryError(SimError):
    """The simulator's own detector: memory was used that its user no longer owns. The hardware stays silent here (fact W2)."""


class DeviceFault(Exception):
    """Raised by a kernel while it runs; the device turns it into the lost context of fact F7. Never reaches the host."""

    def __init__(self, error_code: int) -> None:
        super().__init__(error_code)
        self.error_code = error_code
