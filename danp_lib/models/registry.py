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
    """The dataclass that a model of this name is constructed from."""
    return get_type_hints(MODELS[model].__init__)["config"]
