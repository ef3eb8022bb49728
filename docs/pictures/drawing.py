"""SVG images without a plotting library: shapes and texts in the colors of the report."""

from xml.sax.saxutils import escape

from debate_report.page_templates import render

LETTER = 6.65
"""Width of a character of the monospaced font at 11 units."""
STYLE = """\
text { fill: var(--ink); } text.soft { fill: var(--soft); } text.bold { font-weight: bold; }
text.mono { font: 11px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
text.small { font-size: 11px; } text.title { font-size: 14px; font-weight: bold; }
text.middle { text-anchor: middle; } text.end { text-anchor: end; }
text.good { fill: var(--good); } text.bad { fill: var(--bad); }
text.s1 { fill: var(--s1); } text.s2 { fill: var(--s2); }
rect.card { fill: var(--paper); stroke: var(--rule); } rect.plain { fill: var(--tint); }
rect.good { fill: var(--good); fill-opacity: .3; } rect.bad { fill: var(--bad); fill-opacity: .3; }
rect.frame { fill: none; stroke: var(--ink); stroke-width: 1.5; }
rect.again { fill-opacity: .22; } rect.rules { fill: var(--soft); }
rect.read { fill: var(--s1); } rect.said { fill: var(--s2); }
path { fill: none; stroke: var(--soft); stroke-width: 1.4; } path.s1 { stroke: var(--s1); }
path.s2 { stroke: var(--s2); } path.good { stroke: var(--good); } path.bad { stroke: var(--bad); }
path.tie { stroke-dasharray: 4 3; } path.head { fill: var(--soft); stroke: none; }
path.head.good { fill: var(--good); } path.head.bad { fill: var(--bad); }"""


class Picture:
    """An SVG image under way: shapes and texts that are styled by class."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, look: str = "") -> None:
        """Write words whose baseline is at y."""
        place = f'x="{x:.4g}" y="{y:.4g}"'
        self._parts.append(f'<text {place} class="{look}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str) -> None:
        """Draw a rectangle."""
        place = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
        self._parts.append(f'<rect {place} rx="3" class="{look}"/>')

    def path(self, steps: str, look: str = "") -> None:
        """Draw a line along the steps of an SVG path."""
        self._parts.append(f'<path d="{steps}" class="{look}"/>')

    def head(self, x: float, y: float, look: str = "", *, turned: int = 0) -> None:
        """Draw the head of an arrow that ends here, upward or turned by some degrees."""
        place = f'transform="translate({x:.4g} {y:.4g}) rotate({turned})"'
        self._parts.append(f'<path d="M0,0L4,8H-4Z" {place} class="head {look}"/>')

    def svg(self) -> str:
        """Return the image, which needs nothing else."""
        width, height = self._size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
                ' font-family="sans-serif" font-size="12" role="img">',
                f"<title>{escape(self._title)}</title>",
                f"<style>\n{render('colours.css').strip()}\n{STYLE}\n</style>",
                '<rect width="100%" height="100%" style="fill: var(--card)"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def signed(value: float) -> str:
    """Return a value with its sign and two decimals, and nothing else of 0."""
    text = f"{value:+.2f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def tone(value: float) -> str:
    """Return the look of something with this value."""
    return "good" if value > 0 else "bad" if value < 0 else "plain"
