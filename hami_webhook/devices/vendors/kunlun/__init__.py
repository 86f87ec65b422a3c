"""Kunlunxin XPUs: whole cards, and vXPU slices of P800-OAM cards. Source: docs/spec/kunlun.md.

A server has two wings of four cards; which cards work together is decided by their indices.
"""

from hami_webhook.devices.vendors.kunlun.vxpu import KunlunVxpu, align
from hami_webhook.devices.vendors.kunlun.xpu import KunlunXpu

__all__ = ["KunlunVxpu", "KunlunXpu", "align"]
