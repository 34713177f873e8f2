"use strict";
// Draws the figures of a report from the data in the page and, when a server gives the page, replaces it by newer ones.
(() => {
  const HEIGHT = 240;
  const BAND_OPACITY = 0.18;
  const COLORS = 8;
  const DASHES = [[], [8, 4], [2, 3]]; // of the first curves of each colour
  const FEW = 3; // a curve of fewer points has dots and bars: a line or band of one point is nothing
  const REST = "other"; // the label of the time of no stage
  const plots = new Map(); // element -> uPlot
  let data, axis = "hours", inMinutes; // of training: minutes where no figure reaches an hour

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const curveColor = (i) => color(`--c${i % COLORS}`);
  const faded = (hex) => hex + Math.round(255 * BAND_OPACITY).toString(16).padStart(2, "0");

  function readable(value, share) {
    if (value == null) return "\u2013";
    if (share) return (100 * value).toFixed(1) + "%";
    const size = Math.abs(value);
    if (size >= 1e6) return value.toLocaleString("en", { maximumSignificantDigits: 4, notation: "compact" });
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
  }

  const tick = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4, notation: "compact" });

  // The value at the cursor, or the newest one before it: the points of other runs are not this run's.
  const at = (values, k) => values.slice(0, k == null ? undefined : k + 1).findLast((value) => value != null);

  const axisName = (name) => (name === "hours" && inMinutes ? "minutes" : name);

  // From 0 on, unless the reader has zoomed in, so that runs of nearly equal length lie together.
  const fromZero = (u, low, high) => (low > u.data[0][0] ? [low, high] : [0, 1.02 * high || 1]);

  // The columns of a stacked figure: each curve on top of those after it, so that the first is drawn first and largest.
  function stacked(curves) {
    const sums = curves.map((curve) => curve.values.slice());
    for (let i = sums.length - 2; i >= 0; i--)
      sums[i] = sums[i].map((value, k) => (value == null ? null : value + (sums[i + 1][k] ?? 0)));
    return sums;
  }

  function plotted(figure) {
    // The points of several runs follow one another; uPlot needs them in order.
    const given = figure.axes[axis].map((x) => (axisName(axis) === "minutes" ? 60 * x : x)), order = [...given.keys()].sort((a, b) => given[a] - given[b]);
    const inOrder = (values) => order.map((k) => values[k]);
    const positions = inOrder(given), columns = [positions], bands = [], bars = [];
    const series = [{ label: axisName(axis), value: (u, v, s, k) => readable(at(positions, k)) }];
    const sums = figure.stacked ? stacked(figure.curves) : null;
    const share = figure.unit === "share";
    figure.curves.forEach((curve, i) => {
      const values = inOrder(curve.values);
      const stroke = curve.label === REST ? color("--muted") : curveColor(i);
      const few = values.filter((value) => value != null).length < FEW;
      columns.push(sums ? inOrder(sums[i]) : values);
      series.push({
        label: curve.label, stroke, width: figure.stacked ? 1 : 1.75, spanGaps: true,
        dash: DASHES[Math.floor(i / COLORS) % DASHES.length],
        fill: figure.stacked ? stroke : undefined,
        points: { show: figure.dots || few, size: 5 },
        value: (u, v, s, k) => readable(at(values, k), share),
      });
      if (curve.low) {
        const at = series.length;
        for (const edge of [curve.high, curve.low]) {
          columns.push(inOrder(edge));
          series.push({ class: "band", width: 0, stroke: "transparent", points: { show: false }, spanGaps: true });
        }
        bands.push({ series: [at, at + 1], fill: faded(stroke) });
        if (few) bars.push(at);
      }
    });
    return { columns, series, bands, bars, share };
  }

  function draw(element) {
    const figure = data.figures[element.dataset.figure];
    const { columns, series, bands, bars, share } = plotted(figure);
    const line = color("--line"), text = color("--muted");
    const look = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const short = (u, values) => values.map((v) => (share ? `${+(100 * v).toFixed(1)}%` : tick(v)));
    const plot = new uPlot({
      width: element.clientWidth, height: HEIGHT, series, bands,
      scales: { x: { time: false, range: fromZero }, y: figure.stacked ? { range: [0, 1] } : {} },
      axes: [{ ...look, values: (u, values) => values.map(tick) }, { ...look, size: 56, values: short }],
      cursor: { y: false, points: { size: 6 } },
      hooks: { setSeries: [showBands], draw: [(u) => bars.forEach((i) => drawBars(u, i))] },
    }, columns, element);
    plots.set(element, plot);
  }

  // A curve that the legend hides takes its band with it.
  function showBands(plot, index, options) {
    if (index == null || options.show == null || plot.series[index].class === "band") return;
    for (const i of [index + 1, index + 2])
      if (plot.series[i]?.class === "band") plot.setSeries(i, { show: options.show });
  }

  // The intervals of a curve of few points; the columns of their ends are those of the series `i` and the next.
  function drawBars(u, i) {
    if (!u.series[i].show) return;
    u.ctx.strokeStyle = u.series[i - 1].stroke();
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.beginPath();
    u.data[0].forEach((position, k) => {
      const high = u.data[i][k], low = u.data[i + 1][k], x = u.valToPos(position, "x", true);
      if (high == null || low == null || position < u.scales.x.min || position > u.scales.x.max) return;
      u.ctx.moveTo(x, u.valToPos(high, "y", true));
      u.ctx.lineTo(x, u.valToPos(low, "y", true));
    });
    u.ctx.stroke();
  }

  function redraw() {
    for (const [element, plot] of plots) {
      plot.destroy();
      draw(element);
    }
  }

  // Arrow keys move the cursor along the curves, Home and End to their ends, Escape shows all after a zoom.
  function onKey(event) {
    const plot = plots.get(event.currentTarget);
    if (!plot) return;
    const last = plot.data[0].length - 1, index = plot.cursor.idx;
    const targets = {
      ArrowLeft: Math.max((index ?? last + 1) - 1, 0), ArrowRight: Math.min((index ?? -1) + 1, last), Home: 0, End: last,
    };
    if (event.key === "Escape") plot.setData(plot.data);
    else if (event.key in targets) {
      event.preventDefault();
      plot.setCursor({ left: plot.valToPos(plot.data[0][targets[event.key]], "x"), top: HEIGHT / 2 });
    }
  }

  // Shows the position after so many moves of a game.
  function showPosition(input) {
    const { elements, frames, moves } = data.replays[input.dataset.replay], ply = Number(input.value);
    const figure = input.closest("figure");
    figure.querySelector("svg > g").innerHTML = frames[ply].map((number) => elements[number]).join("");
    figure.querySelector("output").textContent = ply ? `${ply}: ${moves[ply - 1]}` : "start";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries)
      if (isIntersecting && !plots.has(target)) draw(target);
  }, { rootMargin: "300px" });
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = plots.get(target);
      if (plot && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: HEIGHT });
    }
  });

  function start() {
    data = JSON.parse(document.getElementById("data").textContent);
    inMinutes = Object.values(data.figures).every((figure) => figure.axes.hours.every((hours) => !(hours >= 1)));
    for (const element of document.querySelectorAll(".plot")) {
      element.addEventListener("keydown", onKey);
      seen.observe(element);
      sized.observe(element);
    }
    for (const input of document.querySelectorAll(".replay"))
      input.addEventListener("input", () => showPosition(input));
    for (const input of document.querySelectorAll("input[name=axis]")) {
      input.checked = input.value === axis;
      input.nextSibling.textContent = ` ${axisName(input.value)}`;
      input.addEventListener("change", () => { axis = input.value; redraw(); });
    }
  }

  function replace(html) {
    const open = [...document.querySelectorAll("details[open]")].map((element) => element.id);
    const focused = document.activeElement?.dataset?.figure, focusedId = document.activeElement?.id;
    const title = (input) => input.closest("figure").querySelector("h3").textContent;
    const stepped = [...document.querySelectorAll(".replay")].map((input) => [input.id, input.value, title(input)]);
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    seen.disconnect();
    sized.disconnect();
    const next = new DOMParser().parseFromString(html, "text/html").getElementById("report");
    document.getElementById("report").replaceWith(next);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    start();
    for (const [id, ply, shown] of stepped) {
      const input = document.getElementById(id);
      if (!input || title(input) !== shown || input.value === ply) continue; // another game now
      input.value = ply;
      showPosition(input);
    }
    if (focusedId) document.getElementById(focusedId)?.focus({ preventScroll: true });
    if (focused) document.querySelector(`[data-figure="${focused}"]`)?.focus({ preventScroll: true });
  }

  async function get(path) {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(30_000) });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.text();
  }

  async function poll() {
    const message = document.getElementById("message");
    try {
      if ((await get("version")) !== data.live.version) replace(await get("./"));
      message.hidden = true;
    } catch (error) {
      message.textContent = `This page no longer changes: the server of this report does not answer (${error.message}).`;
      message.hidden = false;
    }
    setTimeout(poll, 1000 * data.live.poll_s);
  }

  start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => document.querySelectorAll(".plot").forEach((e) => plots.has(e) || draw(e)));
  if (data.live) setTimeout(poll, 1000 * data.live.poll_s);
})();
