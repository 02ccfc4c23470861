"""Objects of a Kubernetes namespace: apply them, follow them through lost watches, elect one writer by a Lease."""

from kubernetes.utils.quantity import parse_quantity

from .api import PODS, SECRETS, STRATEGIC, Api, Kind, Object
from .faults import KubeFault
from .lease import Election
from .reflector import Reflector
from .store import Change, Store

__all__ = [
    "PODS",
    "SECRETS",
    "STRATEGIC",
    "Api",
    "Change",
    "Election",
    "Kind",
    "KubeFault",
    "Object",
    "Reflector",
    "Store",
    "parse_quantity",
]
