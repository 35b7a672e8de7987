"""The table as drawings, a file a load: SVG for documents, PNG for chats. Needs the extra `plots`."""

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bench.serving_measured import Measured
from bench.serving_rows import COLUMNS, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plots", "draw"]

INCHES = (9.6, 6.4)
# By their place among COLUMNS; those of one panel are drawn side by side.
PANELS = (
    ((0,), "requests at once"),
    ((1, 2, 3), "%"),
    ((4, 5, 6), "s"),
    ((7, 8, 9), "ms"),
    ((10,), "tokens a second"),
    ((12,), "MB swapped"),
)
LEAST = 0.0


def check_plots(folder: Path) -> None:
    """Before minutes are spent on what can't be drawn. The folder is made, if only it is missing."""
    if find_spec("matplotlib") is None:
        raise SystemExit(
            f"--plots {folder}: needs the package matplotlib; remedy: pip install 'kvstore[plots]'"
        )
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise SystemExit(f"--plots {folder}: it is no folder; remedy: name another") from None
    except OSError as error:
        raise SystemExit(f"--plots {folder}: {error.strerror}; remedy: a folder that can be made") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SystemExit(f"--plots {folder}: nothing may be written there; remedy: name another")


def draw(load: str, by_setup: Mapping[str, Measured], folder: Path) -> Iterator[Path]:
    """The files that were written."""
    # Imported here: without --plots it isn't needed. Without pyplot, which looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    values = {setup: columns(measured) for setup, measured in by_setup.items()}
    for place, (chosen, unit) in enumerate(PANELS, 1):
        _panel(figure.add_subplot(2, 3, place), chosen, unit, values)
    figure.suptitle(load)
    name = "".join(each if each.isalnum() else "-" for each in load).replace("--", "-")
    for suffix in (".svg", ".png"):
        path = folder / f"serving-{name}{suffix}"
        figure.savefig(path)
        yield path


def _panel(axes: "Axes", chosen: tuple[int, ...], unit: str, values: Mapping[str, list[float]]) -> None:
    width = 0.8 / len(chosen)
    for number, column in enumerate(chosen):
        places = [at + (number - (len(chosen) - 1) / 2) * width for at in range(len(values))]
        heights = [found[column] for found in values.values()]
        axes.bar(places, heights, width, label=COLUMNS[column].name)
    axes.set_xticks(range(len(values)), values, rotation=30)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=LEAST)
    axes.grid(axis="y", alpha=0.3)
    if len(chosen) > 1:
        axes.legend(fontsize="x-small")
