// The page: colors, selection, search, tables, themes.

const STRONGEST = 3;  // log2; beyond it the color stays
const LISTED = 10;
const NAMED = 8;
const byId = (id) => document.getElementById(id);
const counts = new Intl.NumberFormat("en");

const element = (tag, text, properties = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) made.textContent = text;
  return made;
};
const short = (text, most = 60) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const name = (text) => element("bdi", short(text), { title: text });
const number = (value) => {
  if (!Number.isFinite(value)) return "none";
  const size = Math.abs(value);
  return size && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
};
const times = (log2) => {
  const ratio = 2 ** log2;
  return "×" + (ratio >= 10 ? ratio.toFixed(0) : ratio >= 1 ? ratio.toFixed(1) : ratio.toFixed(2));
};
const many = (count, side) => `${counts.format(count)} ${count === 1 ? side.slice(0, -1) : side}`;

const start = (data) => {
  // ---------------------------------------------------------------- the theme

  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const printing = window.matchMedia("print");
  const root = document.documentElement;
  const theme = () => (printing.matches ? "light" : root.dataset.theme || (wantsDark.matches ? "dark" : "light"));
  const retheme = () => {
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    show();
    document.body.dataset.shown = theme();
  };
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    retheme();
  });
  wantsDark.addEventListener("change", retheme);
  let before = null;
  printing.addEventListener("change", ({ matches }) => {  // on paper all is light
    if (matches) { before = root.dataset.theme ?? ""; root.dataset.theme = "light"; }
    else if (before === "") delete root.dataset.theme;
    else if (before !== null) root.dataset.theme = before;
    for (const side of SIDES) maps[side].resize();
    retheme();
  });

  // ---------------------------------------------------------------- state

  const nothing = () => ({ side: null, chosen: [], title: "", group: null, ratio: null, top: [] });
  let state = nothing();
  const coloring = { samples: data.samples.columns[0], features: data.features.columns[0] };

  const select = (side, items, title, group = null) => {
    say("");
    state = nothing();
    if (items.length) {
      const compared = compare(data, side, items);
      const top = Array.from(compared.ratio.keys())
        .filter((item) => compared.ratio[item] > 0)
        .sort((a, b) => compared.ratio[b] - compared.ratio[a]).slice(0, LISTED);
      state = { side, chosen: items, title, group, top, ...compared };
    }
    show();
  };
  const pick = (side, item, add) => (add && state.side === side
    ? enclose(side, state.chosen.includes(item) ? state.chosen.filter((k) => k !== item) : [item], !state.chosen.includes(item))
    : select(side, [item], data[side].names[item]));
  const enclose = (side, items, add) => {
    const all = add && state.side === side ? [...new Set([...state.chosen, ...items])] : items;
    select(side, all, all.length === 1 ? data[side].names[all[0]] : "those drawn around");
  };
  const say = (text) => { byId("answer").textContent = text; };

  // ---------------------------------------------------------------- the maps

  /** What every point looks like, given the selection and the colors. */
  const look = (side) => {
    const now = theme(), here = data[side], column = coloring[side];
    const css = getComputedStyle(root);
    const base = {
      faint: null, large: null, fade: 0.85, named: [], middles: [],
      ink: css.getPropertyValue("--ink").trim(), soft: css.getPropertyValue("--soft").trim(),
      halo: css.getPropertyValue("--halo").trim(),
    };
    const scale = (values, low, high, stops) => {
      const styles = rampColors(stops).map((color) => ({ color, shape: "circle" }));
      // The missing lie below all others.
      styles.unshift({ color: FAINT[now], shape: "circle", small: true });
      const style = Array.from(values, (v) => (Number.isFinite(v)
        ? 1 + Math.round(Math.min(1, Math.max(0, (v - low) / (high - low || 1))) * (BINS - 1)) : 0));
      return { styles, style };
    };
    if (state.side && state.side !== side) {
      const large = new Uint8Array(here.n), lit = state.top.slice(0, NAMED);
      for (const item of lit) large[item] = 1;
      const named = lit.filter((item) => side === "features" || here.names[item].length <= 12);  // no long identifiers
      return { ...base, ...scale(state.ratio, -STRONGEST, STRONGEST, DIVERGING[now]), large, named };
    }
    let colors;
    if (column.kind === "groups") {
      const styles = column.groups.map((_, g) => {
        const { color, shape } = styleOf(g), back = column.background && g === column.groups.length - 1;
        return back ? { color: FAINT[now], shape: "circle", small: true } : { color: PALETTES[now][color], shape };
      });
      // The background, which is last, lies below: it is drawn first.
      const last = column.background ? styles.length - 1 : -1;
      const order = styles.map((_, g) => (g === last ? 0 : g + (last >= 0 ? 1 : 0)));
      const moved = [];
      styles.forEach((style, g) => { moved[order[g]] = style; });
      colors = { styles: moved, style: Array.from(column.codes, (g) => order[g]) };
      if (!state.side && column.groups.length <= 14) colors.middles = middles(column);
    } else {
      colors = scale(column.values, ...limits(column), RAMPS[now]);
    }
    if (state.side !== side) return { ...base, ...colors };
    const faint = new Uint8Array(here.n).fill(1);
    for (const item of state.chosen) faint[item] = 0;
    const one = state.chosen.length === 1;
    const large = one ? new Uint8Array(here.n) : null;
    if (one) large[state.chosen[0]] = 1;
    return { ...base, ...colors, middles: [], faint, fade: 0.22, large, named: one ? state.chosen : [] };
  };

  const middles = (column) => {
    const members = column.groups.map(() => []);
    column.codes.forEach((g, item) => members[g].push(item));
    return column.groups.map((text, g) => ({ text: text.replace(/^around /, ""), members: members[g] }))
      .slice(0, column.groups.length - (column.background ? 1 : 0));
  };

  /** Where a color scale begins and ends: without the outermost hundredth on either side. */
  const limits = (column) => {
    if (column.limits) return column.limits;
    const sorted = column.values.filter(Number.isFinite).sort();
    const at = (share) => (sorted.length ? sorted[Math.round(share * (sorted.length - 1))] : 0);
    let [low, high] = column.zero ? [0, at(0.99)] : [at(0.01), at(0.99)];
    if (!(high > low)) [low, high] = [Math.min(low, at(0)), Math.max(at(1), low + 1e-9)];
    column.limits = [low, high];
    return column.limits;
  };

  const valueText = (side, item) => {
    const column = coloring[side];
    if (column.kind === "groups") return column.groups[column.codes[item]];
    return `${column.name}: ${number(column.values[item])}`;
  };

  const maps = {};
  for (const side of SIDES) {
    maps[side] = new PointMap(data[side], byId(side + "-map"), {
      pick: (item, add) => pick(side, item, add),
      enclose: (items, add) => enclose(side, items, add),
      tip: (item) => {
        const lines = [element("b", short(data[side].names[item])), element("span", short(valueText(side, item)))];
        if (state.side && state.side !== side && Number.isFinite(state.ratio[item])) lines.push(element("div", `${times(state.ratio[item])} the rest`));
        return lines;
      },
    });
    const view = document.querySelector(`#${side} .view`);
    view?.addEventListener("click", () => {
      const map = maps[side];
      map.treeView = !map.treeView;
      view.setAttribute("aria-pressed", String(map.treeView));
      map.reset();
      map.draw();
    });
  }

  const setTool = (tool) => {
    for (const button of document.querySelectorAll("[data-tool]:is(button)")) {
      button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
    }
    for (const side of SIDES) {
      maps[side].tool = tool;
      maps[side].over.dataset.tool = tool ?? "";
      maps[side].over.classList.toggle("drags", Boolean(tool));
    }
  };
  for (const button of document.querySelectorAll("button[data-tool]")) {
    button.addEventListener("click", () => setTool(button.getAttribute("aria-pressed") === "true" && touch ? null : button.dataset.tool));
  }
  const touch = window.matchMedia("(pointer: coarse)").matches;
  setTool(touch ? null : "lasso");  // on a phone, dragging scrolls the page until a tool is chosen

  // ---------------------------------------------------------------- legends

  const legend = (side) => {
    const holder = byId(side + "-groups"), bar = byId(side + "-scale"), column = coloring[side];
    const across = state.side && state.side !== side;
    bar.hidden = !across && column.kind === "groups";
    if (!bar.hidden) {
      const [low, high] = across ? [-STRONGEST, STRONGEST] : limits(column);
      const picture = element("canvas", undefined, { width: BINS, height: 1 });
      const pen = picture.getContext("2d");
      rampColors((across ? DIVERGING : RAMPS)[theme()]).forEach((color, k) => { pen.fillStyle = color; pen.fillRect(k, 0, 1, 1); });
      const what = across ? "times the mean of the rest" : [column.name, column.unit].filter(Boolean).join(", ");
      bar.replaceChildren(element("span", across ? "1/8" : number(low)), picture, element("span", across ? "8" : number(high)),
        element("span", short(what), { className: "what", title: what }));
    }
    holder.replaceChildren();
    if (column.kind !== "groups") return;
    const members = column.groups.map(() => []);
    column.codes.forEach((g, item) => members[g].push(item));
    column.groups.forEach((text, g) => {
      const button = element("button", undefined, { type: "button", title: text });
      button.setAttribute("aria-pressed", String(state.side === side && state.group === g));
      button.append(swatch(column, g), element("span", text), element("small", counts.format(members[g].length)));
      button.addEventListener("click", () => {
        const again = state.side === side && state.group === g;
        select(side, again ? [] : members[g], text, again ? null : g);
        byId(side + "-groups").children[g]?.focus();
      });
      holder.append(button);
    });
  };
  const swatch = (column, g) => {
    const picture = element("canvas", undefined, { width: 24, height: 24 }), pen = picture.getContext("2d");
    const back = column.background && g === column.groups.length - 1, { color, shape } = styleOf(g);
    pen.beginPath();
    tracePoint(pen, back ? "circle" : shape, 12, 12, 8.5);
    pen.fillStyle = back ? FAINT[theme()] : PALETTES[theme()][color];
    pen.fill();
    picture.setAttribute("aria-hidden", "true");
    return picture;
  };

  for (const side of SIDES) {
    const chooser = byId(side + "-color");
    chooser.append(...data[side].columns.map((column, k) => element("option", short(column.name, 40), { value: String(k) })));
    chooser.addEventListener("change", () => {
      coloring[side] = data[side].columns[Number(chooser.value)] ?? coloring[side];
      if (side === "samples") byId("by-feature").value = "";
      state.group = null;
      show();
    });
  }
  const colored = data.values ? data.values.names : data.features.names.filter((_, k) => data.mass.known[k]);
  byId("by-feature").addEventListener("change", (event) => {
    const wanted = event.target.value.trim();
    if (!wanted) {
      byId("samples-color").selectedIndex = 0;
      coloring.samples = data.samples.columns[0];
      return show();
    }
    const exact = colored.find((text) => text === wanted) ?? colored.find((text) => text.trim().toLowerCase() === wanted.toLowerCase());
    if (exact === undefined) return say(`No feature is named "${short(wanted)}"${similar(wanted, colored)}`);
    colorByFeature(exact);
  });
  const colorByFeature = (text) => {
    const found = featureValues(data, text);
    if (!found) return say(`The values of "${short(text)}" are not in this file.`);
    say("");
    coloring.samples = { kind: "numbers", name: text, zero: true, ...found };
    byId("by-feature").value = text;
    byId("samples-color").selectedIndex = -1;  // none of its columns
    show();
  };

  // ---------------------------------------------------------------- tables

  const table = (side, caption, note, rows) => {
    const made = element("table", undefined, { className: side });
    const title = element("caption", caption);
    if (note) title.append(element("small", note));
    made.append(title);
    const body = made.createTBody();
    for (const [item, text, ...numbers] of rows) {
      const row = body.insertRow(), head = element("th", undefined, { scope: "row" });
      if (item === null) head.append(name(text));
      else {
        const link = element("button", undefined, { type: "button", title: text });
        link.append(name(text));
        link.addEventListener("click", () => pick(side, item, false));
        head.append(link);
      }
      row.append(head, ...numbers.map((value) => element("td", value, { className: "number" })));
    }
    return made;
  };

  const nearestTable = (side, item) => {
    const { count, items, away } = data[side].near;
    return table(side, `Nearest ${side}`, "distance", Array.from({ length: count }, (_, k) => {
      const near = items[item * count + k];
      return [near, data[side].names[near], away[item * count + k].toFixed(3)];
    }));
  };
  const enrichedTable = (side) => table(side, side === "features" ? "Typical features" : "Samples with most",
    "mean mass over the rest", state.top.map((item) => [item, data[side].names[item], times(state.ratio[item])]));

  /** How the selected items fall into the groups shown. */
  const compositionTable = (side) => {
    const varied = ({ kind, codes }) => kind === "groups" && state.chosen.some((item) => codes[item] !== codes[state.chosen[0]]);
    const column = [coloring[side], ...data[side].columns].find(varied) ?? coloring[side];
    if (column.kind !== "groups") {
      return table(side, `Selected ${side}`, "", state.chosen.slice(0, LISTED).map((item) => [item, data[side].names[item], number(column.values[item])]));
    }
    const tally = new Map();
    for (const item of state.chosen) tally.set(column.codes[item], (tally.get(column.codes[item]) ?? 0) + 1);
    const rows = [...tally].sort((a, b) => b[1] - a[1]).slice(0, LISTED);
    return table(side, `Selected ${side}`, short(column.name, 30), rows.map(([g, count]) =>
      [null, column.groups[g], `${((100 * count) / state.chosen.length).toFixed(0)} %`]));
  };
  /** How the mass of the selected items is spread over the groups of the other side. */
  const groupsTable = (side) => {
    const column = data[side].columns.includes(coloring[side]) && coloring[side].kind === "groups"
      ? coloring[side] : data[side].columns.find(({ kind }) => kind === "groups");
    if (!column || column.groups.length < 2) return null;
    const inside = new Float64Array(column.groups.length), outside = new Float64Array(column.groups.length), size = new Float64Array(column.groups.length);
    column.codes.forEach((g, item) => { inside[g] += state.inside[item]; outside[g] += state.outside[item]; size[g] += 1; });
    const floor = given.floor[SIDES.indexOf(state.side)];
    const rows = column.groups.map((text, g) => [null, text, Math.log2((inside[g] + floor * size[g]) / (outside[g] + floor * size[g]))])
      .sort((a, b) => b[2] - a[2]).slice(0, 8).map(([item, text, ratio]) => [item, text, times(ratio)]);
    const made = table(side, `Groups of ${side}`, `${short(column.name, 40)}; mass over the rest`, rows);
    made.classList.add("wide");
    return made;
  };

  const tell = () => {
    const shown = byId("selection"), side = state.side;
    byId("hint").hidden = Boolean(side);
    shown.replaceChildren();
    if (!side) return;
    const heading = element("h3", `${many(state.chosen.length, side)}: `), across = OTHER[side];
    heading.append(name(state.title));
    const parts = element("div", undefined, { className: "tables" });
    const own = state.chosen.length === 1 ? nearestTable(side, state.chosen[0]) : compositionTable(side);
    const others = state.top.length ? enrichedTable(across)
      : element("p", `None of the ${across} has more mass in the selection than elsewhere.`);
    parts.append(...(side === "samples" ? [own, others] : [others, own]));
    const groups = groupsTable(across);
    if (groups) parts.append(groups);
    shown.append(heading);
    if (side === "features" && state.chosen.length === 1) {
      const text = data.features.names[state.chosen[0]];
      if (featureValues(data, text) && coloring.samples.name !== text) {
        const button = element("button", "Color samples by it", { type: "button", id: "color-by-it" });
        button.addEventListener("click", () => { clear(); colorByFeature(text); });
        shown.append(button);
      }
    }
    shown.append(parts);
  };

  const show = () => {
    for (const side of SIDES) {
      legend(side);
      maps[side].show(look(side));
    }
    for (const id of ["clear", "csv"]) byId(id).disabled = !state.side;
    tell();
  };

  // ---------------------------------------------------------------- search

  const similar = (text, names) => {
    const wanted = text.toLowerCase();
    const close = names.filter((word) => word.toLowerCase().startsWith(wanted.slice(0, Math.max(2, wanted.length - 2)))).slice(0, 4);
    return close.length ? `. Similar: ${close.map((word) => short(word, 20)).join(", ")}.` : ".";
  };
  const find = (text) => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return undefined;
    const tests = [(word) => word === text, (word) => word.trim().toLowerCase() === wanted,
      (word) => word.toLowerCase().startsWith(wanted), (word) => word.toLowerCase().includes(wanted)];
    for (const fits of tests) {
      for (const side of ["features", "samples"]) {
        const item = data[side].names.findIndex(fits);
        if (item >= 0) return select(side, [item], data[side].names[item]);
      }
    }
    select(null, []);
    return say(`No sample or feature is named "${short(text)}"${similar(text, [...data.features.names, ...data.samples.names])}`);
  };
  const search = byId("search");
  // Lists of thousands of names slow down browsers: offer those that fit what is typed.
  const offer = (field, list, names) => field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase(), fit = [];
    for (const text of wanted ? names : []) {
      if (text.toLowerCase().includes(wanted)) fit.push(text);
      if (fit.length === 40) break;
    }
    list.replaceChildren(...fit.map((text) => element("option", undefined, { value: text })));
  });
  offer(search, byId("names"), [...data.features.names, ...data.samples.names]);
  offer(byId("by-feature"), byId("by-features"), colored);
  search.addEventListener("change", () => find(search.value));
  const clear = () => {
    search.value = "";
    select(null, []);
  };
  byId("clear").addEventListener("click", clear);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") { clear(); return; }
    if (event.key === "/" && !typing) { event.preventDefault(); search.focus(); search.select(); }
  });

  // ---------------------------------------------------------------- CSV

  /** A cell; text that a spreadsheet would run as a formula gets an apostrophe before it. */
  const cell = (value) => {
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text) && !Number.isFinite(Number(text))) text = "'" + text;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = () => {
    const here = data[state.side], columns = [...here.columns];
    if (!columns.includes(coloring[state.side])) columns.push(coloring[state.side]);
    const lines = [[state.side.slice(0, -1), "x", "y", ...columns.map((column) => column.name)]];
    for (const k of state.chosen) {
      lines.push([here.names[k], here.x[k], here.y[k], ...columns.map((column) =>
        (column.kind === "groups" ? column.groups[column.codes[k]] : Number.isFinite(column.values[k]) ? Number(column.values[k].toPrecision(4)) : ""))]);
    }
    return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  };
  byId("csv").addEventListener("click", () => {
    const link = element("a", undefined, {
      href: URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv;charset=utf-8" })), download: `${state.side}.csv`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  for (const side of SIDES) maps[side].resize();
  retheme();
  document.body.dataset.ready = "true";
  // For tests and measurements.
  window.cometricReport = { maps, data, coloring, select, selected: () => state };
};

load().then(start).catch((error) => {
  byId("answer").textContent = `The maps cannot be drawn: ${error.message}. A browser of 2023 or newer is needed.`;
  throw error;
});
