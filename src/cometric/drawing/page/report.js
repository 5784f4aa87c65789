"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const sides = ["samples", "features"];
  const other = { samples: "features", features: "samples" };
  const INK = "#1b1f24", SOFT = "#545b64", LINE = "#e3e6ea";
  const SCALE = [[0, "#0072B2"], [0.5, "#dfe3e7"], [1, "#D55E00"]];
  const STRONGEST = 3;  // log2; beyond it the color stays
  const TOLD = 12;
  const NAMED = 8;
  const counts = new Intl.NumberFormat("en");

  // ---------------------------------------------------------------- the data

  const decode = (text, Type) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Type(bytes.buffer);
  };
  const start = decode(data.mass.start, Uint32Array);
  const index = decode(data.mass.index, Uint16Array);
  const mass = Object.fromEntries(sides.map((side) => [side, {
    values: decode(data.mass[side], Uint16Array),
    unit: data.mass[side + "_unit"],
  }]));

  /** For each item of the other side: mean mass in the selected histograms and in the rest. */
  const compare = (side, chosen) => {
    const total = data[side].names.length, across = data[other[side]].names.length;
    const inside = new Float64Array(across), outside = new Float64Array(across);
    const { values, unit } = mass[side];
    for (let row = 0; row + 1 < start.length; row++) {
      for (let entry = start[row]; entry < start[row + 1]; entry++) {
        const [item, bin] = side === "samples" ? [row, index[entry]] : [index[entry], row];
        (chosen.has(item) ? inside : outside)[bin] += unit * values[entry];
      }
    }
    const floor = data.mass.floor[sides.indexOf(side)];
    const ratio = new Float64Array(across);
    for (let bin = 0; bin < across; bin++) {
      inside[bin] /= chosen.size;
      outside[bin] /= Math.max(1, total - chosen.size);
      ratio[bin] = Math.log2((inside[bin] + floor) / (outside[bin] + floor));
    }
    return { inside, outside, ratio };
  };

  // ---------------------------------------------------------------- words

  const short = (text, most = 60) => (text.length > most ? text.slice(0, most - 3) + "..." : text);
  // Plotly reads some tags in its texts; names are names.
  const plain = (text, most) =>
    short(text, most).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  /** As many names as fit a short line, and the number of the others. */
  const list = (names) => {
    let shown = 1;
    while (shown < names.length && names.slice(0, shown + 1).join(", ").length < 26) shown++;
    const rest = names.length - shown;
    return names.slice(0, shown).map((text) => plain(text, 24)).join(", ") + (rest ? ` +${rest}` : "");
  };
  const element = (tag, text, properties = {}) => {
    const made = Object.assign(document.createElement(tag), properties);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const name = (text) => element("bdi", short(text), { title: text });
  const times = (log2) => {
    const ratio = 2 ** log2;
    return ratio >= 10 ? ratio.toFixed(0) : ratio >= 1 ? ratio.toFixed(1) : ratio.toFixed(2);
  };
  const many = (count, side) => `${counts.format(count)} ${count === 1 ? side.slice(0, -1) : side}`;

  // ---------------------------------------------------------------- the maps

  const plots = Object.fromEntries(sides.map((side) => [side, document.getElementById(side + "-map")]));
  const touch = window.matchMedia("(pointer: coarse)").matches;

  const places = (side) => ({
    x: data[side].x,
    y: data[side].y,
    type: "scatter",
    mode: "markers",
    hoverinfo: "text",
    hovertext: data[side].names.map((text, item) =>
      plain(text) + "<br>" + plain(data[side].groups[data[side].group[item]].name)),
    marker: {},
    selected: { marker: { opacity: 1 } },
    unselected: { marker: { opacity: 1 } },
  });

  /** What every point looks like, given the selection and on which side it is. */
  const look = (side) => {
    const { group, groups, names } = data[side];
    const size = Math.max(4, Math.min(11, 150 / Math.sqrt(names.length)));
    const marker = {
      size, symbol: group.map((g) => groups[g].symbol), line: { width: 0 },
      color: group.map((g) => groups[g].color), opacity: 0.85, showscale: false,
    };
    if (state.side === side) {
      marker.opacity = names.map((_, item) => (state.chosen.has(item) ? 0.95 : 0.13));
      marker.size = names.map((_, item) => (state.chosen.has(item) ? size + 1 : size));
      if (state.chosen.size === 1) {
        marker.size = names.map((_, item) => (state.chosen.has(item) ? 13 : size));
        marker.line = { width: names.map((_, item) => (state.chosen.has(item) ? 2 : 0)), color: INK };
      }
    } else if (state.side) {
      const lit = new Set(state.top.slice(0, NAMED));
      Object.assign(marker, {
        color: Array.from(state.ratio), symbol: "circle", colorscale: SCALE,
        cmin: -STRONGEST, cmax: STRONGEST, opacity: 0.95, showscale: true,
        size: names.map((_, item) => (lit.has(item) ? size + 4 : size)),
        line: { width: names.map((_, item) => (lit.has(item) ? 1.5 : 0)), color: INK },
        colorbar: {
          title: { text: "mean mass, times the rest", side: "top", font: { size: 12 } },
          orientation: "h", thickness: 8, len: 0.6, y: 0, yanchor: "top", ypad: 2, outlinewidth: 0, tickvals: [-3, -2, -1, 0, 1, 2, 3],
          ticktext: ["1/8", "1/4", "1/2", "1", "2", "4", "8"], tickfont: { size: 11 },
        },
      });
    }
    return marker;
  };

  /** Names beside the points that light up most; those on one spot share a line. */
  const notes = (side) => {
    const { x, y, names } = data[side];
    const wanted = !state.side ? [] : state.side !== side ? state.top.slice(0, NAMED)
      : state.chosen.size === 1 ? [...state.chosen] : [];
    const spots = [];
    for (const item of wanted) {
      const near = spots.find(([first]) =>
        Math.abs(x[first] - x[item]) < 60 && Math.abs(y[first] - y[item]) < 12);
      if (near) near.push(item);
      else spots.push([item]);
    }
    return spots.map((items) => ({
      x: x[items[0]], y: y[items[0]], showarrow: false, yshift: 16, captureevents: false,
      xanchor: x[items[0]] > 30 ? "right" : x[items[0]] < -30 ? "left" : "center",
      text: list(items.map((item) => names[item])),
      font: { size: 12, color: INK }, bgcolor: "rgba(255,255,255,0.8)",
    }));
  };

  const layout = (side) => ({
    margin: { l: 4, r: 4, t: 30, b: 52, autoexpand: false },
    dragmode: touch ? false : "lasso",
    hovermode: "closest",
    showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "#fafbfc",
    font: { family: "system-ui, sans-serif", color: INK },
    hoverlabel: { bgcolor: "#fff", bordercolor: SOFT, font: { color: INK, size: 13 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "#7a828c", activecolor: INK },
    newselection: { line: { color: SOFT, width: 1 } },
    xaxis: { visible: false }, yaxis: { visible: false, scaleanchor: "x" },
    annotations: notes(side),
    uirevision: "keep",
  });
  const config = {
    responsive: true, displaylogo: false, scrollZoom: false, doubleClick: "reset",
    modeBarButtons: [["zoom2d", "pan2d", "select2d", "lasso2d", "resetScale2d"]],
  };
  const draw = (side) =>
    Plotly.react(plots[side], [{ ...places(side), marker: look(side), selectedpoints: null }],
      { ...layout(side), selections: [] }, config);

  // ---------------------------------------------------------------- the selection

  const nothing = () => ({ side: null, chosen: new Set(), title: "", group: null, ratio: null, top: [] });
  let state = nothing();

  const select = (side, items, title, group = null) => {
    state = nothing();
    if (items.length) {
      const chosen = new Set(items);
      const compared = compare(side, chosen);
      const top = Array.from(compared.ratio.keys())
        .filter((item) => compared.ratio[item] > 0)
        .sort((a, b) => compared.ratio[b] - compared.ratio[a]).slice(0, TOLD);
      state = { side, chosen, title, group, top, ...compared };
    }
    show();
  };

  const show = () => {
    sides.forEach(draw);
    document.getElementById("clear").disabled = !state.side;
    for (const side of sides) {
      document.getElementById(side + "-groups").querySelectorAll("button").forEach((button, g) =>
        button.setAttribute("aria-pressed", String(state.side === side && state.group === g)));
    }
    tell();
  };

  const table = (caption, heads, rows) => {
    const made = element("table");
    made.append(element("caption", caption));
    const head = made.createTHead().insertRow();
    heads.forEach((text, k) => head.append(element("th", text, { scope: "col", className: k ? "number" : "" })));
    const body = made.createTBody();
    for (const [first, ...numbers] of rows) {
      const row = body.insertRow();
      const title = element("th", undefined, { scope: "row" });
      title.append(name(first));
      row.append(title, ...numbers.map((text) => element("td", text, { className: "number" })));
    }
    return made;
  };

  const tell = () => {
    const shown = document.getElementById("selection");
    shown.replaceChildren();
    if (!state.side) return;
    const across = other[state.side];
    const heading = element("h3", `${many(state.chosen.size, state.side)}: `);
    heading.append(name(state.title));
    const parts = element("div", undefined, { className: "tables" });
    const percent = (share) => (100 * share).toPrecision(2) + " %";
    if (state.top.length) {
      parts.append(table(
        `Most enriched ${across}: mean share of mass in the selection and in the other ${state.side}`,
        [across, "here", "others", "times"],
        state.top.map((item) => [data[across].names[item], percent(state.inside[item]),
          percent(state.outside[item]), times(state.ratio[item])])));
    } else {
      parts.append(element("p", `None of the ${across} has more mass in the selection than elsewhere.`));
    }
    if (state.chosen.size === 1) {
      const [item] = state.chosen;
      parts.append(table(`The nearest ${state.side}`, [state.side, "distance"],
        data[state.side].nearest[item].map(([near, away]) =>
          [data[state.side].names[near], away.toFixed(3)])));
    }
    shown.append(heading, parts);
  };

  // ---------------------------------------------------------------- the controls

  const swatches = {
    circle: "M6 1a5 5 0 1 0 .01 0z", square: "M1.5 1.5h9v9h-9z", diamond: "M6 .5 11.5 6 6 11.5.5 6z",
    "triangle-up": "M6 1 11.5 11H.5z", "triangle-down": "M.5 1h11L6 11z",
  };
  const swatch = ({ color, symbol }) => {
    const space = "http://www.w3.org/2000/svg";
    const picture = document.createElementNS(space, "svg");
    picture.setAttribute("viewBox", "0 0 12 12");
    picture.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", swatches[symbol]);
    path.setAttribute("fill", color);
    picture.append(path);
    return picture;
  };

  for (const side of sides) {
    const { names, group, groups } = data[side];
    const members = groups.map(() => []);
    group.forEach((g, item) => members[g].push(item));
    const holder = document.getElementById(side + "-groups");
    groups.forEach((kind, g) => {
      const button = element("button", undefined, { type: "button", title: kind.name });
      button.setAttribute("aria-pressed", "false");
      button.append(swatch(kind), element("span", kind.name),
        element("small", counts.format(members[g].length)));
      button.addEventListener("click", () => {
        const again = state.side === side && state.group === g;
        select(side, again ? [] : members[g], kind.name, g);
      });
      holder.append(button);
    });
    document.getElementById("names").append(...names.map((text) => element("option", undefined, { value: text })));
  }

  const find = (text) => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return;
    const tests = [(word) => word === wanted, (word) => word.startsWith(wanted), (word) => word.includes(wanted)];
    for (const fits of tests) {
      for (const side of ["features", "samples"]) {
        const item = data[side].names.findIndex((word) => fits(word.trim().toLowerCase()));
        if (item >= 0) return select(side, [item], data[side].names[item]);
      }
    }
    select(null, []);
    document.getElementById("selection").append(element("p", `No item is named "${short(text)}".`));
  };
  document.getElementById("search").addEventListener("change", (event) => find(event.target.value));
  const clear = () => {
    document.getElementById("search").value = "";
    select(null, []);
  };
  document.getElementById("clear").addEventListener("click", clear);
  document.addEventListener("keydown", (event) => event.key === "Escape" && state.side && clear());

  Promise.all(sides.map(draw)).then(() => {
    for (const side of sides) {
      plots[side].on("plotly_selected", (event) => {
        const items = event ? event.points.map((point) => point.pointNumber) : [];
        if (items.length) select(side, items, "those drawn around");
      });
      plots[side].on("plotly_click", (event) => {
        const item = event.points[0].pointNumber;
        select(side, [item], data[side].names[item]);
      });
    }
    document.body.dataset.ready = "true";
  });

  // ---------------------------------------------------------------- convergence

  const [at, residuals, seconds] = [0, 1, 2].map((k) => data.history.map((line) => line[k]));
  const level = (y) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: "#D55E00", width: 1.5, dash: "dash" },
  });
  const tiny = Number.EPSILON;  // an exact zero has no logarithm
  const logs = residuals.map((value) => Math.log10(Math.max(value, tiny)));
  const decades = Math.max(1, Math.ceil((Math.max(...logs) - Math.min(...logs)) / 6));
  Plotly.newPlot("convergence", [{
    x: at, y: residuals.map((value) => Math.max(value, tiny)), type: "scatter", mode: "lines+markers",
    line: { color: "#0072B2" }, hoverinfo: "text",
    hovertext: residuals.map((value, k) => `iteration ${at[k]}: ${value.toExponential(1)}, after ${seconds[k]} s`),
  }], {
    margin: { l: 64, r: 12, t: 24, b: 44 }, showlegend: false, dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", color: INK, size: 12 },
    xaxis: { title: { text: "iteration" }, gridcolor: LINE, zeroline: false, fixedrange: true,
      ...(at.length <= 12 ? { dtick: 1 } : { nticks: 8, tickformat: "d" }) },
    yaxis: { title: { text: "residual" }, type: "log", exponentformat: "power", dtick: decades, gridcolor: LINE, fixedrange: true },
    shapes: data.tol > 0 ? [level(data.tol)] : [],
    annotations: data.tol > 0 ? [{
      // At the left, where the curve is still high above it.
      xref: "paper", x: 0, xanchor: "left", xshift: 4, y: Math.log10(data.tol), yanchor: "bottom", showarrow: false,
      text: "tolerance", font: { color: "#a64800", size: 12 },
    }] : [],
  }, { responsive: true, displayModeBar: false });
})();
