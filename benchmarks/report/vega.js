// The curves by Vega-Lite with its interpreter (no eval): lines, log scales, zoom, values under the pointer, pictures.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#2949db", "#c97f0b", "#0ea09c", "#b7351e", "#874885", "#4b275c"];
const names = data.runs.map((run) => run.name);
window.ready = Promise.all(data.plots.map((plot) => {
  const frame = document.getElementById("plots").appendChild(document.createElement("div"));
  const values = plot.curves.flatMap((c) =>
    (plot.axis ? c.samples : c.seconds).map((x, i) => ({ x, y: c.values[i], run: data.runs[c.run].name })));
  return vegaEmbed(frame, {
    title: plot.title, width: 480, height: 220, data: { values },
    params: [{ name: "zoom", select: "interval", bind: "scales" }, { name: "run", select: { type: "point", fields: ["run"] }, bind: "legend" }],
    mark: { type: "line", tooltip: true },
    encoding: {
      x: { field: "x", type: "quantitative" }, y: { field: "y", type: "quantitative", scale: { type: plot.log ? "log" : "linear" } },
      color: { field: "run", scale: { domain: names, range: names.map((_, i) => COLOURS[i % 6]) } },
      opacity: { condition: { param: "run", value: 1 }, value: 0.2 },
    },
  }, { ast: true, renderer: "svg" });
}));
