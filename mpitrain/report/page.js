"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const edge = { left: 58, right: 14, top: 10, bottom: 42 };
  let axis = "seconds";

  // ---- numbers

  const plain = (v) => {
    const size = Math.abs(v);
    if (size === 0) return "0";
    if (size >= 1e4) return scaled(v, ["", "k", "M", "G", "T"]);
    return size < 1e-3 ? v.toExponential(2).replace(/\.?0+e/, "e") : String(Number(v.toPrecision(4)));
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
  const places = (plot, curve) => {
    const by = across(plot);
    if (by === "epochs") return curve.samples.map((n) => n / data.runs[curve.run].epoch);
    return by === "staleness" ? curve.samples : curve[by];
  };
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
  const scaleOf = (values, log, from, to) => {
    let low = Math.min(...values), high = Math.max(...values);
    if (log) { low *= 0.93; high *= 1.07; } else { low = Math.min(0, low); if (high === low) high = low + (Math.abs(low) || 1); }
    const f = log ? Math.log : (v) => v;
    const place = (v) => from + (to - from) * (f(v) - f(low)) / (f(high) - f(low));
    return { low, high, place };
  };

  // ---- drawing

  const element = (name, attributes, parent, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  class Panel {
    constructor(figure) {
      this.plot = data.plots[figure.dataset.plot];
      this.frame = figure.querySelector(".drawing");
      this.log = this.plot.log;
      const button = figure.querySelector(".scale");
      button.setAttribute("aria-label", `logarithmic scale: ${this.plot.title}`);
      button.addEventListener("click", () => { this.log = !this.log; this.draw(); });
      this.button = button;
      this.frame.tabIndex = 0;
      this.frame.addEventListener("pointermove", (event) => this.point(event.clientX - this.frame.getBoundingClientRect().left));
      this.frame.addEventListener("pointerdown", (event) => this.point(event.clientX - this.frame.getBoundingClientRect().left));
      this.frame.addEventListener("pointerleave", () => this.leave());
      this.frame.addEventListener("blur", () => this.leave());
      this.frame.addEventListener("keydown", (event) => this.key(event));
    }

    draw() {
      this.leave();
      const plot = this.plot, width = this.frame.clientWidth, height = this.frame.clientHeight;
      this.curves = plot.curves.filter((c) => !hidden.has(c.run)).map((c) => {
        const xs = places(plot, c);
        const points = c.values.map((v, i) => [xs[i], v]).filter(([, v]) => !this.log || v > 0);
        return { run: c.run, points };
      }).filter((c) => c.points.length);
      this.button.setAttribute("aria-pressed", this.log);
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", this.describe());
      this.frame.replaceChildren(svg);
      this.svg = svg;
      if (!this.curves.length) {
        element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "no values to draw");
        return;
      }
      const all = this.curves.flatMap((c) => c.points);
      this.x = scaleOf(all.map((p) => p[0]), false, edge.left, width - edge.right);
      this.y = scaleOf(all.map((p) => p[1]), this.log, height - edge.bottom, edge.top);
      this.axes(svg, width, height);
      for (const curve of this.curves) this.curve(svg, curve, height);
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
      if (by !== "staleness") {
        for (const [seconds, samples] of told.resumed) {
          const x = this.x.place({ seconds, samples, epochs: samples / told.epoch }[by]);
          element("path", { class: "resumed", d: `M${x} ${edge.top}V${height - edge.bottom}` }, group);
        }
      }
      element("path", { class: "line", d: "M" + at.map((p) => p.join(" ")).join("L") }, group);
      if (points.length <= 40) for (const [x, y] of at) element("circle", { class: "dot", cx: x, cy: y, r: 2.2 }, group);
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
      const width = this.frame.clientWidth;
      this.at = Math.max(edge.left, Math.min(px, width - edge.right));
      const reached = this.curves.map((c) => ({ run: c.run, point: nearest(c.points, (p) => Math.abs(this.x.place(p[0]) - this.at)) }))
        .filter(({ point }) => Math.abs(this.x.place(point[0]) - this.at) < 40)
        .sort((a, b) => b.point[1] - a.point[1]);
      this.marks = element("g", {}, this.svg);
      element("path", { class: "cursor", d: `M${this.at} ${edge.top}V${this.frame.clientHeight - edge.bottom}` }, this.marks);
      for (const { run, point } of reached)
        element("circle", { class: `dot s${run % 18}`, cx: this.x.place(point[0]), cy: this.y.place(point[1]), r: 4 }, this.marks);
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.setAttribute("role", "status");
      this.tip.append(this.list(reached));
      const right = this.at < width / 2;
      this.tip.style[right ? "left" : "right"] = `${right ? this.at + 12 : width - this.at + 12}px`;
      this.frame.append(this.tip);
    }

    list(reached) {
      const table = document.createElement("table"), by = across(this.plot), form = forms[this.plot.form];
      const fraction = (this.at - edge.left) / (this.frame.clientWidth - edge.left - edge.right);
      const row = (name, value, run) => {
        const line = table.insertRow(), cell = line.insertCell();
        if (run !== undefined) cell.append(document.querySelector(`#legend [data-run="${run}"] svg`).cloneNode(true));
        cell.append(name);
        line.insertCell().textContent = value;
      };
      const value = this.x.low + fraction * (this.x.high - this.x.low);
      row(titles[by], by === "seconds" ? `${Number(value.toPrecision(4))} s` : plain(Number(value.toPrecision(3))));
      for (const { run, point } of reached) row(data.runs[run].name, form(point[1]), run);
      return table;
    }

    key(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.leave();
      if (!move || !this.curves.length) return;
      event.preventDefault();
      this.point((this.at ?? edge.left) + 0.02 * move * this.frame.clientWidth);
    }

    leave() {
      this.marks?.remove();
      this.tip?.remove();
      this.marks = this.tip = undefined;
    }
  }

  const nearest = (points, distance) => points.reduce((best, p) => (distance(p) < distance(best) ? p : best));

  // ---- controls

  const panels = [...document.querySelectorAll("figure.plot")].map((figure) => new Panel(figure));
  const draw = () => panels.forEach((panel) => panel.draw());

  for (const input of document.querySelectorAll('input[name="axis"]'))
    input.addEventListener("change", () => { axis = input.value; draw(); });

  const fade = (run) => {
    for (const group of document.querySelectorAll("figure.plot g[data-run]"))
      group.classList.toggle("faded", run !== null && group.dataset.run !== run);
  };
  for (const button of document.querySelectorAll("#legend button")) {
    const run = button.dataset.run;
    button.addEventListener("click", () => {
      const now = hidden.has(Number(run));
      if (now) hidden.delete(Number(run)); else hidden.add(Number(run));
      button.setAttribute("aria-pressed", now);
      draw();
    });
    button.addEventListener("pointerenter", () => { if (!hidden.has(Number(run))) fade(run); });
    button.addEventListener("pointerleave", () => fade(null));
  }

  let width = 0;
  new ResizeObserver(() => {
    const now = document.getElementById("plots").clientWidth;
    if (now !== width) { width = now; draw(); }
  }).observe(document.getElementById("plots"));
})();
