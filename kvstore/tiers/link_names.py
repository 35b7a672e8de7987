"""The links by the names that people and the contract use for them."""

from kvstore.core.types import CPU, DISK, GPU, Tier

__all__ = ["COPY", "LINKS", "LINK_NAMES", "LOAD", "READ", "WRITE", "Link", "link_name"]

Link = tuple[Tier, Tier]
COPY: Link = (GPU, CPU)
LOAD: Link = (CPU, GPU)
WRITE: Link = (CPU, DISK)
READ: Link = (DISK, CPU)
LINKS = (COPY, LOAD, WRITE, READ)


def link_name(link: Link) -> str:
    """As in `cpu_to_gpu`."""
    source, target = link
    return f"{source.name}_to_{target.name}".lower()


LINK_NAMES = {link_name(link): link for link in LINKS}
