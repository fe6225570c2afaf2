"use strict";
// Draws the figures that the page carries, and gives them the page's colours in the reader's light or dark scheme.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover" };

  const colours = (layout) => {
    const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const change = {
      "font.color": of("--ink"), "hoverlabel.bgcolor": of("--card"), "hoverlabel.font.color": of("--ink"),
      "hoverlabel.bordercolor": of("--line"), "modebar.color": of("--soft"), "modebar.activecolor": of("--ink"),
      "modebar.bgcolor": "rgba(0,0,0,0)",
    };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      change[`${axis}.gridcolor`] = of("--grid");
      change[`${axis}.linecolor`] = of("--line");
    }
    return change;
  };
  const draw = async (id, figure) => {
    const layout = { ...figure.layout, dragmode: touch ? false : "zoom" };  // a finger that scrolls must not zoom
    await Plotly.newPlot(id, figure.data, layout, config);
    await Plotly.relayout(id, colours(layout));
  };
  const recolour = () => {
    for (const [id, figure] of Object.entries(figures)) Plotly.relayout(id, colours(figure.layout));
  };
  // a picture wider than the screen starts at its middle, where the cloud is
  for (const box of document.querySelectorAll(".plan .scroll")) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
  const all = Object.entries(figures).map(([id, figure]) => draw(id, figure));
  Promise.all(all).then(() => document.documentElement.setAttribute("data-drawn", String(all.length)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
})();
