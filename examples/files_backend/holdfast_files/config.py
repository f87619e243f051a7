"""The options of a URL: none, only the path of the folder."""

import holdfast
from holdfast.backends.api import Address, Option

OPTIONS: tuple[Option, ...] = ()


def path_of(address: Address) -> str:
    if address.host or not address.path.strip("/"):
        raise holdfast.ConfigurationError("url must name the absolute path of a folder, as in files:///run/locks")
    return address.path
