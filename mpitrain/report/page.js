"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const edge = { left: 58, right: 14, top: 10, bottom: 42 };
  const ranges = {};  // what is shown of an axis, in all plots against it: [low, high]
  let axis = "seconds";

  // ---- numbers

  const plain = (v) => {
    const size = Math.abs(v);
    if (size === 0) return "0";
    if (size >= 1e4 && size < 1e15) return scaled(v, ["", "k", "M", "G", "T"]);
    return size < 1e-3 || size >= 1e15 ? v.toExponential(2).replace(/\.?0+e/, "e") : String(Number(v.toPrecision(4)));
  };
  const scaled = (v, units) => {
    let place = 0;
    while (Math.abs(v) >= 999.5 && place < units.length - 1) { v /= 1000; place += 1; }
    return `${Number(v.toPrecision(3))}${units[place]}`;
  };
  const forms = {
    number: plain,
    percent: (v) => `${Number((100 * v).toPrecision(3))} %`,
    bytes: (v) => scaled(v, [" B", " kB", " MB", " GB", " TB"]),
  };

  // ---- axes

  const titles = { seconds: "wall clock", samples: "samples", epochs: "epochs", staleness: "staleness, updates" };
  const units = [["s", 1, 180], ["min", 60, 180 * 60], ["h", 3600, Infinity]];

  const across = (plot) => plot.axis || axis;
  for (const run of data.runs) for (const at of run.resumed) at.epochs = at.samples / run.epoch;
  for (const curve of data.plots.flatMap((plot) => plot.curves)) {
    curve.epochs = curve.samples.map((n) => n / data.runs[curve.run].epoch);
    curve.staleness = curve.samples;  // of a distribution of ages
  }
  const step = (span, wanted) => {
    const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  };
  const linearTicks = (low, high, wanted, least = 0) => {
    const by = Math.max(step(high - low || 1, wanted), least);
    const first = Math.ceil(low / by - 1e-9), more = Math.min(Math.floor(high / by + 1e-9) - first, 20);
    return Array.from({ length: more + 1 || 0 }, (_, i) => (first + i) * by);
  };
  const logTicks = (low, high, wanted) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), ticks = [];
    const every = Math.ceil((last - first) / wanted) || 1, parts = last - first <= 3 ? [1, 2, 5] : [1];
    for (let e = first; e <= last; e += every) for (const m of parts) ticks.push(m * 10 ** e);
    const inside = ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
    return inside.length > 1 ? inside : linearTicks(low, high, wanted);
  };
  const scaleOf = (values, log, from, to, given) => {
    let [low, high] = given || [Math.min(...values), Math.max(...values)];
    if (!given) [low, high] = log ? [0.93 * low, 1.07 * high] : [Math.min(0, low), high];
    if (high === low) high = low + (Math.abs(low) || 1);
    const f = log ? Math.log : (v) => v;
    const place = (v) => from + (to - from) * (f(v) - f(low)) / (f(high) - f(low));
    return { low, high, place };
  };

  // ---- drawing

  const element = (name, attributes, parent, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent?.append(node);
    return node;
  };

  class Panel {
    constructor(figure) {
      this.plot = data.plots[figure.dataset.plot];
      this.frame = figure.querySelector(".drawing");
      this.log = this.plot.log;
      this.button = figure.querySelector(".scale");
      this.button.addEventListener("click", () => { this.log = !this.log; this.draw(); keep(); });
      this.whole = figure.querySelector(".whole");
      this.whole.addEventListener("click", () => { this.zoom(null); this.frame.focus({ preventScroll: true }); });
      figure.querySelector(".save").addEventListener("click", () => save(this));
      this.frame.tabIndex = 0;
      this.frame.setAttribute("role", "group");
      this.frame.setAttribute("aria-label", `${this.plot.title}: arrow keys show values`);
      const place = (event) => event.clientX - this.frame.getBoundingClientRect().left;
      const acts = {
        pointermove: (event) => this.point(place(event)),
        pointerdown: (event) => {
          this.point(place(event));
          if (event.pointerType === "touch" || event.button !== 0) return;  // a finger reads values and scrolls
          this.from = this.at;
          this.frame.setPointerCapture(event.pointerId);
        },
        pointerup: () => this.drop(),
        pointercancel: () => { this.from = undefined; this.leave(); },
        dblclick: () => this.zoom(null),
        pointerleave: () => this.leave(),
        blur: () => this.leave(),
        keydown: (event) => this.key(event),
      };
      for (const kind in acts) this.frame.addEventListener(kind, acts[kind]);
    }

    draw() {
      this.leave();
      const plot = this.plot, width = this.frame.clientWidth, height = this.frame.clientHeight;
      this.curves = plot.curves.filter((c) => !hidden.has(c.run)).map((c) => ({
        run: c.run,
        points: c.values.map((v, i) => [c[across(plot)][i], v]).filter(([, v]) => !this.log || v > 0),
      })).filter((c) => c.points.length);
      this.button.setAttribute("aria-pressed", this.log);
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.describe() });
      this.frame.replaceChildren(svg);
      this.svg = svg;
      if (!this.curves.length) {
        element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "no values to draw");
        return;
      }
      const all = this.curves.flatMap((c) => c.points), range = ranges[across(plot)];
      this.x = scaleOf(all.map((p) => p[0]), false, edge.left, width - edge.right, range);
      const seen = this.curves.flatMap((c) => [...within(c.points, this.x), ...crossings(c.points, this.x)]).map((p) => p[1]);
      this.y = scaleOf(seen.length ? seen : all.map((p) => p[1]), this.log, height - edge.bottom, edge.top);
      this.whole.hidden = !range;
      this.axes(svg, width, height);
      const [w, h] = [width - edge.left - edge.right, height - edge.bottom + 1];  // a part cuts off what lies beside the range
      const part = { class: "part", x: edge.left, y: 0, width: w, height: h, viewBox: `${edge.left} 0 ${w} ${h}` };
      const place = range ? element("svg", part, svg) : svg;
      for (const curve of this.curves) this.curve(place, curve, height);
    }

    axes(svg, width, height) {
      const form = forms[this.plot.form], base = height - edge.bottom;
      const ticks = (this.log ? logTicks : linearTicks)(this.y.low, this.y.high, this.log ? 7 : 5);
      for (const v of ticks) {
        const y = this.y.place(v);
        element("path", { class: "grid", d: `M${edge.left} ${y}H${width - edge.right}` }, svg);
        element("text", { x: edge.left - 7, y: y + 4, "text-anchor": "end" }, svg, form(v));
      }
      element("path", { class: "axis", d: `M${edge.left} ${base}H${width - edge.right}` }, svg);
      const by = across(this.plot);
      const [unit, seconds] = by === "seconds" ? units.find((u) => this.x.high <= u[2]) : ["", 1];
      const least = by === "staleness" || by === "samples" ? 1 : 0;  // counts
      for (const v of linearTicks(this.x.low / seconds, this.x.high / seconds, width < 420 ? 4 : 7, least)) {
        const x = this.x.place(v * seconds);
        element("path", { class: "axis", d: `M${x} ${base}v4` }, svg);
        element("text", { x, y: base + 18, "text-anchor": "middle" }, svg, plain(Number(v.toPrecision(12))));
      }
      const title = unit ? `${titles[by]}, ${unit}` : titles[by];
      element("text", { x: (edge.left + width - edge.right) / 2, y: base + 36, "text-anchor": "middle" }, svg, title);
    }

    curve(svg, { run, points }, height) {
      const group = element("g", { class: `s${run % 18}`, "data-run": run }, svg);
      const at = points.map(([x, y]) => [this.x.place(x).toFixed(1), this.y.place(y).toFixed(1)]);
      const by = across(this.plot), told = data.runs[run];
      for (const at of by === "staleness" ? [] : told.resumed) {
        const d = `M${this.x.place(at[by])} ${edge.top}V${height - edge.bottom}`;
        element("title", {}, element("path", { class: at.lost ? "lost" : "resumed", d }, group), at.lost || "resumed");
      }
      element("path", { class: "line", d: "M" + at.map((p) => p.join(" ")).join("L") }, group);
      if (within(points, this.x).length <= 40) for (const [x, y] of at) element("circle", { class: "dot", cx: x, cy: y, r: 2.2 }, group);
      if (!told.whole && by !== "staleness") {
        const [x, y] = at[at.length - 1];
        element("path", { class: "cut", d: `M${x} ${y}m-5 -5l10 10m0 -10l-10 10` }, group);
      }
    }

    describe() {
      const form = forms[this.plot.form], by = titles[across(this.plot)];
      const lines = this.curves.map(({ run, points }) =>
        `${data.runs[run].name} from ${form(points[0][1])} to ${form(points[points.length - 1][1])}`);
      return `${this.plot.title} against ${by}: ${lines.join("; ") || "nothing"}.`;
    }

    // ---- values under the pointer

    point(px) {
      if (!this.curves.length) return;
      this.leave();
      const width = this.frame.clientWidth, base = this.frame.clientHeight - edge.bottom;
      this.at = Math.max(edge.left, Math.min(px, width - edge.right));
      const shown = this.curves.map((c) => ({ run: c.run, points: within(c.points, this.x) })).filter((c) => c.points.length);
      const reached = shown.map((c) => ({ run: c.run, point: nearest(c.points, (p) => Math.abs(this.x.place(p[0]) - this.at)) }))
        .filter(({ point }) => Math.abs(this.x.place(point[0]) - this.at) < 40)
        .sort((a, b) => b.point[1] - a.point[1]);
      this.marks = element("g", {}, this.svg);
      element("path", { class: "cursor", d: `M${this.at} ${edge.top}V${base}` }, this.marks);
      for (const { run, point } of reached)
        element("circle", { class: `dot s${run % 18}`, cx: this.x.place(point[0]), cy: this.y.place(point[1]), r: 4 }, this.marks);
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.setAttribute("role", "status");
      this.tip.append(this.list(reached));
      const right = this.at < width / 2;
      this.tip.style[right ? "left" : "right"] = `${right ? this.at + 12 : width - this.at + 12}px`;
      this.frame.append(this.tip);
      if (this.from === undefined) return;
      const [from, to] = [this.from, this.at].sort((a, b) => a - b);
      element("rect", { class: "chosen", x: from, y: edge.top, width: to - from, height: base - edge.top }, this.marks);
    }

    list(reached) {
      const table = document.createElement("table"), by = across(this.plot), form = forms[this.plot.form];
      const row = (name, value, run) => {
        const line = table.insertRow(), cell = line.insertCell();
        if (run !== undefined) cell.append(document.querySelector(`#legend [data-run="${run}"] svg`).cloneNode(true));
        cell.append(name);
        line.insertCell().textContent = value;
      };
      const value = this.value(this.at);
      row(titles[by], by === "seconds" ? `${Number(value.toPrecision(4))} s` : plain(Number(value.toPrecision(3))));
      for (const { run, point } of reached) row(data.runs[run].name, form(point[1]), run);
      return table;
    }

    key(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") { if (this.marks) this.leave(); else this.zoom(null); }
      const factor = { "+": 0.5, "-": 2 }[event.key];
      if (factor && this.curves.length) {
        const { low, high } = this.x, middle = this.at === undefined ? (low + high) / 2 : this.value(this.at);
        this.zoom([middle - (middle - low) * factor, middle + (high - middle) * factor]);
      }
      if (!move || !this.curves.length) return;
      event.preventDefault();
      this.point((this.at ?? edge.left) + 0.02 * move * this.frame.clientWidth);
    }

    // ---- zoom: all plots against the same axis show the same part of it

    value(px) {
      const fraction = (px - edge.left) / (this.frame.clientWidth - edge.left - edge.right);
      return this.x.low + fraction * (this.x.high - this.x.low);
    }

    drop() {
      const from = this.from;
      this.from = undefined;
      if (from === undefined || !this.curves.length) return;
      if (Math.abs(this.at - from) > 8) this.zoom([this.value(from), this.value(this.at)].sort((a, b) => a - b));
    }

    zoom(range) {
      const by = across(this.plot);
      const every = panels.filter((panel) => across(panel.plot) === by);
      const ends = every.flatMap((panel) => panel.curves.flatMap((c) => [c.points[0][0], c.points[c.points.length - 1][0]]));
      const low = Math.min(0, ...ends), high = Math.max(...ends);
      if (range) range = [Math.max(range[0], low), Math.min(range[1], high)];
      if (!range || !(range[1] - range[0] > 1e-6 * (high - low)) || (range[0] <= low && range[1] >= high)) delete ranges[by];
      else ranges[by] = range;
      for (const panel of every) panel.draw();
      keep();
    }

    leave() {
      this.marks?.remove();
      this.tip?.remove();
      this.marks = this.tip = undefined;
    }
  }

  const within = (points, x) => points.filter(([at]) => at >= x.low && at <= x.high);
  const crossings = (points, x) => points.slice(1).flatMap((b, i) => [x.low, x.high].filter((at) => points[i][0] < at && at < b[0])
    .map((at) => [at, points[i][1] + (b[1] - points[i][1]) * (at - points[i][0]) / (b[0] - points[i][0])]));
  const nearest = (points, distance) => points.reduce((best, p) => (distance(p) < distance(best) ? p : best));

  // ---- a plot as a file

  const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "opacity"];
  const save = (panel) => {
    const width = panel.frame.clientWidth, line = 18, style = getComputedStyle(document.body);
    const names = panel.curves.map((c) => c.run), high = panel.frame.clientHeight + 28 + line * names.length;
    const picture = element("svg", { width, height: high, viewBox: `0 0 ${width} ${high}`, "font-family": "sans-serif" });
    element("rect", { width, height: high, fill: style.backgroundColor }, picture);
    element("text", { x: 8, y: 18, fill: style.color, "font-size": 14, "font-weight": 600 }, picture, panel.plot.title);
    panel.leave();
    const copy = panel.svg.cloneNode(true), shown = [...panel.svg.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((node, i) => {
      const found = getComputedStyle(shown[i]);
      for (const key of KEPT) node.setAttribute(key, found[key]);
    });
    for (const [key, value] of Object.entries({ y: 28, width, height: panel.frame.clientHeight })) copy.setAttribute(key, value);
    picture.append(copy);
    names.forEach((run, i) => {
      const y = panel.frame.clientHeight + 28 + line * i + 9;
      const found = getComputedStyle(document.querySelector(`#legend [data-run="${run}"] path`));
      element("path", { d: `M8 ${y - 4}H34`, stroke: found.stroke, "stroke-width": 2, "stroke-dasharray": found.strokeDasharray }, picture);
      element("text", { x: 42, y, fill: style.color, "font-size": 12 }, picture, data.runs[run].name);
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" }));
    link.download = `${panel.plot.key}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // ---- controls

  const panels = [...document.querySelectorAll("figure.plot")].map((figure) => new Panel(figure));
  const draw = () => panels.forEach((panel) => panel.draw());

  for (const input of document.querySelectorAll('input[name="axis"]'))
    input.addEventListener("change", () => { axis = input.value; draw(); keep(); });

  const single = (run) => {
    for (const group of document.querySelectorAll("figure.plot g[data-run]")) {
      group.classList.toggle("faded", run !== null && group.dataset.run !== run);
      group.classList.toggle("lit", group.dataset.run === run);
      if (group.dataset.run === run) group.parentNode.append(group);
    }
  };
  for (const button of document.querySelectorAll("#legend button")) {
    const run = button.dataset.run;
    button.addEventListener("click", () => {
      const shown = hidden.delete(Number(run));
      if (!shown) hidden.add(Number(run));
      button.setAttribute("aria-pressed", shown);
      draw();
      keep();
    });
  }
  for (const name of document.querySelectorAll("#legend button, .run[data-run]:not(#legend .run)")) {
    const run = name.dataset.run;
    for (const kind of ["pointerenter", "focus"])
      name.addEventListener(kind, () => { if (!hidden.has(Number(run))) single(run); });
    for (const kind of ["pointerleave", "blur"]) name.addEventListener(kind, () => single(null));
  }

  // ---- a page that is rewritten while runs go on loads itself anew, and keeps what the reader chose

  const watched = document.documentElement.dataset.watch, place = `mpitrain ${location.pathname}`;
  const keep = () => {
    if (watched) sessionStorage.setItem(place, JSON.stringify({ axis, ranges, hidden: [...hidden], logs: panels.map((p) => p.log) }));
  };
  const recall = () => {
    const kept = JSON.parse(sessionStorage.getItem(place) || "{}");
    Object.assign(ranges, kept.ranges);
    (kept.logs || []).forEach((log, i) => { if (panels[i]) panels[i].log = log; });
    // last, as clicks draw, and keep all that there is
    if (kept.axis) document.querySelector(`input[value="${kept.axis}"]`).click();
    for (const run of kept.hidden || []) document.querySelector(`#legend [data-run="${run}"]`)?.click();
  };
  if (watched) {
    recall();
    const again = () => (document.querySelector(".tip") ? setTimeout(again, 1000) : location.reload());
    setTimeout(again, 1000 * Number(watched));
  }

  let width = 0;
  new ResizeObserver(() => {
    const now = document.getElementById("plots").clientWidth;
    if (now !== width) { width = now; draw(); }
  }).observe(document.getElementById("plots"));
})();
