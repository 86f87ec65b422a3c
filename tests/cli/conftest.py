"""The commands are run as those of `simulate`."""

from simulate.conftest import own_kubeconfig as own_kubeconfig
from simulate.conftest import simulate as command  # noqa: F401  # the fixture by the name that it has here
