"""The curves of an episode as options of ECharts."""

from __future__ import annotations

from typing import Any

from podzero.tools.play.curves import Curve, curves_of
from podzero.tools.play.episode import Episode

_TOP, _HEIGHT, _GAP = 28, 84, 44
"""In pixels: the first curve, each curve, and from one to the next."""


def chart_of(episode: Episode) -> dict[str, Any]:
    """The curves one below the other, over the same steps; without the cursor of `cursor_at`."""
    curves = curves_of(episode)
    tops = [_TOP + number * (_HEIGHT + _GAP) for number in range(len(curves))]
    return {
        "animation": False,
        "tooltip": {"trigger": "axis"},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "title": [
            {
                "text": f"{c.name}: {c.unit}",
                "left": 40,
                "top": top - 26,
                "textStyle": {"fontSize": 12, "color": c.colour},
            }
            for c, top in zip(curves, tops, strict=True)
        ],
        "grid": [{"left": 48, "right": 16, "top": top, "height": _HEIGHT} for top in tops],
        "xAxis": [
            {"type": "value", "gridIndex": number, "min": 0, "max": max(episode.steps, 1), "minInterval": 1}
            for number in range(len(curves))
        ],
        "yAxis": [{"type": "value", "gridIndex": number, "splitNumber": 3} for number in range(len(curves))],
        "series": [_series(curve, number) for number, curve in enumerate(curves)],
    }


def cursor_at(episode: Episode, step: int) -> dict[str, Any]:
    """What changes in the options when another step is shown: a line through it in each curve."""
    return {"series": [{"id": curve.name, "markLine": {"data": [{"xAxis": step}]}} for curve in curves_of(episode)]}


def _series(curve: Curve, number: int) -> dict[str, Any]:
    return {
        "id": curve.name,
        "name": curve.name,
        "type": "line",
        "xAxisIndex": number,
        "yAxisIndex": number,
        "data": [[step, round(float(height), 4)] for step, height in enumerate(curve.heights)],
        "showSymbol": False,
        "sampling": "lttb",
        "lineStyle": {"width": 2, "color": curve.colour},
        "itemStyle": {"color": curve.colour},
        "markLine": {
            "symbol": "none",
            "silent": True,
            "label": {"show": False},
            "lineStyle": {"type": "solid", "color": "#6b7280"},
            "data": [{"xAxis": 0}],
        },
    }
