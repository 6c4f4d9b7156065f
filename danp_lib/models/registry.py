"""The classes of models, by the names that checkpoints and commands know them by."""

from typing import Any, get_type_hints

from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP
from danp_lib.models.danp import DANP

# A class's own name: that of its base class would stand for the base class no more.
MODELS: dict[str, type[Any]] = {
    vars(cls)["name"]: cls for cls in (DANP, ConvCNP, ConvGNP, ARConvCNP)
}
"""Each a :class:`~danp_lib.models.base.NeuralProcess` that is constructed from one argument,
``config``, annotated with a frozen dataclass."""


def config_class(model: str) -> type[Any]:
    """The dataclass that a model of this name is constructed from.

    Raises:
        ValueError: If the model does not say it.
    """
    found = get_type_hints(MODELS[model].__init__).get("config")
    if found is None:
        raise ValueError(
            f"config of {MODELS[model].__name__}.__init__ must be annotated with its dataclass, "
            "got no annotation."
        )
    return found


def check_config(model: str, config: object) -> None:
    """Refuse what a model of this name is not constructed from."""
    if not isinstance(config, expected := config_class(model)):
        raise ValueError(f"config of a {model} must be a {expected.__name__}, got {config!r}.")
