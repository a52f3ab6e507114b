// The curves by Plotly (basic): lines, log scales, zoom, values under the pointer, pictures, a legend that hides runs.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#2949db", "#c97f0b", "#0ea09c", "#b7351e", "#874885", "#4b275c"];
const FORMS = { percent: ".3~%", bytes: ".3~s", number: ".4~g" };
window.ready = Promise.all(data.plots.map((plot) => {
  const frame = document.getElementById("plots").appendChild(document.createElement("div"));
  const traces = plot.curves.map((c) => ({
    x: plot.axis ? c.samples : c.seconds, y: c.values, name: data.runs[c.run].name, mode: "lines",
    line: { color: COLOURS[c.run % 6], width: 2, dash: ["solid", "dash", "dot"][Math.floor(c.run / 6) % 3] },
  }));
  const layout = {
    title: { text: plot.title }, height: 300, hovermode: "x unified", margin: { l: 58, r: 14, t: 40, b: 42 },
    xaxis: { title: { text: plot.axis || "seconds" } }, yaxis: { type: plot.log ? "log" : "linear", tickformat: FORMS[plot.form] },
  };
  return Plotly.newPlot(frame, traces, layout, { responsive: true, toImageButtonOptions: { format: "svg" } });
}));
