"""Pictures: matplotlib draws, and what it draws follows the page into the dark.

A picture is SVG with text as text. Its colours are names of roles (`INK`, `SERIES`…); standing alone it has those of a light
page, and in a page each is a variable of the page's style sheet, which has two sets of them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INK, MUTED, LINE, PAPER = "#1c2229", "#69727d", "#d8dde3", "#fdfdfc"
SERIES = ("#1f6f8b", "#d9722e", "#5f8a3a", "#8a5fb0", "#b8435f", "#8c7a3d")
ROLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", PAPER: "--paper"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_PANEL_INCHES = (3.9, 2.7)
_FONT = re.compile(r"font: ([^'\";]*?)(\d+(?:\.\d+)?px) [^;\"]*")


@dataclass(frozen=True, slots=True)
class Picture:
    """`name` is its file's name; the caption says what is to be seen."""

    name: str
    caption: str
    svg: str

    def inlined(self) -> str:
        """For a page: its colours are the page's, and its identifiers are no other picture's."""
        svg = self.svg[self.svg.index("<svg") :]
        for colour, role in ROLES.items():
            svg = svg.replace(colour, f"var({role})")
        svg = _FONT.sub(r"font: \1\2 var(--sans)", svg)
        for before in (' id="', "url(#", 'href="#'):
            svg = svg.replace(before, f"{before}{self.name}-")
        return svg


def picture(name: str, caption: str, draw: Callable[[list[Any]], None], *, rows: int = 1, columns: int = 1) -> Picture:
    """A picture of rows × columns panels; `draw` gets their axes, row by row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(_style(name)):
        size = (_PANEL_INCHES[0] * max(columns, 1.4), _PANEL_INCHES[1] * rows)
        figure, axes = plt.subplots(rows, columns, squeeze=False, figsize=size)
        draw(list(axes.flat))
        figure.tight_layout()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return Picture(name, caption, text.getvalue())


def _style(name: str) -> Any:
    from cycler import cycler

    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 8.5,
        "axes.prop_cycle": cycler(color=list(SERIES)),
        "axes.edgecolor": LINE,
        "axes.labelcolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "legend.fontsize": 7.5,
        "lines.linewidth": 1.5,
        "axes.formatter.useoffset": False,
    }
