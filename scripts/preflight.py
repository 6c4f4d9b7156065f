"""Say in one sentence why an install cannot work, before it starts and after it has failed.

Runs under whatever Python the reader has, the too old ones included, so it uses nothing newer than
Python 3.3.
"""

import os
import platform
import shutil
import sys
import tempfile

# Installed, .venv takes 2.1 GB with PyTorch's CPU build and 6.4 GB with the CUDA one, which Linux
# gets unless TORCH_BACKEND says otherwise; the rest is for the downloads, unpacked beside it.
CPU_GB = 3.0
CUDA_GB = 10.0
LOG = os.path.join(".venv", "install.log")


def needed_gb() -> float:
    """Return the free space to ask for, in GB."""
    if os.environ.get("NEEDED_GB"):
        return float(os.environ["NEEDED_GB"])
    cuda = platform.system() == "Linux" and os.environ.get("TORCH_BACKEND", "") != "cpu"
    return CUDA_GB if cuda else CPU_GB


def free_gb(folder: str) -> float:
    """Return the free space where `folder` lies, in GB."""
    return shutil.disk_usage(folder).free / 1e9


def before() -> "str | None":
    """Return what stands in the way of an install, or None."""
    if sys.version_info < (3, 11):
        return (
            "Python 3.11 or newer is needed and {} is {}: install a newer one and name it, as in "
            "make book PYTHON=/path/to/python3.12"
        ).format(sys.executable, platform.python_version())
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            "{} cannot make virtual environments: install its venv module (on Debian and Ubuntu: "
            "apt install python3-venv)"
        ).format(sys.executable)
    if free_gb(".") < needed_gb():
        smaller = ", or, where there is no GPU, use the smaller build with TORCH_BACKEND=cpu"
        return (
            "The disk has {:.1f} GB free here and the install needs {:.0f} GB: make room{}".format(
                free_gb("."),
                needed_gb(),
                "" if os.environ.get("TORCH_BACKEND") == "cpu" else smaller,
            )
        )
    return None


def after() -> str:
    """Return why an install that has just failed did so, as far as its log tells."""
    log = ""
    if os.path.exists(LOG):
        with open(LOG, errors="replace") as file:
            log = file.read()
    if "No space left on device" in log or free_gb(".") < 0.2:
        return (
            "The disk is full: make room ({:.0f} GB in this folder and in {}), then run the same "
            "command again"
        ).format(needed_gb(), tempfile.gettempdir())
    return (
        "A pinned package could not be installed for Python {} on {} {} (its name is above): check "
        "the network, or, if it has no wheel for this Python, run `make distclean` and try again "
        "with another, as in make book PYTHON=python3.12"
    ).format(platform.python_version(), platform.system(), platform.machine())


if __name__ == "__main__":
    sys.exit(after() if "--after-failure" in sys.argv else before())
