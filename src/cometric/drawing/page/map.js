// A map of one side on a canvas: points, names, the tree, and what the pointer and keys do.

const SHAPES = ["circle", "up", "diamond", "square", "down"];
const PALETTES = {  // those of the plots; labels of Okabe and Ito, which color-blind readers can tell apart
  light: {
    labels: ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#30343a"],
    modules: ["#332288", "#44AA99", "#CC6677", "#999933", "#88CCEE", "#882255", "#DDCC77", "#117733",
      "#AA4499", "#4477DD", "#8C5A2B", "#F4845F", "#D4242A", "#B9A3E3"],
  },
  dark: {
    labels: ["#3d9fe0", "#F0B030", "#1fc092", "#F07a2a", "#8fd0f5", "#E39BC4", "#e7eaee"],
    modules: ["#8f86e8", "#5cc8b5", "#e58a98", "#bcbc55", "#a5dcf5", "#d0609a", "#e8dc95", "#45ad6b",
      "#cf72c8", "#7aa5ff", "#c08c58", "#ff9f80", "#f0505a", "#d2c4f2"],
  },
};
const RAMPS = {
  light: ["#d9dde2", "#9cc4e0", "#3f93c9", "#1f5fa0", "#2a2470"],
  dark: ["#3a424d", "#2d6a9f", "#35a0c9", "#8fd694", "#f9e76b"],
};
const DIVERGING = {
  light: ["#0072B2", "#7db3d6", "#dde1e6", "#eb9a5c", "#D55E00"],
  dark: ["#58b6f5", "#3a779f", "#414a55", "#b0692f", "#ff8a33"],
};
const FAINT = { light: "#c3c9d0", dark: "#4a535e" };
const BINS = 48;
const SQUARE = 8;  // pixels: points are counted in squares of this side, to place names between them
const SHIFTS = [0, -16, 16, -30, 30, -46, 46, -64, 64, -84, 84];  // up and down, of the name of a group

const mix = (stops, share) => {
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1), k = Math.floor(at);
  const [a, b] = [stops[k], stops[k + 1]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return `rgb(${a.map((from, i) => Math.round(from + (at - k) * (b[i] - from))).join(",")})`;
};
const rampColors = (stops) => Array.from({ length: BINS }, (_, k) => mix(stops, k / (BINS - 1)));
/** The color and shape of a group; what is in no group is small and gray. */
const styleOf = (column, g, theme) => {
  if (column.background && g === column.groups.length - 1) return { color: FAINT[theme], shape: "circle", small: true };
  const palette = PALETTES[theme][column.palette], k = column.colors[g];
  return { color: palette[k % palette.length], shape: SHAPES[Math.floor(k / palette.length) % SHAPES.length] };
};

const tracePoint = (pen, shape, x, y, r) => {
  if (shape === "circle") { pen.moveTo(x + r, y); pen.arc(x, y, r, 0, 6.2832); return; }
  if (shape === "square") { pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r); return; }
  const corners = {
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
    up: [[0, -1.2], [1.15, 0.85], [-1.15, 0.85]],
    down: [[0, 1.2], [1.15, -0.85], [-1.15, -0.85]],
  }[shape];
  corners.forEach(([dx, dy], k) => pen[k ? "lineTo" : "moveTo"](x + r * dx, y + r * dy));
  pen.closePath();
};

class PointMap {
  /** `hooks`: pick(item, add), enclose(items, add), tip(item) -> lines of text. */
  constructor(side, holder, hooks) {
    Object.assign(this, { side, holder, hooks, treeView: false, tool: "lasso", zoom: 1, hovered: -1, cursor: -1 });
    [this.back, this.over] = holder.querySelectorAll("canvas");
    this.tip = holder.querySelector(".tip");
    this.buttons = holder.querySelector(".zoom");
    this.px = new Float64Array(side.n);
    this.py = new Float64Array(side.n);
    this.look = null;
    this.path = null;
    this.reset();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(holder);
  }

  // ------------------------------------------------------------------ places

  get xs() { return this.treeView ? this.side.tree.x : this.side.x; }
  get ys() { return this.treeView ? this.side.tree.y : this.side.y; }

  /** Show all; in a map a few far outliers do not make the rest small. */
  reset() {
    const ends = (values, few) => {
      const sorted = Float64Array.from(values).sort(), last = sorted.length - 1;
      const low = sorted[few], high = sorted[last - few], span = high - low;
      return [low - sorted[0] > span ? low - span / 2 : sorted[0], sorted[last] - high > span ? high + span / 2 : sorted[last]];
    };
    const few = this.treeView || this.side.n < 10 ? 0 : Math.max(1, Math.floor(this.side.n / 100));
    const [x, y] = [ends(this.xs, few), ends(this.ys, few)];
    this.frame = { x, y };
    this.center = [(x[0] + x[1]) / 2, (y[0] + y[1]) / 2];
    this.zoom = 1;
  }

  place() {
    const { width, height } = this, margin = this.treeView ? 12 : 22;
    const spans = [this.frame.x, this.frame.y].map(([a, b]) => Math.max(b - a, 1e-9));
    const names = this.treeView && height * this.zoom / this.side.n >= 11 ? Math.min(130, width / 3) : 0;
    const top = this.buttons.offsetHeight + 12;  // nothing lies below the buttons, unless zoomed
    let [sx, sy] = [(width - 2 * margin - names) / spans[0], (height - top - margin) / spans[1]];
    if (this.treeView) sy *= this.zoom;
    else sx = sy = Math.min(sx, sy) * this.zoom;
    this.named = names > 0;
    const [midX, midY] = this.middle = [(width - names) / 2, (height + top - margin) / 2];
    this.toScreen = (x, y) => [midX + (x - this.center[0]) * sx, midY - (y - this.center[1]) * sy];
    this.scales = [sx, sy];
    const { xs, ys, px, py } = this;
    for (let k = 0; k < this.side.n; k++) [px[k], py[k]] = this.toScreen(xs[k], ys[k]);
  }

  zoomBy(factor, at = this.middle) {
    const before = this.zoom;
    this.zoom = Math.min(80, Math.max(0.5, this.zoom * factor));
    const [sx, sy] = this.scales, share = 1 - before / this.zoom;
    if (!this.treeView) this.center[0] += ((at[0] - this.middle[0]) / sx) * share;
    this.center[1] -= ((at[1] - this.middle[1]) / sy) * share;
    this.draw();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.holder;
    if (!width || !height) return;
    const dots = Math.min(3, window.devicePixelRatio || 1);
    Object.assign(this, { width, height });
    for (const canvas of [this.back, this.over]) {
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
      canvas.getContext("2d").setTransform(dots, 0, 0, dots, 0, 0);
    }
    this.draw();
  }

  // ------------------------------------------------------------------ drawing

  /** `look`: colors, an array of styles; style[item]; faint[item], large[item] (0 or 1) or null; labels. */
  show(look) {
    this.look = look;
    this.draw();
  }

  draw() {
    if (!this.look || !this.width) return;
    const began = performance.now();
    this.place();
    const pen = this.back.getContext("2d"), { look, width, height } = this;
    pen.clearRect(0, 0, width, height);
    if (this.treeView) this.drawTree(pen);
    const size = Math.max(2, Math.min(5.5, 75 / Math.sqrt(this.side.n))) * Math.min(2, Math.sqrt(Math.max(1, this.zoom)));
    // Points of one style are one path. Faint ones lie below, large ones above.
    const layers = [new Map(), new Map(), new Map()];
    for (let k = 0; k < this.side.n; k++) {
      const x = this.px[k], y = this.py[k];
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      const layer = layers[look.large && look.large[k] ? 2 : look.faint && look.faint[k] ? 0 : 1];
      const style = look.style[k];
      if (!layer.has(style)) layer.set(style, []);
      layer.get(style).push(k);
    }
    layers.forEach((layer, level) => {
      pen.globalAlpha = [look.fade, 0.85, 1][level];
      // Numbers ascend, so that high values lie above; of groups the small ones do.
      for (const [style, items] of [...layer].sort((a, b) => a[0] - b[0])) {
        const { color, shape } = look.styles[style];
        pen.beginPath();
        const r = level === 2 ? size + 2 : look.styles[style].small ? 0.7 * size : size;
        for (const k of items) tracePoint(pen, shape, this.px[k], this.py[k], r);
        pen.fillStyle = color;
        pen.fill();
        if (level === 2) { pen.lineWidth = 1.5; pen.strokeStyle = look.ink; pen.stroke(); }
      }
    });
    pen.globalAlpha = 1;
    this.drawNames(pen, size);
    this.drawOver();
    this.drawn = performance.now() - began;
  }

  drawTree(pen) {
    const { parents, x, y, n } = this.side.tree, root = parents.length - 1;
    const places = Array.from(parents, (_, k) => this.toScreen(x[k], y[k]));
    this.nodes = places;
    pen.beginPath();
    for (let node = 0; node < root; node++) {
      const [ax, ay] = places[node], [bx, by] = places[parents[node]];
      if (Math.max(ay, by) < 0 || Math.min(ay, by) > this.height) continue;
      pen.moveTo(ax, ay);
      pen.lineTo(bx, ay);
      pen.lineTo(bx, by);
    }
    pen.strokeStyle = this.look.soft;
    pen.lineWidth = n > 500 ? 0.6 : 1;
    pen.stroke();
  }

  /** Names beside points, where they do not overlap. */
  drawNames(pen, size) {
    this.groupNames = [];
    const taken = [], { look, width, height } = this;
    const write = (text, x, y, dy) => {
      pen.font = '12px system-ui, "Liberation Sans", sans-serif';
      const words = text.length > 28 ? text.slice(0, 26) + "…" : text;
      const wide = pen.measureText(words).width;
      const left = Math.min(Math.max(3, x - wide / 2), width - wide - 3), top = Math.min(Math.max(2, y + dy - 7), height - 16);
      const box = [left - 2, top - 1, left + wide + 2, top + 15];
      if (taken.some((b) => box[0] < b[2] && b[0] < box[2] && box[1] < b[3] && b[1] < box[3])) return false;
      taken.push(box);
      pen.lineJoin = "round";
      pen.lineWidth = 4;
      pen.strokeStyle = look.halo;
      pen.strokeText(words, left, top + 11);
      pen.fillStyle = look.ink;
      pen.fillText(words, left, top + 11);
      return true;
    };
    if (this.treeView) {
      if (!this.named) return;
      pen.font = '11px system-ui, "Liberation Sans", sans-serif';
      pen.fillStyle = look.ink;
      for (let k = 0; k < this.side.n; k++) {
        const text = this.side.names[k];
        if (this.py[k] > -9 && this.py[k] < height + 9) pen.fillText(text.length > 20 ? text.slice(0, 19) + "…" : text, this.px[k] + size + 4, this.py[k] + 4);
      }
      return;
    }
    for (const item of look.named) {
      const [x, y] = [this.px[item], this.py[item]];
      if (x < 0 || y < 0 || x > width || y > height) continue;
      write(this.side.names[item], x, y, -size - 12) || write(this.side.names[item], x, y, size + 12);
    }
    if (look.middles.length) this.drawGroupNames(pen, size);
  }

  /** Names of groups near their middle, where they cover few points; a line leads to those that had to move. */
  drawGroupNames(pen, size) {
    const { look, width, height, px, py } = this, columns = Math.ceil(width / SQUARE) + 1;
    const crowd = new Float32Array(columns * (Math.ceil(height / SQUARE) + 1));
    for (let k = 0; k < this.side.n; k++) {
      if (px[k] < 0 || py[k] < 0 || px[k] > width || py[k] > height) continue;
      crowd[Math.floor(py[k] / SQUARE) * columns + Math.floor(px[k] / SQUARE)] += look.styles[look.style[k]].small ? 0.2 : 1;
    }
    const covered = ([left, top, right, bottom]) => {
      let sum = 0;
      for (let row = Math.max(0, Math.floor(top / SQUARE)); row <= Math.min(bottom, height) / SQUARE; row++) {
        for (let at = Math.max(0, Math.floor(left / SQUARE)); at <= Math.min(right, width) / SQUARE; at++) sum += crowd[row * columns + at];
      }
      return sum;
    };
    const shared = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    const taken = [[width - this.buttons.offsetWidth - 8, 0, width, this.buttons.offsetHeight + 8]];
    pen.font = '600 12px system-ui, "Liberation Sans", sans-serif';
    pen.lineJoin = "round";
    const labels = [];
    for (const { text, members } of look.middles) {
      const middle = (values) => Float64Array.from(members, (k) => values[k]).sort()[members.length >> 1];
      const [x, y] = [middle(px), middle(py)];
      // The point next to the middle: the middle itself may lie among those of others.
      const anchor = members.reduce((best, k) => (Math.hypot(px[k] - x, py[k] - y) < Math.hypot(px[best] - x, py[best] - y) ? k : best));
      if (px[anchor] < 0 || py[anchor] < 0 || px[anchor] > width || py[anchor] > height) continue;
      const words = text.length > 28 ? text.slice(0, 26) + "…" : text, wide = pen.measureText(words).width;
      let best = null;
      for (const dy of SHIFTS) {
        for (const dx of [0, -wide / 2 - 12, wide / 2 + 12, -wide / 2 - 50, wide / 2 + 50]) {
          const left = Math.min(Math.max(3, px[anchor] + dx - wide / 2), width - wide - 3);
          const top = Math.min(Math.max(2, py[anchor] + dy - 8), height - 18);
          const box = [left - 2, top, left + wide + 2, top + 16];
          const over = taken.reduce((sum, other) => sum + shared(box, other), 0);
          const away = Math.hypot(Math.max(box[0] - px[anchor], 0, px[anchor] - box[2]), Math.max(box[1] - py[anchor], 0, py[anchor] - box[3]));
          const cost = covered(box) + 0.15 * away + 0.02 * Math.abs(dx) + over;
          if (!best || cost < best.cost) best = { cost, box, away, left };
        }
      }
      taken.push(best.box);
      labels.push({ ...best, words, at: [px[anchor], py[anchor]], text });
    }
    for (const { box, away, at } of labels) {
      if (away < size + 6) continue;
      pen.beginPath();
      pen.moveTo(Math.min(Math.max(box[0], at[0]), box[2]), Math.min(Math.max(box[1], at[1]), box[3]));
      pen.lineTo(...at);
      pen.lineWidth = 1;
      pen.strokeStyle = look.soft;
      pen.stroke();
    }
    for (const { box, left, words } of labels) {
      pen.lineWidth = 4;
      pen.strokeStyle = look.halo;
      pen.strokeText(words, left, box[1] + 12);
      pen.fillStyle = look.ink;
      pen.fillText(words, left, box[1] + 12);
    }
    this.groupNames = labels;
  }

  drawOver() {
    const pen = this.over.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    for (const k of new Set([this.hovered, this.cursor])) {
      if (k < 0) continue;
      pen.beginPath();
      pen.arc(this.px[k], this.py[k], 8, 0, 6.2832);
      pen.lineWidth = 2;
      pen.strokeStyle = this.look.ink;
      pen.stroke();
    }
    if (!this.path || this.path.length < 2) return;
    pen.beginPath();
    this.outline().forEach(([x, y], k) => pen[k ? "lineTo" : "moveTo"](x, y));
    pen.closePath();
    pen.fillStyle = "#0072b222";
    pen.fill();
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.strokeStyle = this.look.ink;
    pen.stroke();
    pen.setLineDash([]);
  }

  // ------------------------------------------------------------------ picking

  /** The point nearest to a place on the screen, or -1. */
  at(x, y, reach = 12) {
    let best = -1, least = reach * reach;
    for (let k = 0; k < this.side.n; k++) {
      const dx = this.px[k] - x, dy = this.py[k] - y, away = dx * dx + dy * dy;
      if (away < least) { least = away; best = k; }
    }
    return best;
  }

  /** The leaves below the node of the tree at a place on the screen. */
  leavesAt(x, y) {
    const { parents, n } = this.side.tree;
    let best = -1, least = 100;
    for (let node = n; node < parents.length; node++) {
      const away = (this.nodes[node][0] - x) ** 2 + (this.nodes[node][1] - y) ** 2;
      if (away < least) { least = away; best = node; }
    }
    if (best < 0) return [];
    const inside = new Uint8Array(parents.length);
    inside[best] = 1;
    for (let node = best - 1; node >= 0; node--) inside[node] = inside[parents[node]];
    return Array.from({ length: n }, (_, k) => k).filter((k) => inside[k]);
  }

  outline() {
    if (this.tool !== "box") return this.path;
    const [a, b] = [this.path[0], this.path.at(-1)];
    return [a, [b[0], a[1]], b, [a[0], b[1]]];
  }

  enclosed() {
    const shape = this.outline(), found = [];
    for (let k = 0; k < this.side.n; k++) {
      const x = this.px[k], y = this.py[k];
      let inside = false;
      for (let i = 0, j = shape.length - 1; i < shape.length; j = i++) {
        const [xi, yi] = shape[i], [xj, yj] = shape[j];
        if ((yi > y) !== (yj > y) && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
      }
      if (inside) found.push(k);
    }
    return found;
  }

  hover(item, x, y) {
    const began = performance.now();
    if (item !== this.hovered) {
      this.hovered = item;
      this.drawOver();
      this.tip.hidden = item < 0;
      if (item >= 0) this.tip.replaceChildren(...this.hooks.tip(item));
    }
    if (item >= 0) {
      this.tip.style.left = x < this.width / 2 ? `${x + 14}px` : "";
      this.tip.style.right = x < this.width / 2 ? "" : `${this.width - x + 14}px`;
      this.tip.style.top = `${Math.max(4, Math.min(y - 12, this.height - 70))}px`;
    }
    this.hoverTook = performance.now() - began;
  }

  /** The nearest point in a direction, for arrow keys. */
  step(dx, dy) {
    if (this.cursor < 0) {
      this.cursor = this.at(this.width / 2, this.height / 2, 1e9);
    } else {
      let best = -1, least = Infinity;
      for (let k = 0; k < this.side.n; k++) {
        const [x, y] = [this.px[k] - this.px[this.cursor], this.py[k] - this.py[this.cursor]];
        const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
        if (along <= 0.01 || aside > 1.5 * along) continue;
        if (along + 2 * aside < least) { least = along + 2 * aside; best = k; }
      }
      if (best >= 0) this.cursor = best;
    }
    this.hover(this.cursor, this.px[this.cursor], this.py[this.cursor]);
  }

  listen() {
    const spot = (event) => {
      const box = this.over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let begun = null;
    this.over.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      begun = { at: spot(event), center: [...this.center], moved: false };
      if (this.tool) this.over.setPointerCapture(event.pointerId);
    });
    this.over.addEventListener("pointermove", (event) => {
      const [x, y] = spot(event);
      if (!begun) return this.hover(this.at(x, y), x, y);
      begun.moved ||= Math.hypot(x - begun.at[0], y - begun.at[1]) > 4;
      if (!begun.moved || !this.tool) return;
      if (this.tool === "pan") {
        if (!this.treeView) this.center[0] = begun.center[0] - (x - begun.at[0]) / this.scales[0];
        this.center[1] = begun.center[1] + (y - begun.at[1]) / this.scales[1];
        this.hover(-1);
        return this.draw();
      }
      this.path ??= [begun.at];
      this.path.push([x, y]);
      this.drawOver();
    });
    const end = (event) => {
      if (!begun) return;
      const { moved } = begun, shape = this.path, [x, y] = spot(event);
      begun = null;
      if (event.type === "pointercancel") { this.path = null; return this.drawOver(); }
      if (shape) {
        const items = this.enclosed();
        this.path = null;
        this.drawOver();
        if (items.length) this.hooks.enclose(items, event.shiftKey);
      } else if (!moved) {
        const item = this.at(x, y);
        if (item >= 0) return this.hooks.pick(item, event.shiftKey);
        const below = this.treeView ? this.leavesAt(x, y) : [];
        if (below.length) this.hooks.enclose(below, event.shiftKey);
      }
    };
    this.over.addEventListener("pointerup", end);
    this.over.addEventListener("pointercancel", end);
    this.over.addEventListener("pointerleave", () => begun || this.hover(-1));
    this.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 200), spot(event));
    }, { passive: false });
    this.over.addEventListener("blur", () => { this.cursor = -1; this.hover(-1); this.look && this.drawOver(); });
    this.over.addEventListener("keydown", (event) => {
      const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (arrows[event.key]) this.step(...arrows[event.key]);
      else if (event.key === "Enter" && this.cursor >= 0) this.hooks.pick(this.cursor, event.shiftKey);
      else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
      else if (event.key === "-") this.zoomBy(1 / 1.4);
      else if (event.key === "0") { this.reset(); this.draw(); }
      else return;
      event.preventDefault();
    });
    const [nearer, farther, all] = this.holder.querySelectorAll(".zoom button");
    nearer.addEventListener("click", () => this.zoomBy(1.4));
    farther.addEventListener("click", () => this.zoomBy(1 / 1.4));
    all.addEventListener("click", () => { this.reset(); this.draw(); });
  }
}
