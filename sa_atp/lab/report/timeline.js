// The timeline of report.html: draws what drawing/zoomable.py has found on a canvas, zooms and moves it. It loads nothing.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const box = document.getElementById("timeline"), canvas = box.querySelector("canvas"), tip = box.querySelector(".tip");
  const pen = canvas.getContext("2d");
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif";
  const CANCELLED = 16, FIELDS = 5, TITLE = 42, AXIS = 34, LEAST_SPAN = 20; // pixels, and microseconds
  const END = Math.max(1, ...data.panels.map((panel) => panel.end));
  const most = Math.max(...data.panels.map((panel) => panel.rows.length));
  const ROW = most <= 8 ? 22 : most <= 24 ? 16 : 12;
  let from = 0, to = END, width = 0, left = 0;

  const isNarrow = () => width < 600;
  const x = (t) => left + ((t - from) / (to - from)) * (width - left - 8);
  const timeAt = (px) => from + ((px - left) / (width - left - 8)) * (to - from);
  const name = (row) => (isNarrow() ? String(row.worker) : "worker " + row.worker) + (row.why ? " (" + row.why + ")" : "");

  function duration(us) {
    const [by, unit] = us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    return Number((us / by).toPrecision(4)) + " " + unit;
  }

  // The rows with their places, from top to bottom.
  function places() {
    const found = [];
    let y = 0;
    for (const panel of data.panels) {
      const top = y + TITLE;
      found.push({ panel, top, rows: panel.rows.map((row, n) => ({ row, y: top + n * ROW })) });
      y = top + panel.rows.length * ROW + 8;
    }
    return { panels: found, bottom: y };
  }

  function draw() {
    width = box.clientWidth;
    const dots = window.devicePixelRatio || 1, { panels, bottom } = places(), height = bottom + AXIS;
    pen.font = "13px " + FONT;
    const widest = Math.max(...data.panels.flatMap((panel) => panel.rows.map((row) => pen.measureText(name(row)).width)));
    left = Math.min(Math.ceil(widest) + 16, Math.round(width * (isNarrow() ? 0.34 : 0.3)));
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
    canvas.style.height = height + "px";
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, width, height);
    for (const place of panels) drawPanel(place);
    drawAxis(bottom);
    canvas.dataset.from = Math.round(from);
    canvas.dataset.to = Math.round(to);
  }

  function drawPanel({ panel, top, rows }) {
    pen.textBaseline = "middle";
    pen.fillStyle = "#222";
    pen.font = "600 14px " + FONT;
    pen.fillText(panel.title, left, top - 30);
    for (const { row, y } of rows) {
      pen.font = (row.why ? "600 " : "") + (ROW > 14 ? "13px " : "11px ") + FONT;
      pen.fillStyle = "#222";
      pen.textAlign = "right";
      pen.fillText(name(row), left - 8, y + ROW / 2, left - 10);
      pen.textAlign = "left";
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, top - 22, width - left - 8, rows.length * ROW + 22);
    pen.clip();
    for (const { row, y } of rows) drawRow(row, y);
    drawSteps(panel, top, rows.length * ROW);
    pen.restore();
  }

  function drawRow(row, y) {
    pen.fillStyle = data.slow;
    for (const [a, b] of row.slow) pen.fillRect(x(a), y, Math.max(1, x(b) - x(a)), ROW);
    for (let n = first(row.bars); n < row.bars.length && row.bars[n] < to; n += FIELDS) {
      const [start, long, kind] = row.bars.slice(n, n + 3), a = x(start), b = x(start + long);
      const gap = b - a > 4 ? 0.7 : 0; // between micro-batches
      pen.fillStyle = data.kinds[kind % CANCELLED][1];
      pen.globalAlpha = kind >= CANCELLED ? 0.4 : 1;
      pen.fillRect(a, y + ROW * 0.14, Math.max(0.5, b - a - gap), ROW * 0.72);
    }
    pen.globalAlpha = 1;
  }

  // Where the first bar is that ends after the left edge: bars of a row follow each other.
  function first(bars, t = from) {
    let low = 0, high = bars.length / FIELDS;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[middle * FIELDS] + bars[middle * FIELDS + 1] <= t) low = middle + 1;
      else high = middle;
    }
    return low * FIELDS;
  }

  function drawSteps(panel, top, height) {
    let free = -Infinity;
    pen.font = "11px " + FONT;
    for (const [step, at] of panel.steps) {
      const px = x(at), text = free === -Infinity ? "step " + step : String(step);
      if (px < left - 1 || px > width) continue;
      pen.fillStyle = "#222";
      pen.fillRect(px - 0.5, top - 4, 1, height + 4);
      if (px > free) {
        pen.fillStyle = "#666";
        pen.fillText(text, px + 2, top - 11);
        free = px + pen.measureText(text).width + 10;
      }
    }
  }

  function drawAxis(y) {
    const wanted = (to - from) / Math.max(2, (width - left) / 90), ten = 10 ** Math.floor(Math.log10(wanted));
    const apart = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= wanted);
    const [by, unit] = to >= 2e6 ? [1e6, "s"] : to >= 2e3 ? [1e3, "ms"] : [1, "µs"];
    pen.font = "12px " + FONT;
    pen.textAlign = "center";
    for (let t = Math.ceil(from / apart) * apart; t <= to; t += apart) {
      pen.fillStyle = "#999";
      pen.fillRect(x(t) - 0.5, y - 6, 1, 5);
      pen.fillStyle = "#222";
      pen.fillText(String(Number((t / by).toPrecision(8))), Math.min(x(t), width - 16), y + 8);
    }
    pen.textAlign = "right";
    pen.fillText("time (" + unit + ")", width - 8, y + 25);
    pen.textAlign = "left";
  }

  // --- moving

  function show(a, b) {
    const span = Math.min(END, Math.max(LEAST_SPAN, b - a));
    from = Math.min(Math.max(0, a), END - span);
    to = from + span;
    tip.hidden = true;
    draw();
  }
  function zoom(factor, t = (from + to) / 2) {
    const span = Math.min(END, Math.max(LEAST_SPAN, (to - from) * factor)), share = (t - from) / (to - from);
    show(t - share * span, t + (1 - share) * span);
  }
  const move = (share) => show(from + share * (to - from), to + share * (to - from));
  const ACTIONS = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => show(0, END), Home: () => show(0, END),
    ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25),
  };

  canvas.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : ACTIONS[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  for (const button of box.querySelectorAll("button")) button.addEventListener("click", () => ACTIONS[button.dataset.key]());

  // A wheel scrolls the page until the timeline has been clicked, or with Ctrl.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / width);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), timeAt(event.offsetX));
  }, { passive: false });

  const fingers = new Map(); // pointers that are down: their last places
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX);
    try { canvas.setPointerCapture(event.pointerId); } catch { /* one that a program made */ }
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return tell(event.offsetX, event.offsetY);
    fingers.set(event.pointerId, event.offsetX);
    if (fingers.size === 1) return move((before - event.offsetX) / (width - left - 8));
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    const apart = Math.max(8, Math.abs(before - other));
    zoom(apart / Math.max(8, Math.abs(event.offsetX - other)), timeAt(other));
  });
  canvas.addEventListener("click", (event) => tell(event.offsetX, event.offsetY));

  // Says what a worker did at a place of the canvas.
  function tell(px, py) {
    const all = places().panels.flatMap((place) => place.rows.map((each) => ({ ...each, panel: place.panel })));
    const found = all.find((each) => py >= each.y && py < each.y + ROW), t = timeAt(px);
    const n = found && px >= left ? first(found.row.bars, t) : NaN;
    tip.hidden = !(n < (found ? found.row.bars.length : 0)) || found.row.bars[n] > t;
    if (tip.hidden) return;
    const [start, long, kind, step, label] = found.row.bars.slice(n, n + FIELDS);
    const why = found.row.why || (found.row.slow.some(([a, b]) => a <= t && t < b) ? "slow" : "");
    tip.textContent = found.panel.title + ", worker " + found.row.worker + (why ? " (" + why + ")" : "") + ", step " + step + ": "
      + data.kinds[kind % CANCELLED][0] + " for " + duration(long) + ", from " + duration(start)
      + (data.labels[label] ? "; " + data.labels[label] : "");
    tip.style.left = Math.max(0, Math.min(px + 12, width - tip.offsetWidth)) + "px";
    tip.style.top = found.y + ROW + 4 + "px";
  }

  new ResizeObserver(() => { if (box.clientWidth !== width) draw(); }).observe(box);
  draw();
})();
