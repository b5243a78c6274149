"""Objects whose attributes stay as they were made."""

from typing import Any, NoReturn


class Immutable:
    """The constructor sets attributes by ``object.__setattr__``; afterwards none can be set or deleted."""

    __slots__ = ()

    _instead: str  # what to do instead

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name, "set")

    def __delattr__(self, name: str) -> None:
        self._refuse(name, "deleted")

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be {what}; {self._instead}")
