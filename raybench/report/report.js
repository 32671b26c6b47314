// The page's figures and its table of cells. Plain functions, no library but Plotly; texts of users are only ever set as
// text, or escaped where Plotly takes markup. Tables are in the page as they are: this file lets them be sorted and filtered.
"use strict";
const byId = (id) => document.getElementById(id);
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const unescaped = (label) => label.replaceAll("<sup>t</sup>", "ᵗ").replaceAll("<sub>i</sub>", "ᵢ")
  .replaceAll("&lt;", "<").replaceAll("&amp;", "&");

async function unpacked(id) { // gzip in base64: what is large is packed
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(stream).text();
}
function option(select, value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  select.append(made);
}

// -- medians and bands: as raybench.analysis.bands defines them ----------------------------------

function median(values) {
  const sorted = values.toSorted((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
function curve(cell, x, y) { // the rows in which both are known
  if (cell[x] === undefined || cell[y] === undefined) return [];
  const [xs, ys, rounds] = [x, y, "round"].map((key) => data.arrays[cell[key]]);
  return xs.map((value, i) => ({x: value, y: ys[i], round: rounds[i]})).filter((p) => p.x !== null && p.y !== null);
}
function band(line, x, y) { // at each x the median over seeds, and between which seeds an interval lies
  const seeds = line.cells.map((cell) => curve(cell, x, y)).filter((seed) => seed.length);
  if (!seeds.length) return null;
  const end = median(seeds.map((seed) => seed.at(-1).x));
  const middle = [...Map.groupBy(seeds.flat(), (p) => p.round).values()].map((ps) => median(ps.map((p) => p.x)));
  const xs = [...new Set([...middle.filter((v) => v < end), end])].sort((a, b) => a - b);
  const made = {x: [], y: [], low: [], high: [], seeds: seeds.length}, at = seeds.map(() => -1);
  for (const value of xs) {
    seeds.forEach((seed, j) => { while (at[j] + 1 < seed.length && seed[at[j] + 1].x <= value) at[j] += 1; });
    const ys = seeds.flatMap((seed, j) => at[j] < 0 ? [] : [seed[at[j]].y]).sort((a, b) => a - b);
    if (!ys.length) continue;
    const rank = data.ranks[ys.length][0];
    made.x.push(value);
    made.y.push(median(ys));
    made.low.push(ys[rank - 1]);
    made.high.push(ys[ys.length - rank]);
  }
  return made;
}

// -- curves, with axes, methods and K chosen in the page -----------------------------------------

const AREA = 300; // pixels of a plot's height without its titles and legend
let data = {}, figures = {};
const chosen = {}, axisOf = (name) => data[`${name}s`].find((axis) => axis.key === chosen[name]);

function bandsOf(panel) { // of the lines that are chosen: [line, method, band]
  const lines = data.lines.filter((line) => line.panel === panel
    && (chosen.k === "all" || line.k === "" || (chosen.k === "best" ? line.best : line.k === chosen.k)));
  return lines.map((line) => [line, data.methods[line.method], band(line, chosen.x, chosen.y)]).filter(([, , b]) => b);
}
function traces(bands) {
  const lowest = (values) => values.map((v) => chosen.logY ? Math.max(v, data.lowest) : v);
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  return bands.flatMap(([line, method, found]) => {
    const kept = [...found.x.keys()].filter((i) => !chosen.logX || found.x[i] > 0);
    const pick = (key) => kept.map((i) => found[key][i]);
    const same = bands.filter(([, other]) => other === method).map(([other]) => other.k); // a dash for each K of a method
    const common = {type: "scatter", x: pick("x"), meta: method.name, visible: method.on || "legendonly"};
    const edge = {...common, mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false};
    const shade = found.seeds < 2 ? [] : [{...edge, y: lowest(pick("low"))},
      {...edge, y: lowest(pick("high")), fill: "tonexty", fillcolor: `${method.colour}2e`}];
    return [...shade, {...common, y: lowest(pick("y")), name: escaped(line.label), seeds: found.seeds,
      mode: kept.length > 1 ? "lines" : "markers", marker: {size: 7},
      line: {color: method.colour, width: 2, dash: same.length > 1 ? dashes[same.indexOf(line.k) % 6] : method.dash},
      hovertemplate: `%{x:.4~${axisOf("x").unit === "bit" ? "s" : "g"}} ${axisOf("x").unit}: %{y:.3~g}<extra>%{fullData.name}</extra>`}];
  });
}
function span(values, log) { // the range of an axis, in powers of ten if it is logarithmic
  const ends = [Math.min, Math.max].map((f) => values.reduce((a, b) => f(a, b))).map(log ? Math.log10 : (v) => v);
  const room = 0.04 * (ends[1] - ends[0]) || 0.1;
  return [ends[0] - room, ends[1] + room];
}
function start(lines) { // where a logarithmic axis of x starts, so that first rows do not take half of it
  const first = Math.min(...lines.map((t) => t.x[0])), end = Math.min(...lines.map((t) => t.x.at(-1)));
  return Math.max(first, Math.min(end / 30, first * 1e3));
}
function paintCurves(print) {
  const x = axisOf("x"), y = axisOf("y");
  const panels = data.panels.map((_, i) => i).filter((i) => chosen.panel === "all" || chosen.panel === String(i));
  const drawn = panels.map((panel) => traces(bandsOf(panel))), all = drawn.flat().filter((t) => t.visible === true && t.x.length);
  data.panels.forEach((_, i) => { byId(`curves-${i}`).parentElement.hidden = !panels.includes(i); });
  panels.forEach((panel, j) => {
    const plot = byId(`curves-${panel}`), lines = drawn[j].filter((t) => t.name && t.visible === true && t.x.length);
    const layout = {showlegend: true,
      xaxis: {title: {text: x.label}, type: chosen.logX ? "log" : "linear", rangemode: "tozero", tickangle: 0, nticks: Math.floor((plot.clientWidth - 80) / 65)},
      yaxis: {title: {text: y.label, standoff: 12}, type: chosen.logY ? "log" : "linear", exponentformat: "power", nticks: 8}};
    if (x.unit) layout.xaxis.tickformat = x.unit === "bit" ? "~s" : "~g";
    if (chosen.logX && lines.length) layout.xaxis.range = span([start(lines), ...lines.map((t) => t.x.at(-1))], true);
    if (all.length) layout.yaxis.range = span(all.flatMap((t) => t.y), chosen.logY); // one for all panels, to compare them
    if (!lines.length) layout.annotations = [{text: "nothing to draw", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5}];
    const named = drawn[j].filter((t) => t.name).map((t) => 60 + 6.5 * t.name.length); // about the pixels of each name
    const across = Math.max(1, Math.floor((plot.clientWidth - 90) / Math.max(...named, 1))), room = 22 * Math.ceil(named.length / across);
    plot.style.height = `${AREA + 104 + room}px`;
    layout.legend = {orientation: "h", traceorder: "normal", x: 0, y: -60 / AREA, yanchor: "top", entrywidth: Math.max(...named, 1) - 45};
    layout.margin = {l: 60, r: 16, t: 34, b: 70 + room};
    draw(plot, drawn[j], layout, print);
    plot.on("plotly_legendclick", (event) => clicked(event.data[event.curveNumber].meta));
    plot.on("plotly_legenddoubleclick", () => false);
  });
  const seeds = [...new Set(all.filter((t) => t.seeds > 1).map((t) => t.seeds))].sort((a, b) => a - b);
  const ends = (n) => data.ranks[n][0] === 1 ? `range of ${n} seeds` : `number ${data.ranks[n][0]} from below to number ${data.ranks[n][0]} from above of ${n} seeds`;
  const coverage = (n) => `the ${ends(n)} (pointwise coverage ${Number((100 * data.ranks[n][1]).toPrecision(3))} %)`;
  byId("said").textContent = [
    all.length ? "Every method at its tuned step." : "Nothing to draw: choose a method, or another K.",
    seeds.length ? `Lines are medians over seeds, bands ${seeds.map(coverage).join(", ")}.` : "",
    chosen.x === "seconds_simulated" ? `Simulated for ${data.link}, each client on a machine of its own.` : "",
    `${data.methods.filter((m) => m.on).length} of ${data.methods.length} methods drawn: a click on a name in the legend shows or hides it, a double click it alone or all.`,
    data.left_out ? `${data.left_out} lines of the dearest K are not in this page.` : "",
    "Drag to zoom, double-click to zoom out."].filter((s) => s).join(" ");
}
let last = {};
function clicked(name) { // shows or hides a method in all panels, for whatever axes and K; twice: it alone, or all
  const at = Date.now(), twice = last.name === name && at - last.at < 350;
  const alone = data.methods.every((m) => m.name === name || !m.on);
  for (const m of data.methods) m.on = twice ? alone || m.name === name : m.on !== (m.name === name);
  last = {name, at};
  paintCurves();
  return false;
}
function autoLog() { // x is logarithmic where the curves end more than a factor of five apart
  const ends = data.panels.flatMap((_, i) => bandsOf(i)).filter(([, m, b]) => m.on && b.x.at(-1) > 0).map(([, , b]) => b.x.at(-1));
  chosen.logX = byId("log-x").checked = ends.length > 1 && Math.max(...ends) > 5 * Math.min(...ends);
  chosen.logY = byId("log-y").checked = axisOf("y").log;
}
function controls() {
  for (const name of ["x", "y"]) for (const axis of data[`${name}s`]) option(byId(name), axis.key, unescaped(axis.label));
  option(byId("k"), "best", "best K of each method");
  if (data.ks.length > 1) option(byId("k"), "all", "all K");
  for (const k of data.ks) option(byId("k"), k, `K = ${k}`);
  option(byId("panel"), "all", "all problems");
  data.panels.forEach((name, i) => option(byId("panel"), String(i), name));
  byId("panel").parentElement.hidden = data.panels.length < 2;
  if (data.ys.some((axis) => axis.key === data.main)) byId("y").value = data.main;
  for (const id of ["x", "y", "k", "panel"]) {
    chosen[id] = byId(id).value;
    byId(id).addEventListener("change", (e) => { chosen[id] = e.target.value; if (id === "x" || id === "y") autoLog(); paintCurves(); });
  }
  byId("log-x").addEventListener("change", (e) => { chosen.logX = e.target.checked; paintCurves(); });
  byId("log-y").addEventListener("change", (e) => { chosen.logY = e.target.checked; paintCurves(); });
  autoLog();
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
function paint(print) {
  if (data.lines) paintCurves(print);
  for (const [key, figure] of Object.entries(figures)) draw(byId(key), figure.data, figure.layout, print);
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
    [data, figures] = JSON.parse(await unpacked("data"));
    const library = document.createElement("script");
    library.textContent = await unpacked("plotly");
    document.head.append(library);
  } catch (error) {
    for (const said of document.querySelectorAll(".unpacked")) said.textContent = `Figures could not be drawn: this browser is too old (${error.message}). Tables are complete.`;
    return;
  }
  if (data.lines) controls();
  paint(false);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(false));
  addEventListener("beforeprint", () => paint(true));
  addEventListener("afterprint", () => paint(false));
  document.documentElement.classList.add("drawn");
}
begin();
