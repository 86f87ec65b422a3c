"""Configuration, resolved once into plain values: device-config.yaml and the settings of `serve`.

Source: docs/spec/core.md#2.
"""

from hami_webhook.config.describe import ResourceMeaning, SectionDescription, describe
from hami_webhook.config.devices import SECTION_SWITCHES, DeviceConfig
from hami_webhook.config.errors import ConfigError
from hami_webhook.config.go_syntax import ListenAddress, parse_go_bool, parse_go_duration, parse_listen_address
from hami_webhook.config.load import FILE_NAME, LoadedDeviceConfig
from hami_webhook.config.serve_flags import add_flags, resolve
from hami_webhook.config.setting_values import Identities, ServiceAccount
from hami_webhook.config.settings import SETTINGS, Setting, Settings
from hami_webhook.config.yaml_source import parse_yaml, read_text

__all__ = [
    "FILE_NAME",
    "SECTION_SWITCHES",
    "SETTINGS",
    "ConfigError",
    "DeviceConfig",
    "Identities",
    "ListenAddress",
    "LoadedDeviceConfig",
    "ResourceMeaning",
    "SectionDescription",
    "ServiceAccount",
    "Setting",
    "Settings",
    "add_flags",
    "describe",
    "parse_go_bool",
    "parse_go_duration",
    "parse_listen_address",
    "parse_yaml",
    "read_text",
    "resolve",
]
