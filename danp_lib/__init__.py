"""Diffusion-augmented neural processes: the library behind the book of the same name."""

from importlib.metadata import version

from danp_lib.data.generators import GaussianProcess, Sawtooth, SquareWave
from danp_lib.data.noising import NoiseSchedule
from danp_lib.data.observations import Observations
from danp_lib.data.points import PointSet, Task
from danp_lib.data.scaling import Scaling
from danp_lib.data.tables import from_csv
from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.fitting.fit import fit
from danp_lib.fitting.fitted import load_fitted
from danp_lib.fitting.prediction import predict_table
from danp_lib.fitting.scoring import score_records
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP, ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.pretrained import load_pretrained
from danp_lib.training.loop import train

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
    "Observations",
    "PointSet",
    "Sawtooth",
    "Scaling",
    "SquareWave",
    "Task",
    "fit",
    "from_csv",
    "load_fitted",
    "load_pretrained",
    "log_likelihood",
    "predict_table",
    "score_records",
    "train",
]
