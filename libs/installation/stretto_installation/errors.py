"""Errors about an installation. Each text says what failed, with which value, and what to do."""

from __future__ import annotations

import errno


class InstallationError(Exception):
    """An installation cannot be started, ended or read. The text names the failure, the value and the remedy."""

    status = 1
    """Exit status of a process that ends with this error."""


class UnusableOption(InstallationError):
    """An option or a setting of an installation cannot be used."""

    status = 2


class ForeignStore(InstallationError):
    """The store of the bus is another than this installation has had; nothing was made or changed in it."""


class NotRunning(InstallationError):
    """No installation runs in the folder."""


class BackupError(InstallationError):
    """A backup cannot be taken or restored; nothing of the installation was changed unless the text says so."""


def sentence_of(error: OSError, option: str = "--folder") -> str:
    """Turn an error of the operating system into a sentence. ``option``: the option that names the place."""
    home = ", or HOME," if option == "--folder" else ""
    remedies = {
        errno.ENOSPC: f"make room, or choose another {option}",
        errno.EDQUOT: f"make room, or choose another {option}",
        errno.ENOENT: f"choose a {option} that can be created",
        errno.EROFS: f"choose a {option}{home} that is writable",
        errno.EACCES: f"choose a {option} that is yours",
        errno.EPERM: f"choose a {option} that is yours",
        errno.ENOTDIR: f"choose a {option} that is not below a file",
        errno.EEXIST: f"choose a {option} that is not a file",
        errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    }
    place = f"{error.filename}: " if error.filename else ""
    remedy = remedies.get(error.errno or 0, "see the logs in the folder, if there are any")
    return f"{place}{error.strerror or type(error).__name__}; {remedy}"
