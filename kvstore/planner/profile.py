"""What hardware and model take for what they do: the only figures of a plan that are not the trace's or the
store's."""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import COPY, CPU, DISK, GPU, LOAD, READ, WRITE, Link, Tier
from kvstore.sim.config import LinkSpeed

__all__ = ["H200_LLAMA_8B", "LinkProfile", "Profile", "load_profile"]

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=65_536)]
BytesPerSecond = Annotated[float, Meta(gt=0, le=1e15)]


class LinkProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To move n bytes takes `fixed_seconds + n / bandwidth_bytes_per_second`."""

    bandwidth_bytes_per_second: BytesPerSecond
    fixed_seconds: Seconds = 0.0

    @property
    def speed(self) -> LinkSpeed:
        return LinkSpeed(bandwidth=self.bandwidth_bytes_per_second, latency=self.fixed_seconds)


# PCIe 5.0 x16, and one good NVMe device (POLICY 2.2), each with a launch and an end of an operation.
PCIE_5 = LinkProfile(bandwidth_bytes_per_second=50e9, fixed_seconds=20e-6)
NVME = LinkProfile(bandwidth_bytes_per_second=6.5e9, fixed_seconds=100e-6)


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To compute the tokens from p to p+n takes `alpha + beta·n + gamma·(p·n + n²/2)` seconds.

    Decode takes as long for each token of each sequence, however many there are. At most `running_max`
    sequences have frames; of them at most `prefills_max` are loaded or wait for their prefill, so that loads
    go on beside it. For an answer room is asked for by `growth_tokens`, in whole blocks.
    """

    name: str = "H200, Llama-3.1-8B in bf16, PCIe 5.0, one NVMe"
    # One pass over 16 GB of weights at 4.8 TB/s.
    alpha_seconds: Seconds = 3.4e-3
    # At half of the 788 TFLOP/s measured, 131,072 bytes of KV a token come at 3.23 GB/s.
    beta_seconds: Seconds = 40.6e-6
    # Attention costs as much as all else from 30,000 tokens on.
    gamma_seconds: Annotated[float, Meta(ge=0, le=1)] = 40.6e-6 / 30_000
    # A pass over the weights, and over some 30 GB of KV of all that run.
    decode_seconds: Seconds = 10e-3
    running_max: Count = 256
    prefills_max: Count = 4
    # An engine grows block by block. In blocks of 16 tokens a plan would take three times as long for that,
    # and find the same: here a sequence holds three of them too early, of hundreds.
    growth_tokens: Count = 64
    gpu_to_cpu: LinkProfile = PCIE_5
    cpu_to_gpu: LinkProfile = PCIE_5
    cpu_to_disk: LinkProfile = NVME
    disk_to_cpu: LinkProfile = NVME

    def prefill_seconds(self, begin: int, end: int) -> float:
        """To compute the tokens from `begin` to `end`; there is one at least."""
        count = end - begin
        return (
            self.alpha_seconds
            + self.beta_seconds * count
            + self.gamma_seconds * (begin * count + count * count / 2)
        )

    def links(self) -> dict[Link, LinkSpeed]:
        return {
            COPY: self.gpu_to_cpu.speed,
            LOAD: self.cpu_to_gpu.speed,
            WRITE: self.cpu_to_disk.speed,
            READ: self.disk_to_cpu.speed,
        }


H200_LLAMA_8B = Profile()


def load_profile(path: Path) -> Profile:
    """Of a TOML or a JSON file with the fields of `Profile`, those that it names; or of what `kvstore status
    --json` prints, the links as that service has measured them. The rest is the default's."""
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise _invalid(path, error.strerror or str(error), "name a readable file") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(
            path, f"can't be read: {error}", "write TOML, or JSON in a file that ends in .json"
        ) from error
    if isinstance(fields, dict) and isinstance(fields.get("links"), list):
        fields = {
            "name": f"{H200_LLAMA_8B.name}, links as in {path.name}",
            **_measured(path, fields["links"]),
        }
    try:
        return msgspec.convert(fields, Profile)
    except msgspec.ValidationError as error:
        raise _invalid(path, str(error), "docs/planner.md lists the fields and their units") from error


def _measured(path: Path, links: list[Any]) -> dict[str, Any]:
    """The rates of the links in a status that are known."""
    tiers = {f"TIER_{tier.name}": tier for tier in Tier}
    wanted = {(GPU, CPU), (CPU, GPU), (CPU, DISK), (DISK, CPU)}
    rates: dict[str, Any] = {}
    for link in links:
        rate = link.get("rate") if isinstance(link, dict) else None
        if not isinstance(rate, dict):
            continue
        route = (tiers.get(str(link.get("source"))), tiers.get(str(link.get("target"))))
        if route in wanted and rate.get("bandwidth_bytes_per_second"):
            name = f"{link['source']}_to_{link['target']}".replace("TIER_", "").lower()
            rates[name] = {key: rate[key] for key in LinkProfile.__struct_fields__ if key in rate}
    if not rates:
        raise _invalid(path, "no link in it was measured yet", "ask again when the service has moved blocks")
    return rates


def _invalid(path: Path, what: str, remedy: str) -> ConfigInvalid:
    return ConfigInvalid(what, field="--profile", value=path, remedy=remedy)
