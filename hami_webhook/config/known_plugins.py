"""The service accounts under which device plugins run that write allocations on pods, as their own manifests have them.

NAME alone means this installation's namespace. Only that and kube-system are trusted: a namespace of any other name
may be one that a tenant may create. The page is docs/install.md#device-plugins.
"""

from __future__ import annotations

KNOWN_PLUGINS = (
    "hami-device-plugin",  # HAMi's chart: NVIDIA, Cambricon and Hygon
    "hami-ascend",  # HAMi's chart: Ascend
    "kube-system/hami-device-plugin",
    "kube-system/hami-ascend",  # also HAMi's ascend-device-plugin by its manifest
    "kube-system/dcu-device-plugin",  # HAMi's dcu-vgpu-device-plugin
    "kube-system/hcu-device-plugin",  # Hygon's k8s-hcu-device-plugin, in its mode for HAMi
    "kube-system/amd-gpu-device-plugin",  # the chart of HAMi's amd-device-plugin
    "kube-system/neuron-device-plugin",  # AWS Neuron's
)
"""As `--device-plugin-service-accounts` has them."""
