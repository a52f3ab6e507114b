// The curves by uPlot: lines, log scales, wheel-less zoom by dragging, values in the legend, all plots in step.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#2949db", "#c97f0b", "#0ea09c", "#b7351e", "#874885", "#4b275c"];
const sync = uPlot.sync("plots");
for (const plot of data.plots) {
  const frame = document.getElementById("plots").appendChild(document.createElement("div"));
  const tables = plot.curves.map((c) => [plot.axis ? c.samples : c.seconds, c.values]);
  const series = plot.curves.map((c) => ({
    label: data.runs[c.run].name, stroke: COLOURS[c.run % 6], width: 2, dash: [[], [7, 4], [2, 3]][Math.floor(c.run / 6) % 3], spanGaps: true,
  }));
  new uPlot({
    title: plot.title, width: frame.clientWidth, height: 220, cursor: { sync: { key: sync.key, setSeries: true } }, focus: { alpha: 0.2 },
    scales: { x: { time: false }, y: { distr: plot.log ? 3 : 1 } }, series: [{}, ...series],
  }, uPlot.join(tables), frame);
}
window.ready = Promise.resolve();
