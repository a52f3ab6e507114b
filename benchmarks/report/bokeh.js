// The curves by Bokeh: lines, log scales, zoom in step, values under the pointer, pictures, a legend that hides runs.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#2949db", "#c97f0b", "#0ea09c", "#b7351e", "#874885", "#4b275c"];
const range = new Bokeh.DataRange1d();
const figures = data.plots.map((plot) => {
  const figure = Bokeh.Plotting.figure({
    title: plot.title, height: 300, sizing_mode: "stretch_width", tools: "pan,box_zoom,wheel_zoom,hover,reset,save",
    y_axis_type: plot.log ? "log" : "linear", ...(plot.axis ? {} : { x_range: range }), output_backend: "svg",
  });
  for (const c of plot.curves)
    figure.line(plot.axis ? c.samples : c.seconds, c.values, {
      color: COLOURS[c.run % 6], line_width: 2, line_dash: ["solid", "dashed", "dotted"][Math.floor(c.run / 6) % 3],
      legend_label: data.runs[c.run].name,
    });
  figure.legend.click_policy = "hide";
  return figure;
});
const rows = Array.from({ length: Math.ceil(figures.length / 2) }, (_, i) => figures.slice(2 * i, 2 * i + 2));
window.ready = Bokeh.Plotting.show(Bokeh.Plotting.gridplot(rows, { sizing_mode: "stretch_width" }), document.getElementById("plots"));
