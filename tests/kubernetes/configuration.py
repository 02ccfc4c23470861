"""Configuration of each part of the cluster: arguments and files."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from stretto_installation.access.certificates import Pair

SERVICES = "10.233.0.0/24"
API_ADDRESS = "10.233.0.1"
"""the first of SERVICES, where pods find the API server"""
DNS_ADDRESS = "10.233.0.10"
KUBECONFIG = "admin.kubeconfig"


class Ports(NamedTuple):
    api: int
    etcd: int
    etcd_peer: int
    kubelet: int
    kubelet_health: int


class Places(NamedTuple):
    """Paths of a kubelet: its folder, the engine's socket, the control group that it may use."""

    folder: Path
    engine: Path
    group: str


@dataclass(frozen=True, slots=True)
class Secrets:
    """Files of keys and rights. ``token``: grants all rights to its bearer."""

    ca: Path
    certificate: Path
    key: Path
    accounts: Path
    tokens: Path
    token: str

    @classmethod
    def in_folder(cls, folder: Path, token: str) -> Secrets:
        names = ("ca.crt", "api.crt", "api.key", "accounts.key", "tokens.csv")
        return cls(*(folder / name for name in names), token)

    def write(self, authority: Pair, server: Pair) -> None:
        self.ca.write_text(authority.certificate)
        self.certificate.write_text(server.certificate)
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        for path, text in (
            (self.key, server.key),
            (self.accounts, accounts.decode()),
            (self.tokens, f'{self.token},admin,admin,"system:masters"\n'),
        ):
            path.touch(mode=0o600)
            path.write_text(text)


def write(folder: Path, ports: Ports, secrets: Secrets, pods: str, node: str) -> dict[str, Path]:
    """The files that arguments name: ``kubeconfig``, ``proxy``, ``kubelet``."""
    return {
        "kubeconfig": _write(folder / KUBECONFIG, _kubeconfig(ports, secrets)),
        "proxy": _write(folder / "proxy.yaml", _proxy(folder, pods, node)),
        "kubelet": _write(folder / "kubelet.yaml", _kubelet(ports, secrets)),
    }


def etcd(folder: Path, ports: Ports) -> list[str]:
    clients, peers = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
    ]


def apiserver(ports: Ports, secrets: Secrets, gateway: str) -> list[str]:
    """``gateway``: this machine as pods reach it."""
    return [
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        f"--secure-port={ports.api}",
        f"--advertise-address={gateway}",
        f"--tls-cert-file={secrets.certificate}",
        f"--tls-private-key-file={secrets.key}",
        f"--token-auth-file={secrets.tokens}",
        "--authorization-mode=RBAC",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={secrets.accounts}",
        f"--service-account-signing-key-file={secrets.accounts}",
        f"--kubelet-certificate-authority={secrets.ca}",
        f"--kubelet-client-certificate={secrets.certificate}",
        f"--kubelet-client-key={secrets.key}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(files: dict[str, Path], secrets: Secrets) -> list[str]:
    return [
        f"--kubeconfig={files['kubeconfig']}",
        "--use-service-account-credentials=false",
        f"--root-ca-file={secrets.ca}",
        f"--service-account-private-key-file={secrets.accounts}",
        "--port=0",
        "--secure-port=0",
        "--leader-elect=false",
    ]


def scheduler(files: dict[str, Path]) -> list[str]:
    return [f"--kubeconfig={files['kubeconfig']}", "--port=0", "--secure-port=0", "--leader-elect=false"]


def proxy(files: dict[str, Path]) -> list[str]:
    return [f"--config={files['proxy']}"]


def kubelet(files: dict[str, Path], places: Places, address: str, node: str, pause: str) -> list[str]:
    return [
        f"--config={files['kubelet']}",
        f"--kubeconfig={files['kubeconfig']}",
        f"--docker-endpoint=unix://{places.engine}",
        f"--cgroup-root=/{places.group}",
        f"--root-dir={places.folder / 'kubelet'}",
        f"--cert-dir={places.folder / 'kubelet-pki'}",
        f"--hostname-override={node}",
        f"--node-ip={address}",
        f"--pod-infra-container-image={pause}",
    ]


def _kubeconfig(ports: Ports, secrets: Secrets) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
        "clusters": [
            {
                "name": "node",
                "cluster": {"server": f"https://127.0.0.1:{ports.api}", "certificate-authority": str(secrets.ca)},
            }
        ],
        "users": [{"name": "admin", "user": {"token": secrets.token}}],
    }


def _proxy(folder: Path, pods: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node,
        "clusterCIDR": pods,
        "clientConnection": {"kubeconfig": str(folder / KUBECONFIG)},
        "healthzBindAddress": "",
        "metricsBindAddress": "",
        # else it sets the machine's own limits
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _kubelet(ports: Ports, secrets: Secrets) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": ports.kubelet,
        "healthzPort": ports.kubelet_health,
        "tlsCertFile": str(secrets.certificate),
        "tlsPrivateKeyFile": str(secrets.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(secrets.ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        # the machine is not the node's alone: never full, and its images are never removed
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "enforceNodeAllocatable": [],
        "serializeImagePulls": False,
        "syncFrequency": "5s",
        "fileCheckFrequency": "1h",
    }


def forget_rules() -> None:
    """The iptables chains of kubelet and kube-proxy."""
    for table in ("nat", "filter", "mangle"):
        listed = subprocess.run(["iptables", "-t", table, "-S"], capture_output=True, text=True, check=False).stdout
        lines = listed.splitlines()
        chains = [line.split()[1] for line in lines if line.startswith("-N KUBE")]
        jumps = [line for line in lines if line.startswith("-A") and not line.startswith("-A KUBE") and "KUBE-" in line]
        for jump in jumps:
            _iptables(table, f"-D{jump[2:]}")
        for what in ("-F", "-X"):
            for chain in chains:
                _iptables(table, f"{what} {chain}")


def _iptables(table: str, rule: str) -> None:
    subprocess.run(["iptables", "-t", table, *shlex.split(rule)], capture_output=True, check=False)


def _write(path: Path, content: dict[str, Any]) -> Path:
    """JSON is YAML."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
    return path
