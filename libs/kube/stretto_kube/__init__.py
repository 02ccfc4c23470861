"""Objects of a Kubernetes namespace: applied, followed through lost watches, and one writer by a Lease."""

from .api import PODS, SECRETS, Api, Kind, Object
from .faults import KubeFault
from .lease import Election
from .reflector import Reflector
from .store import Change, Store

__all__ = ["PODS", "SECRETS", "Api", "Change", "Election", "Kind", "KubeFault", "Object", "Reflector", "Store"]
