"""Objects of a Kubernetes namespace: apply them, follow them through lost watches, elect one writer by a Lease."""

from kubernetes.utils.quantity import parse_quantity

from .api import PODS, SECRETS, STRATEGIC, Api, Kind, Object
from .faults import KubeFault
from .lease import Election
from .reflector import Reflector
from .store import ObjectChange, ObjectView

__all__ = [
    "PODS",
    "SECRETS",
    "STRATEGIC",
    "Api",
    "Election",
    "Kind",
    "KubeFault",
    "Object",
    "ObjectChange",
    "ObjectView",
    "Reflector",
    "parse_quantity",
]
