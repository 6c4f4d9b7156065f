"""The classes of models, by the names that checkpoints know them by."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

MODELS: dict[str, type[nn.Module]] = {}
"""The registered model classes by name."""

ModelClass = TypeVar("ModelClass", bound=type[nn.Module])


def register(cls: ModelClass) -> ModelClass:
    """Class decorator: make a model class known to checkpoints by its ``name``.

    The class is constructed from one argument, ``config``, annotated with a frozen dataclass.

    Raises:
        ValueError: If another class has the name already.
    """
    name = str(cls.name)  # type: ignore[attr-defined]
    # A module that is loaded anew, as notebooks do, registers the same class again.
    if name in MODELS and MODELS[name].__qualname__ != cls.__qualname__:
        raise ValueError(f"name must be new, got {name!r}, which is {MODELS[name].__qualname__}.")
    MODELS[name] = cls
    return cls
