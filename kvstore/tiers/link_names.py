"""The links by the names that people and the contract use for them."""

from kvstore.core.types import COPY, LOAD, READ, WRITE, Link

__all__ = ["LINKS", "LINK_NAMES", "link_name"]

LINKS = (COPY, LOAD, WRITE, READ)


def link_name(link: Link) -> str:
    """As in `cpu_to_gpu`."""
    source, target = link
    return f"{source.name}_to_{target.name}".lower()


LINK_NAMES = {link_name(link): link for link in LINKS}
