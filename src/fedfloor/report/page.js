"use strict";
// Draws the figures contained in the page; the style sheet colours them for light, dark and print.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover" };
  const PAPER = { width: 680, height: 740 };  // px: fits on a sheet of A4 or Letter with the heading

  const draw = (id, figure) => {
    const modebar = { bgcolor: "rgba(0,0,0,0)" };
    const layout = { ...figure.layout, modebar, dragmode: touch ? false : "zoom" };  // a finger that scrolls must not zoom
    return Plotly.newPlot(id, figure.data, layout, config);
  };
  const resize = (inside) => {
    for (const chart of inside.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(chart);
  };
  // marks boxes that are wider than the screen
  const hint = () => {
    for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
  };
  hint();
  addEventListener("resize", hint);
  // a drawing wider than the screen starts at its middle, at the cloud
  for (const box of document.querySelectorAll("#s-plan .scroll")) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
  for (const fold of document.querySelectorAll("details.figure")) fold.addEventListener("toggle", () => resize(fold));
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", hint);
  const all = Object.entries(figures).map(([id, figure]) => draw(id, figure));
  Promise.all(all).then(() => {
    hint();
    document.documentElement.setAttribute("data-drawn", String(all.length));
  });

  // sorts a table by the column whose name was clicked; cells without a number stay at the end
  const sort = (head) => {
    const table = head.closest("table");
    const column = head.cellIndex;
    const rising = head.getAttribute("aria-sort") !== "ascending";
    const key = (row) => row.cells[column].dataset.value === undefined ? NaN : Number(row.cells[column].dataset.value);
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [one, other] = [key(a), key(b)];
      if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) - Number.isNaN(other);
      return rising ? one - other : other - one;
    });
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  };
  for (const head of document.querySelectorAll(".sorts th[scope=col]")) head.firstElementChild.addEventListener("click", () => sort(head));

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.figure:not([open])")];
    for (const fold of opened) fold.open = true;
    for (const [id, figure] of Object.entries(figures)) {
      const height = Math.min(figure.layout.height, PAPER.height);
      document.getElementById(id).style.minHeight = "0";
      Plotly.relayout(id, { width: PAPER.width, height, autosize: false });
    }
  });
  addEventListener("afterprint", () => {
    for (const [id, figure] of Object.entries(figures)) {
      Plotly.relayout(id, { width: null, height: figure.layout.height, autosize: true });
    }
    for (const fold of opened) fold.open = false;
  });
})();
