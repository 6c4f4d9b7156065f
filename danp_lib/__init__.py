"""Diffusion-augmented neural processes: the library behind the book of the same name."""

from importlib.metadata import version

from danp_lib.convnp import ConvCNP, ConvGNP, ConvNPConfig
from danp_lib.danp import DANP, DANPConfig
from danp_lib.estimators import log_likelihood
from danp_lib.generators import GaussianProcess, Sawtooth, SquareWave
from danp_lib.likelihoods import DiagonalNormal, LowRankNormal
from danp_lib.likelihoods_mixture import Mixture
from danp_lib.noising import NoiseSchedule
from danp_lib.pretrained import load_pretrained
from danp_lib.rollout import ARConvCNP
from danp_lib.tasks import PointSet, Task

__version__ = version("danp_lib")

__all__ = [
    "DANP",
    "ARConvCNP",
    "ConvCNP",
    "ConvGNP",
    "ConvNPConfig",
    "DANPConfig",
    "DiagonalNormal",
    "GaussianProcess",
    "LowRankNormal",
    "Mixture",
    "NoiseSchedule",
    "PointSet",
    "Sawtooth",
    "SquareWave",
    "Task",
    "load_pretrained",
    "log_likelihood",
]
