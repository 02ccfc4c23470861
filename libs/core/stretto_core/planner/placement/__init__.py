"""Layers to types of devices: cost model, provisioning and the proven optimum (HeterPS)."""

from stretto_core.planner.placement.optimum import exact as exact
from stretto_core.planner.placement.problem import DeviceType as DeviceType
from stretto_core.planner.placement.problem import Layer as Layer
from stretto_core.planner.placement.problem import Learned as Learned
from stretto_core.planner.placement.problem import LearningAlgorithm as LearningAlgorithm
from stretto_core.planner.placement.problem import Placement as Placement
from stretto_core.planner.placement.problem import PlacementAlgorithm as PlacementAlgorithm
from stretto_core.planner.placement.problem import PlacementProblem as PlacementProblem
from stretto_core.planner.placement.problem import Stage as Stage
from stretto_core.planner.placement.provisioning import provision as provision
