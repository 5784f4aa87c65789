// The page: colors, selection, search, tables, themes.

const STRONGEST = 3;  // log2; beyond it the color stays
const LISTED = 10;
const NAMED = 8;
const MOST_NAMED = 21;  // groups whose names are on the map
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
const many = (count, side) => `${counts.format(count)} ${count === 1 ? WORDS[side].one : WORDS[side].many}`;
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

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
      const styles = column.groups.map((_, g) => styleOf(column, g, now));
      // The background, which is last, lies below: it is drawn first.
      const last = column.background ? styles.length - 1 : -1;
      const order = styles.map((_, g) => (g === last ? 0 : g + (last >= 0 ? 1 : 0)));
      const moved = [];
      styles.forEach((style, g) => { moved[order[g]] = style; });
      colors = { styles: moved, style: Array.from(column.codes, (g) => order[g]) };
      if (!state.side && column.groups.length <= MOST_NAMED) colors.middles = middles(column);
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

  const membersOf = (column) => {
    const members = column.groups.map(() => []);
    column.codes.forEach((g, item) => members[g].push(item));
    return members;
  };
  const middles = (column) => {
    const members = membersOf(column);
    // Of many modules only the first member is named, to leave room.
    const brief = (text) => (column.palette === "modules" && column.groups.length > NAMED ? text.split(", ")[0] : text);
    return column.groups.map((text, g) => ({ text: brief(text), members: members[g] }))
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

  const tools = document.querySelectorAll("button[data-tool]");
  const setTool = (tool) => {
    for (const button of tools) {
      button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
    }
    for (const side of SIDES) {
      maps[side].tool = tool;
      maps[side].over.dataset.tool = tool ?? "";
      maps[side].over.classList.toggle("drags", Boolean(tool));
    }
  };
  for (const button of tools) {
    button.addEventListener("click", () => setTool(button.getAttribute("aria-pressed") === "true" && touch ? null : button.dataset.tool));
  }
  const touch = window.matchMedia("(pointer: coarse)").matches;
  setTool(touch ? null : "lasso");  // on a phone, dragging scrolls the page until a tool is chosen

  // ---------------------------------------------------------------- legends

  const legend = (side) => {
    const holder = byId(side + "-groups"), bar = byId(side + "-scale"), column = coloring[side];
    const across = state.side && state.side !== side;
    nameColors(side, across);
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
    if (column.kind !== "groups") return fold(side);
    const members = membersOf(column);
    column.groups.forEach((text, g) => {
      const button = element("button", undefined, { type: "button", title: text });
      button.setAttribute("aria-pressed", String(state.side === side && state.group === g));
      button.append(swatch(across ? { color: FAINT[theme()], shape: "circle" } : styleOf(column, g, theme())), element("span", text), element("small", counts.format(members[g].length)));
      button.addEventListener("click", () => {
        const again = state.side === side && state.group === g;
        select(side, again ? [] : members[g], text, again ? null : g);
        byId(side + "-groups").children[g]?.focus();
      });
      holder.append(button);
    });
    fold(side);
  };
  const swatch = ({ color, shape }) => {
    const picture = element("canvas", undefined, { width: 24, height: 24 }), pen = picture.getContext("2d");
    pen.beginPath();
    tracePoint(pen, shape, 12, 12, 8.5);
    pen.fillStyle = color;
    pen.fill();
    picture.setAttribute("aria-hidden", "true");
    return picture;
  };
  /** The list of colors and the field beside it say what the map shows, whatever that is. */
  const nameColors = (side, across) => {
    const chooser = byId(side + "-color"), column = coloring[side], k = data[side].columns.indexOf(column);
    const other = across ? "goes with the selection" : k < 0 ? `${WORDS.features.one} ${short(column.name, 30)}` : "";
    const option = chooser.lastElementChild;
    option.textContent = other;
    option.hidden = !other;
    chooser.value = other ? "other" : String(k);
    if (side === "samples") byId("by-feature").value = across || k >= 0 ? "" : column.name;
  };
  /** Long legends show their first rows, and a button for the rest. */
  const unfolded = { samples: false, features: false };
  const fold = (side) => {
    const holder = byId(side + "-groups"), button = byId(side + "-all");
    holder.classList.remove("open", "cut");
    const long = holder.scrollHeight > holder.clientHeight + 4;
    holder.classList.toggle("open", long && unfolded[side]);
    holder.classList.toggle("cut", long && !unfolded[side]);
    button.hidden = !long;
    button.textContent = unfolded[side] ? "Show fewer" : `Show all ${holder.children.length}`;
    button.setAttribute("aria-expanded", String(unfolded[side]));
  };
  for (const side of SIDES) byId(side + "-all").addEventListener("click", () => { unfolded[side] = !unfolded[side]; fold(side); });
  window.addEventListener("resize", () => SIDES.forEach(fold));

  for (const side of SIDES) {
    const chooser = byId(side + "-color");
    chooser.append(...data[side].columns.map((column, k) => element("option", short(column.name, 40), { value: String(k) })),
      element("option", "", { value: "other", hidden: true }));  // for what is none of the columns
    chooser.addEventListener("change", () => {
      coloring[side] = data[side].columns[Number(chooser.value)] ?? coloring[side];
      say("");
      if (state.side && state.side !== side) return clear();  // which hid these colors
      state.group = null;
      show();
    });
  }
  const colored = data.values ? data.values.names : data.features.names.filter((_, k) => data.mass.known[k]);
  byId("by-feature").addEventListener("change", (event) => {
    const wanted = event.target.value.trim();
    say("");
    if (!wanted) {
      if (!data.samples.columns.includes(coloring.samples)) coloring.samples = data.samples.columns[0];
      return show();
    }
    const exact = valued(wanted);
    if (exact !== undefined) return colorByFeature(exact);
    nameColors("samples", state.side === "features");
    return say(`"${short(wanted)}" is not among the ${many(colored.length, "features")} whose values are in this file${similar(wanted, colored)}`);
  });
  const valued = (wanted) => colored.find((text) => text === wanted)
    ?? colored.find((text) => text.trim().toLowerCase() === wanted.trim().toLowerCase());
  const colorByFeature = (text) => {
    coloring.samples = { kind: "numbers", name: text, zero: true, ...featureValues(data, text) };
    if (state.side === "features") return clear();  // which hid these colors
    say("");
    return show();
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
    return table(side, `Nearest ${WORDS[side].many}`, "distance", Array.from({ length: count }, (_, k) => {
      const near = items[item * count + k];
      return [near, data[side].names[near], away[item * count + k].toFixed(3)];
    }));
  };
  const enrichedTable = (side) => table(side, side === "features" ? `Typical ${WORDS.features.many}` : `${capital(WORDS.samples.many)} with most`,
    "mean share over the rest", state.top.map((item) => [item, data[side].names[item], times(state.ratio[item])]));

  /** How the selected items fall into the groups shown. */
  const compositionTable = (side) => {
    const varied = ({ kind, codes }) => kind === "groups" && state.chosen.some((item) => codes[item] !== codes[state.chosen[0]]);
    const column = [coloring[side], ...data[side].columns].find(varied) ?? coloring[side];
    if (column.kind !== "groups") {
      return table(side, `Selected ${WORDS[side].many}`, "", state.chosen.slice(0, LISTED).map((item) => [item, data[side].names[item], number(column.values[item])]));
    }
    const tally = new Map();
    for (const item of state.chosen) tally.set(column.codes[item], (tally.get(column.codes[item]) ?? 0) + 1);
    const rows = [...tally].sort((a, b) => b[1] - a[1]).slice(0, LISTED);
    return table(side, `Selected ${WORDS[side].many}`, short(column.name, 30), rows.map(([g, count]) =>
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
    const made = table(side, `Groups of ${WORDS[side].many}`, `${short(column.name, 40)}; share over the rest`, rows);
    made.classList.add("wide");
    return made;
  };

  const tell = () => {
    const shown = byId("selection"), side = state.side;
    byId("hint").hidden = Boolean(side);
    byId("found").hidden = !side;
    shown.replaceChildren();
    if (!side) return;
    const heading = element("h3", `${many(state.chosen.length, side)}: `), across = OTHER[side];
    heading.append(name(state.title));
    const parts = element("div", undefined, { className: "tables" });
    const own = state.chosen.length === 1 ? nearestTable(side, state.chosen[0]) : compositionTable(side);
    const others = state.top.length ? enrichedTable(across)
      : element("p", `No ${WORDS[across].one} has a larger share in the selection than elsewhere.`);
    parts.append(...(side === "samples" ? [own, others] : [others, own]));
    const groups = groupsTable(across);
    if (groups) parts.append(groups);
    shown.append(heading);
    if (side === "features" && state.chosen.length === 1) {
      const text = data.features.names[state.chosen[0]];
      if (featureValues(data, text) && coloring.samples.name !== text) {
        const button = element("button", `Color ${WORDS.samples.many} by it`, { type: "button", id: "color-by-it" });
        button.addEventListener("click", () => { clear(); colorByFeature(text); });
        shown.append(button);
      }
    }
    shown.append(parts);
    const one = state.chosen.length === 1, { count, items } = data[side].near;
    const listed = one ? Array.from(items.slice(state.chosen[0] * count, (state.chosen[0] + 1) * count), (k) => data[side].names[k])
      : state.top.map((k) => data[across].names[k]);
    byId("found").firstElementChild.textContent = `${many(state.chosen.length, side)}: ${short(state.title, 40)}. `
      + (listed.length ? `${one ? "Nearest" : `Typical ${WORDS[across].many}`}: ${listed.slice(0, 5).map((text) => short(text, 20)).join(", ")}.` : "");
  };
  byId("found").lastElementChild.addEventListener("click", () => byId("panel").scrollIntoView());

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
  // Groups can be found by their names, and modules by their numbers too.
  const groups = SIDES.flatMap((side) => data[side].columns.filter(({ kind }) => kind === "groups").flatMap((column) =>
    column.groups.map((text, g) => ({ side, column, g, text,
      names: column.palette === "modules" && !(column.background && g === column.groups.length - 1) ? [text, `module ${column.colors[g]}`] : [text] }))));
  const find = (text) => {
    const wanted = text.trim().toLowerCase();
    say("");
    if (!wanted) return undefined;
    const tests = [(word) => word === text, (word) => word.trim().toLowerCase() === wanted,
      (word) => word.toLowerCase().startsWith(wanted), (word) => word.toLowerCase().includes(wanted)];
    for (const fits of tests) {
      for (const side of ["features", "samples"]) {
        const item = data[side].names.findIndex(fits);
        if (item >= 0) return select(side, [item], data[side].names[item]);
      }
      const group = groups.find(({ names }) => names.some(fits));
      if (group) {
        coloring[group.side] = group.column;
        return select(group.side, membersOf(group.column)[group.g], group.text, group.g);
      }
    }
    select(null, []);
    const other = valued(text);
    if (other !== undefined) {
      colorByFeature(other);
      return say(`"${short(other)}" is not among the ${many(data.features.n, "features")} of the map; the ${WORDS.samples.many} are now colored by it.`);
    }
    return say(`"${short(text)}" is not among the ${many(data.samples.n, "samples")}, the ${many(data.features.n, "features")} and the groups of this page${
      similar(text, [...data.features.names, ...data.samples.names])}`);
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
  offer(search, byId("names"), [...groups.flatMap(({ names }) => names.at(-1)), ...data.features.names, ...data.samples.names]);
  offer(byId("by-feature"), byId("by-features"), colored);
  search.addEventListener("change", () => { find(search.value); if (touch) search.blur(); });
  for (const field of [search, byId("by-feature")]) field.addEventListener("input", () => say(""));
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
    const lines = [[WORDS[state.side].one, "x", "y", ...columns.map((column) => column.name)]];
    for (const k of state.chosen) {
      lines.push([here.names[k], here.x[k], here.y[k], ...columns.map((column) =>
        (column.kind === "groups" ? column.groups[column.codes[k]] : Number.isFinite(column.values[k]) ? Number(column.values[k].toPrecision(4)) : ""))]);
    }
    return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  };
  byId("csv").addEventListener("click", () => {
    const link = element("a", undefined, {
      href: URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv;charset=utf-8" })), download: `${WORDS[state.side].many.replace(/[^\p{L}\p{N}]+/gu, "-")}.csv`,
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
