"""Keep the program offline: trackers write local files, hubs are not contacted, and sockets reach only loopback.

environment ──> variables to set
where the kernel cannot disable the network ──> Python's sockets refuse to connect to other machines and to look them up
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["NETWORK_IS_OFF", "cut_sockets", "offline_environment"]

NETWORK_IS_OFF = "the network is off in a dry run: add --network-access if the script needs it"

# Experiment trackers: a dry run is not an experiment, even if the network may be used.
_TRACKERS = {
    "WANDB_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
_OFF_ALREADY = {"offline", "disabled", "dryrun"}
# Hubs: a file that is not in their cache fails immediately, instead of after minutes of retries.
_HUBS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
}
_LOCAL_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost", ""}


def offline_environment(environment: Mapping[str, str], is_network_allowed: bool) -> dict[str, str]:
    """The variables to set; a variable that the user already set to an offline mode stays."""
    chosen = {name: value for name, value in _TRACKERS.items() if environment.get(name) not in _OFF_ALREADY}
    if environment.get("MLFLOW_TRACKING_URI", "").partition(":")[0] not in ("", "file", "sqlite"):
        chosen["MLFLOW_TRACKING_URI"] = "file:mlruns"
    if not is_network_allowed:
        chosen |= _HUBS | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    return chosen


def cut_sockets() -> None:
    """Make Python's sockets refuse other machines; libraries that open sockets themselves are not affected."""
    for name in ("connect", "connect_ex"):
        setattr(
            socket.socket, name, _only_loopback(getattr(socket.socket, name), is_code=name == "connect_ex")
        )
    socket.getaddrinfo = _only_local_names(socket.getaddrinfo)


def _only_loopback(original: Callable[..., Any], is_code: bool) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            if is_code:
                return errno.ENETUNREACH
            raise OSError(errno.ENETUNREACH, NETWORK_IS_OFF)
        return original(self, address)

    return connect


def _only_local_names(original: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if not _is_here(host) and not _is_number(host):  # a numeric address needs no lookup
            raise socket.gaierror(socket.EAI_AGAIN, NETWORK_IS_OFF)
        return original(host, *args, **options)

    return getaddrinfo


def _is_here(host: Any) -> bool:
    if host is None:
        return True
    name = _text(host)
    if name in _LOCAL_NAMES or name == socket.gethostname():
        return True
    if not _is_number(host):
        return False
    address = ipaddress.ip_address(name.partition("%")[0])
    return address.is_loopback or address.is_unspecified


def _is_number(host: Any) -> bool:
    try:
        ipaddress.ip_address(_text(host).partition("%")[0])
    except ValueError:
        return False
    return True


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)
