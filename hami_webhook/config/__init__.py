"""Configuration, resolved once into plain values: device-config.yaml and the settings of `serve`.

Source: docs/spec/core.md#2.
"""

from hami_webhook.config.describe import ResourceMeaning, SectionDescription, describe
from hami_webhook.config.devices import (
    SECTION_SWITCHES,
    AmdSection,
    AscendChip,
    AscendTemplate,
    AwsNeuronSection,
    BirenSection,
    CambriconSection,
    DeviceConfig,
    EnflameSection,
    HygonSection,
    IluvatarChip,
    IluvatarSection,
    KunlunSection,
    MetaxSection,
    MigProfileAllowance,
    MthreadsSection,
    NvidiaSection,
    VastaiSection,
    VnpusSection,
)
from hami_webhook.config.errors import ConfigError
from hami_webhook.config.go_syntax import ListenAddress, parse_go_bool, parse_go_duration, parse_listen_address
from hami_webhook.config.load import (
    FILE_NAME,
    LoadedDeviceConfig,
    builtin_device_config,
    load_device_config,
    read_device_config,
)
from hami_webhook.config.schedulers import (
    KOORDINATOR_RESOURCES,
    PLUGIN_MIG_GEOMETRIES,
    KoordinatorSection,
    MigGeometries,
    MigGroup,
    MigInstanceKind,
    VolcanoSection,
)
from hami_webhook.config.serve_flags import add_flags, resolve
from hami_webhook.config.setting_values import Identities, ServiceAccount
from hami_webhook.config.settings import SETTINGS, Setting, Settings
from hami_webhook.config.yaml_source import parse_yaml, read_text

__all__ = [
    "FILE_NAME",
    "KOORDINATOR_RESOURCES",
    "PLUGIN_MIG_GEOMETRIES",
    "SECTION_SWITCHES",
    "SETTINGS",
    "AmdSection",
    "AscendChip",
    "AscendTemplate",
    "AwsNeuronSection",
    "BirenSection",
    "CambriconSection",
    "ConfigError",
    "DeviceConfig",
    "EnflameSection",
    "HygonSection",
    "Identities",
    "IluvatarChip",
    "IluvatarSection",
    "KoordinatorSection",
    "KunlunSection",
    "ListenAddress",
    "LoadedDeviceConfig",
    "MetaxSection",
    "MigGeometries",
    "MigGroup",
    "MigInstanceKind",
    "MigProfileAllowance",
    "MthreadsSection",
    "NvidiaSection",
    "ResourceMeaning",
    "SectionDescription",
    "ServiceAccount",
    "Setting",
    "Settings",
    "VastaiSection",
    "VnpusSection",
    "VolcanoSection",
    "add_flags",
    "builtin_device_config",
    "describe",
    "load_device_config",
    "parse_go_bool",
    "parse_go_duration",
    "parse_listen_address",
    "parse_yaml",
    "read_device_config",
    "read_text",
    "resolve",
]
