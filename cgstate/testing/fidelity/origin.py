"""Where and when something was recorded."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, fields

from cgstate.errors import ConfigError
from cgstate.testing.machine import Machine


@dataclass(frozen=True, slots=True)
class Origin:
    """A device, its software, and a moment.

    Attributes:
        date: When, in UTC, as ISO 8601.
        device: The GPU's name.
        driver: The driver's version.
        torch: torch's version.
        python: Python's version.
        commit: The commit of this library that recorded it.
    """

    date: str
    device: str
    driver: str
    torch: str
    python: str
    commit: str

    @classmethod
    def here(cls, commit: str) -> Origin:
        """This machine, now."""
        machine = Machine.here()
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(date, machine.device, machine.driver, machine.torch, machine.python, commit)

    @classmethod
    def from_json(cls, document: object) -> Origin:
        """The origin that `to_json` gave.

        Raises:
            ConfigError: not such a document.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(document, dict) or any(not isinstance(document.get(name), str) for name in names):
            raise ConfigError(f"an origin needs the texts {', '.join(names)}")
        return cls(**{name: document[name] for name in names})

    def to_json(self) -> dict[str, object]:
        """As it is stored."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.device}, driver {self.driver}, torch {self.torch}, {self.date[:10]}"
