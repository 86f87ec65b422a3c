"""One module, or package, for each vendor: importing this package imports and thereby registers them all."""

from importlib import import_module
from pkgutil import iter_modules

for module in iter_modules(__path__, f"{__name__}."):
    import_module(module.name)
