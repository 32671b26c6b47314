// The page's figures and its table of cells. Plain functions, no library but Plotly; texts of users are only ever set as
// text, or escaped where Plotly takes markup. Tables are in the page as they are: this file lets them be sorted and filtered.
"use strict";
const byId = (id) => document.getElementById(id);
let figures = {};

async function unpacked(id) { // gzip in base64: what is large is packed
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(stream).text();
}
// -- drawing ---------------------------------------------------------------------------------------

function draw(plot, traces, layout, print) {
  const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
  const [ink, grid, line] = print ? ["#000", "#e6e9ed", "#999"] : ["--ink", "--grid", "--soft"].map(read);
  const axis = (a) => ({automargin: true, gridcolor: grid, linecolor: line, tickcolor: line, zeroline: false,
    ticks: "outside", ticklen: 4, tickfont: {size: 11}, showline: true, ...a});
  const made = {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger on a plot scrolls the page
    font: {color: ink, size: 12, family: "system-ui, sans-serif"}, margin: {l: 60, r: 16, t: 34, b: 50},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: line, activecolor: ink},
    legend: {orientation: "h", x: 0, xanchor: "left", y: -0.3, yanchor: "top", font: {size: 12}}, ...layout};
  for (const key of Object.keys(layout)) if (/axis\d?$/.test(key)) made[key] = axis(layout[key]);
  // anew, not by react, which would go back to the first ranges when axes are reset
  Plotly.newPlot(plot, traces, made, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]});
}
function paint(print) { // what is in sight: plotly needs to know the room that a plot has
  for (const [key, figure] of Object.entries(figures)) {
    if (!byId(key).closest("[hidden]")) draw(byId(key), figure.data, figure.layout, print);
  }
}
function menu() { // of the curves one figure is shown
  byId("figure")?.addEventListener("change", (event) => {
    for (const section of document.querySelectorAll("[data-curve]")) section.hidden = section.dataset.curve !== event.target.value;
    paint(false);
  });
}

// -- the table of cells ------------------------------------------------------------------------------

function cellTable() {
  const table = byId("cell-table"), rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const selects = [...document.querySelectorAll("select[data-column]")];
  const value = (row, j) => row.cells[j].dataset.v ?? (heads[j].classList.contains("left") ? row.cells[j].textContent : "");
  function filter() {
    const parts = byId("filter-text").value.toLowerCase().split(/\s+/).filter((word) => word);
    const wanted = selects.filter((select) => select.value).map((select) => [Number(select.dataset.column), select.value]);
    for (const row of rows) {
      row.hidden = !(wanted.every(([j, text]) => (row.cells[j].dataset.f ?? row.cells[j].textContent) === text)
        && parts.every((word) => texts.get(row).includes(word)));
    }
    byId("cell-count").textContent = `${rows.filter((row) => !row.hidden).length.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} cells`;
  }
  for (const select of selects) select.addEventListener("change", filter);
  byId("filter-text").addEventListener("input", filter);
  document.querySelectorAll("a[data-ending]").forEach((link) => link.addEventListener("click", () => {
    byId("filter-Status").value = link.dataset.ending;
    filter();
  }));
  heads.forEach((head, j) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", number = !head.classList.contains("left");
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keys = new Map(rows.map((row) => [row, value(row, j)]));
      rows.sort((a, b) => {
        const [p, q] = [keys.get(a), keys.get(b)];
        if (p === "" || q === "") return (p === "") - (q === ""); // what is not known comes last, either way
        return (down ? -1 : 1) * (number ? Number(p) - Number(q) : p.localeCompare(q, "en", {numeric: true}));
      });
      table.tBodies[0].append(...rows);
    });
  });
  filter();
}

async function begin() {
  document.documentElement.classList.add("js");
  cellTable();
  try {
    figures = JSON.parse(await unpacked("data"));
    const library = document.createElement("script");
    library.textContent = await unpacked("plotly");
    document.head.append(library);
  } catch (error) {
    for (const said of document.querySelectorAll(".unpacked")) said.textContent = `Figures could not be drawn: this browser is too old (${error.message}). Tables are complete.`;
    return;
  }
  menu();
  paint(false);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(false));
  addEventListener("beforeprint", () => paint(true));
  addEventListener("afterprint", () => paint(false));
  document.documentElement.classList.add("drawn");
}
begin();
