"""Everything that reaches the authorization server is read strictly, and all that it keeps has a bound.

`Parameters` are those of one request, `OAuthError` is the refusal of one, and an `ExpiringTable` is the only kind of
memory that the server has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

__all__ = ["ExpiringTable", "OAuthError", "Parameters"]

# Parameters of one request; an authorization request has about ten.
MAX_PARAMETERS = 64
# Characters of one parameter. An assertion is the longest: two keys and some claims.
MAX_VALUE = 16 * 1024

# RFC 6749 section 4.1.2.1: the characters of an ``error_description``.
_NOT_DESCRIBING = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")

V = TypeVar("V")


class OAuthError(Exception):
    """The refusal of a request, as RFC 6749 section 5.2 has it.

    Args:
        error: The code of the error.
        description: An explanation for the developer of the client. It may repeat what the request said, and never a
            secret; characters that a description must not have are replaced.
        status: The HTTP status.
        headers: Further headers of the response.
    """

    def __init__(
        self, error: str, description: str, *, status: int = 400, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.error = error
        self.description = _NOT_DESCRIBING.sub("?", description.replace('"', "'"))
        self.status = status
        self.headers = tuple(headers)
        super().__init__(f"{error}: {self.description}")

    def body(self) -> dict[str, str]:
        """Returns the JSON object of the response."""
        return {"error": self.error, "error_description": self.description}


class Parameters:
    """The parameters of one request. Each may be given once, and one without a value was not given (OAuth 2.1).

    Args:
        pairs: The names and values, decoded, in their order.

    Raises:
        OAuthError: A value is too long.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if len(value) > MAX_VALUE:
                raise OAuthError("invalid_request", "a parameter is too long")
            if value:
                self._values.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        return f"<Parameters {', '.join(self._values)}>"

    @classmethod
    def read(cls, text: str) -> Parameters:
        """Returns the parameters of a query or of a form.

        Raises:
            OAuthError: There are too many, or it is not in UTF-8.
        """
        try:
            return cls(
                parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
            )
        except ValueError:
            raise OAuthError("invalid_request", "the parameters cannot be read") from None

    def get(self, name: str) -> str | None:
        """Returns a parameter, ``None`` without it.

        Raises:
            OAuthError: It was given twice.
        """
        values = self._values.get(name, ())
        if len(values) > 1:
            raise OAuthError("invalid_request", f"{name} is given twice")
        return values[0] if values else None

    def require(self, name: str) -> str:
        """Returns a parameter.

        Raises:
            OAuthError: It is missing, or was given twice.
        """
        value = self.get(name)
        if value is None:
            raise OAuthError("invalid_request", f"{name} is missing")
        return value

    def all(self, name: str) -> Sequence[str]:
        """Returns every value of a parameter that may be repeated."""
        return tuple(self._values.get(name, ()))


class ExpiringTable(Generic[V]):
    """Values by key, each for the same time. A full table forgets the oldest value.

    Args:
        limit: The number of values.
        lifetime: Seconds for which a value is kept.
        now: Returns the seconds since the epoch.
    """

    def __init__(self, limit: int, lifetime: float, now: Callable[[], float]) -> None:
        self._limit = limit
        self._lifetime = lifetime
        self._now = now
        # In the order in which they expire, because all live equally long.
        self._values: dict[str, tuple[float, V]] = {}

    def __repr__(self) -> str:
        return f"<ExpiringTable {len(self)} of {self._limit}>"

    def __len__(self) -> int:
        self._forget_expired()
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the next new value takes the place of another one."""
        return len(self) >= self._limit

    def put(self, key: str, value: V) -> None:
        """Keeps a value, from now on; one that is there under the same key is replaced."""
        self._values.pop(key, None)
        if self.is_full:
            del self._values[next(iter(self._values))]
        self._values[key] = self._now() + self._lifetime, value

    def get(self, key: str) -> V | None:
        """Returns a value, ``None`` if there is none or its time is over."""
        self._forget_expired()
        found = self._values.get(key)
        return None if found is None else found[1]

    def renew(self, key: str) -> None:
        """Keeps a value that is there as if it had been put now."""
        value = self.get(key)
        if value is not None:
            self.put(key, value)

    def pop(self, key: str) -> V | None:
        """Forgets a value and returns it, ``None`` if there is none."""
        value = self.get(key)
        self._values.pop(key, None)
        return value

    def _forget_expired(self) -> None:
        now = self._now()
        while self._values:
            key, (until, _) = next(iter(self._values.items()))
            # A clock that was set back lets nothing live longer than its lifetime from now.
            if now < until <= now + self._lifetime:
                return
            del self._values[key]
