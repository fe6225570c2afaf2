"""The types of the numbers in a run folder's files, which bound what is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

LARGEST = 1e100  # largest metric: NASA's exponential score exceeds it for targets that are not lives
MOST = 10**15  # largest count, with which sums over seeds and classes stay exact


def drawable(value: object) -> object:
    """Return None for a number that is not finite or too large for an axis; other values unchanged."""
    return None if isinstance(value, float) and not abs(value) <= LARGEST else value


Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=1e30)]
Share = Annotated[float, Field(ge=0, le=1)]
OptionalShare = Annotated[Share | None, BeforeValidator(drawable)]
Loss = Annotated[Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | None, BeforeValidator(drawable)]
Figures = Literal["measured", "expected"]
Part = str | dict[str, Any] | None
Number = Annotated[float, Field(allow_inf_nan=False)]
