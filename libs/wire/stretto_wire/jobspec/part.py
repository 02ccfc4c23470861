"""The base of every part of a specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.annotated_handlers import GetCoreSchemaHandler


class Spec(BaseModel):
    """A part of a specification; strict, closed and immutable.

    Its validator is built when a document is first read: a default is written with ``model_construct``, since a call of
    the class would build it at the import, which every command and notebook waits for.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        strict=True,
        json_schema_serialization_defaults_required=True,
        defer_build=True,
    )


@dataclass(frozen=True, slots=True)
class FromMapping:
    """Accepts a mapping for a message value, whose strict mode would demand an instance. Its fields stay strict."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the value's schema, which also reads mappings."""
        schema: dict[str, Any] = dict(handler.resolve_ref_schema(handler(source)))
        schema.pop("ref", None)
        return {**schema, "strict": False}
