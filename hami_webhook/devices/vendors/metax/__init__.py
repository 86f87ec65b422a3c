"""MetaX cards (MXC500, N260): whole ones, and shared ones (sGPU). Source: docs/spec/metax.md.

A node offers one of the two as a rule; the MetaX operator can switch it over.
"""

from __future__ import annotations

from hami_webhook.devices.vendors.metax.sgpu import MetaxSgpu
from hami_webhook.devices.vendors.metax.whole import MetaxGpu

__all__ = ["MetaxGpu", "MetaxSgpu"]
