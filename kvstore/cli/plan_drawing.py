"""Hits by capacity as a drawing: SVG for documents, PNG for chats. Needs the extra `plots`."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from kvstore.core.errors import ConfigInvalid
from kvstore.planner.study import Point

__all__ = ["check_drawing", "draw"]

GIB = 1 << 30
INCHES = (6.4, 4.0)


def check_drawing(path: Path) -> None:
    """Before hours are spent on what can't be drawn."""
    if not path.parent.is_dir():
        raise ConfigInvalid("no such folder", field="--sweep", value=path, remedy="make it first")
    if path.is_dir():
        raise ConfigInvalid(
            "a folder", field="--sweep", value=path, remedy=f"name the drawing too: {path / 'hits'}"
        )
    for target in _targets(path):
        there = target.exists()
        try:
            target.open("ab").close()
        except OSError as error:
            what = f"{target} can't be written: {error.strerror}"
            remedy = "name a file that you may write"
            raise ConfigInvalid(what, field="--sweep", value=path, remedy=remedy) from error
        if not there:
            target.unlink()
    if find_spec("matplotlib") is None:
        raise ConfigInvalid(
            "a drawing needs the package matplotlib",
            field="--sweep",
            value=path,
            remedy="pip install 'kvstore[plots]'",
        )


def draw(points: Sequence[Point], title: str, path: Path) -> Iterator[Path]:
    """The files that were written."""
    # Imported here: other commands must not load it. Without pyplot, which looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    capacities = [point.capacity_bytes / GIB for point in points]
    axes.plot(capacities, [100 * point.best_hit_rate for point in points], "--", label="the optimum")
    axes.plot(capacities, [100 * point.outcome.hit_rate for point in points], "o-", label="kvstore")
    axes.set_xscale("log", base=2)
    axes.set_xticks(capacities, [f"{capacity:.4g}" for capacity in capacities])
    axes.minorticks_off()
    axes.set_xlabel("all tiers together, GiB")
    axes.set_ylabel("blocks found, %")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    for target in _targets(path):
        figure.savefig(target, dpi=150)
        yield target


def _targets(path: Path) -> list[Path]:
    return [path.with_name(path.name.removesuffix(suffix) + suffix) for suffix in (".svg", ".png")]
