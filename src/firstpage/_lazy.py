"""Names that are imported when they are first asked for.

Torch takes seconds to import, and a process that only decodes images, or a command that only prints help,
needs none of it.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__`: each name from its home module, or that module itself where it is the name.

    >>> get = lazy("json", {"decoder": "json.decoder", "JSONDecoder": "json.decoder"})
    >>> get("decoder").__name__, get("JSONDecoder").__name__
    ('json.decoder', 'JSONDecoder')
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return get
