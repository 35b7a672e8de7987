"""What the demo was asked for, looked at before torch is loaded. Tests: tests/cli/test_demo_flags.py."""

from pathlib import Path

from engine.names import is_device
from engine.server.flags import FlagRefused, check_model
from engine.server.folder import make_folder, make_service_folder
from kvstore.demo.children import DemoRefused

__all__ = ["check_asked", "take_folders"]


def check_asked(model: str, device: str) -> None:
    """Raises DemoRefused."""
    try:
        check_model(model)
        if not is_device(device):
            raise FlagRefused("--device", device, "there is no such device", "cpu, cuda or cuda:N")
    except FlagRefused as error:
        raise DemoRefused(str(error)) from error


def take_folders(keep: str | None, journal: str | None) -> tuple[Path | None, Path | None]:
    """Made, if they aren't there, and empty. Raises DemoRefused."""
    try:
        kept = _take_empty("--keep", keep, make_service_folder("--keep", keep)) if keep is not None else None
        if journal is None:
            return kept, None
        place = make_folder("--journal", journal)
        if kept is not None and place.samefile(kept):
            why, remedy = "it is the folder of --keep", "leave it out: the journal is in there as well"
            raise FlagRefused("--journal", journal, why, remedy)
        return kept, _take_empty("--journal", journal, place)
    except FlagRefused as error:
        raise DemoRefused(str(error)) from error


def _take_empty(flag: str, name: str, folder: Path) -> Path:
    if any(folder.iterdir()):
        raise FlagRefused(flag, name, "it is not empty", "name a new one")
    return folder
