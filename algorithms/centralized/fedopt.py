"""FedAvgM, FedAdam, FedYogi, FedAdagrad: federated averaging with a server optimizer.

FedAvgM: Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, https://arxiv.org/abs/1909.06335. The others: Reddi, Charles, Zaheer, Garrett, Rush, Konecny,
Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.

===================  =========================================================
paper                here
===================  =========================================================
x_t, Delta_t         ``state.x``, the mean increment
m_t, v_t             ``state.x_m``, ``state.x_v``; v begins at tau^2
eta_l, eta           ``lr``, ``server_lr``
beta (FedAvgM)       ``server_momentum``
beta_1, beta_2       ``server_momentum``, ``server_beta2``
tau                  ``server_tau``
===================  =========================================================

Travels: as FedAvg.

Deviations: clients are weighted by their samples, as in FedAvg. Both papers choose step sizes by a grid search for
every task; the defaults of ``lr`` and ``server_lr`` are ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from algorithms.centralized.fedavg import FedAvg
from harness.core import Meta, register
from harness.core.steps import ServerOptimizer

HSU = "https://arxiv.org/abs/1909.06335"
REDDI = "https://arxiv.org/abs/2003.00295"


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum at the server."""

    meta: ClassVar = Meta("fedavgm", "centralized", ("erm",), "Hsu et al. 2019", HSU, chunks=True)

    server_optimizer: ServerOptimizer = "momentum"


@register
@dataclass(frozen=True, kw_only=True)
class FedAdam(FedAvg):
    """FedAvg with Adam at the server."""

    meta: ClassVar = Meta("fedadam", "centralized", ("erm",), "Reddi et al. 2021", REDDI, chunks=True)

    server_optimizer: ServerOptimizer = "adam"
    server_lr: float = 0.1


@register
@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAvg):
    """FedAvg with Yogi at the server."""

    meta: ClassVar = Meta("fedyogi", "centralized", ("erm",), "Reddi et al. 2021", REDDI, chunks=True)

    server_optimizer: ServerOptimizer = "yogi"
    server_lr: float = 0.1


@register
@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad at the server, without a first moment."""

    meta: ClassVar = Meta("fedadagrad", "centralized", ("erm",), "Reddi et al. 2021", REDDI, chunks=True)

    server_optimizer: ServerOptimizer = "adagrad"
    server_lr: float = 0.1
    server_momentum: float = 0.0
