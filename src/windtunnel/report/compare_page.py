"""The result of a comparison as one HTML page: the error of every call in order, and where it begins.

CompareResult ──> compare_page ──> text of a page without scripts, fonts or files from elsewhere
"""

from __future__ import annotations

import math
from html import escape

from windtunnel.probe.error_curve import PHASES, ErrorCurve
from windtunnel.probe.verdict import Divergence
from windtunnel.report.compare_result import JUDGED, CompareResult, counts, headline, rule

__all__ = ["compare_page"]

_WIDTH, _HEIGHT = 1000, 260
_LEFT, _TOP, _BOTTOM = 56, 12, 24
_LOWEST, _HIGHEST = -9, 1  # powers of ten; equal lies below, infinite at the top
_MOST_CURVES = 12
_NAMED = 400  # points with a name to point at

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --faint: #8a93a5; --line: #d9dde5; --bad: #b00020;
  --forward: #2b6cb0; --backward: #c05621; --optimizer: #2f855a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --faint: #9aa3b5; --line: #3a4150; --bad: #ff7b8a;
  --forward: #63a4e8; --backward: #f0955c; --optimizer: #62c38f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1060px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.3em; overflow-wrap: anywhere; } h1.bad { color: var(--bad); } h2 { font-size: 1em; margin-top: 2em; }
table { border-collapse: collapse; font-size: .9em; } td, th { padding: .15em .9em .15em 0; text-align: left; }
th { border-bottom: 1px solid var(--line); } tr.different td { color: var(--bad); font-weight: 600; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; } pre { overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--faint); }
.grid { stroke: var(--line); } .mark { stroke: var(--bad); stroke-dasharray: 4 3; } svg text.mark-text { fill: var(--bad); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .optimizer { fill: var(--optimizer); }
.lone { stroke: var(--faint); }
"""


def compare_page(result: CompareResult) -> str:
    """A whole page."""
    first = result.findings.first
    title = headline(result)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1{' class=bad' if first is not None else ''}>{escape(title)}</h1>",
    ]
    if first is not None:
        parts += [f"<p>{escape(sentence[0].upper() + sentence[1:])}.</p>" for sentence in first.sentences]
        parts += [f"<p>At <code>{escape(first.line)}</code></p>"] if first.line else []
    parts.append(f"<p>{escape(counts(result))} Different means {escape(rule(result))}.</p>")
    parts += [f"<p>Note: {escape(note)}.</p>" for note in result.findings.notes]
    parts.append(f"<p>A: <code>{escape(result.a)}</code><br>B: <code>{escape(result.b)}</code></p>")
    for curve in result.curves[:_MOST_CURVES]:
        parts.append(_figure(curve, first))
    if len(result.curves) > _MOST_CURVES:
        parts.append(f"<p>(and {len(result.curves) - _MOST_CURVES} more steps and ranks)</p>")
    if first is not None:
        parts += [_table(first), _stack(first)]
    parts.append(f"<p><small>windtunnel {escape(result.windtunnel)}</small></p></body></html>\n")
    return "\n".join(parts)


def _figure(curve: ErrorCurve, first: Divergence | None) -> str:
    names = [curve.area] if curve.area else []
    names += [f"step {curve.step}"] if curve.step is not None else []
    names += [f"rank {curve.rank}"] if curve.rank is not None else []
    legend = " ".join(f"<tspan class='{phase}'>&#9679; {phase}</tspan>" for phase in PHASES)
    body = [*_axes(curve), *_points(curve)]
    is_here = first is not None and (first.area, first.step, first.rank) == (
        curve.area,
        curve.step,
        curve.rank,
    )
    if first is not None and is_here:
        x = _x(first.place, curve.n_places)
        anchor = "end" if x > _WIDTH / 2 else "start"
        body.append(f"<line class='mark' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{_HEIGHT - _BOTTOM}'/>")
        body.append(
            f"<text class='mark-text' x='{x + (-5 if anchor == 'end' else 5):.1f}' y='{_TOP + 10}' "
            f"text-anchor='{anchor}'>{escape(first.item)}</text>"
        )
    return (
        f"<h2>Relative error of every call, as executed{': ' + ', '.join(names) if names else ''}</h2>"
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='error per call'>{''.join(body)}"
        f"<text x='{_WIDTH}' y='{_HEIGHT - 4}' text-anchor='end'>{legend} | only on one side</text></svg>"
    )


def _axes(curve: ErrorCurve) -> list[str]:
    lines = []
    for power in range(_LOWEST + 1, _HIGHEST, 2):
        y = _y(10.0**power)
        lines.append(f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH}' y1='{y:.1f}' y2='{y:.1f}'/>")
        lines.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>1e{power}</text>")
    lines.append(f"<text x='{_LEFT - 6}' y='{_y(0.0) + 4:.1f}' text-anchor='end'>equal</text>")
    lines.append(f"<text x='{_LEFT}' y='{_HEIGHT - 4}'>{curve.n_places:,} calls</text>")
    return lines


def _points(curve: ErrorCurve) -> list[str]:
    named = set(sorted(range(len(curve.place)), key=lambda i: -curve.error[i])[:_NAMED])
    points = []
    for i, (place, error) in enumerate(zip(curve.place.tolist(), curve.error.tolist(), strict=True)):
        title = f"<title>{escape(curve.names[i])}: {error:.2g}</title>" if i in named else ""
        radius = 2.6 if curve.is_different[i] else 1.8
        points.append(
            f"<circle class='{PHASES[curve.phase[i]]}' cx='{_x(place, curve.n_places):.1f}' cy='{_y(error):.1f}' "
            f"r='{radius}'>{title}</circle>"
        )
    bottom = _HEIGHT - _BOTTOM
    for place in curve.lone.tolist():
        x = _x(place, curve.n_places)
        points.append(f"<line class='lone' x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' y2='{bottom - 10}'/>")
    return points


def _x(place: int, n_places: int) -> float:
    return _LEFT + 6 + (_WIDTH - _LEFT - 12) * place / max(1, n_places - 1)


def _y(error: float) -> float:
    if error <= 0:
        power = float(_LOWEST)
    else:
        power = min(max(math.log10(error), _LOWEST + 0.5), _HIGHEST) if math.isfinite(error) else _HIGHEST
    share = (power - _LOWEST) / (_HIGHEST - _LOWEST)
    return _HEIGHT - _BOTTOM - 6 - share * (_HEIGHT - _TOP - _BOTTOM - 6)


def _table(first: Divergence) -> str:
    rows = []
    for row in first.rows:
        error = "" if math.isnan(row.error) else f"{row.error:.2g}"
        cells = (row.name, row.role, row.a, row.b, error, JUDGED[row.judged])
        rows.append(
            f"<tr class='{JUDGED[row.judged]}'>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("value", "role", "A (norm)", "B (norm)", "error", "is"))
    return f"<h2>Around the place</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _stack(first: Divergence) -> str:
    if not first.frames:
        return ""
    return f"<h2>Call stack, innermost first</h2><pre>{escape(chr(10).join(first.frames))}</pre>"
