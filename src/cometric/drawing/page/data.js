// The data of the page, decoded: names, places, columns, neighbors, masses.

const SIDES = ["samples", "features"];
const OTHER = { samples: "features", features: "samples" };
const given = JSON.parse(document.getElementById("data").textContent);
const WORDS = given.words;  // { samples: { one, many }, features: ... }

/** Numbers from compressed base64. */
const unpack = async (text, Type) => {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Type(await new Response(stream).arrayBuffer());
};

const readColumn = async (column) => {
  if (column.kind === "groups") return { ...column, codes: await unpack(column.codes, Uint16Array) };
  const codes = await unpack(column.codes, Uint8Array);
  const values = Float64Array.from(codes, (code) => (code ? column.low + (code - 1) * column.step : NaN));
  return { ...column, values };
};

const readTree = async ({ parents, depths, ranks }, n) => {
  const tree = {
    parents: await unpack(parents, Uint16Array), x: Float64Array.from(await unpack(depths, Uint16Array)),
    ranks: await unpack(ranks, Uint16Array), n,
  };
  const count = tree.parents.length;
  tree.y = new Float64Array(count);
  const children = new Uint32Array(count);
  for (let leaf = 0; leaf < n; leaf++) tree.y[leaf] = -tree.ranks[leaf];
  for (let node = 0; node < count - 1; node++) {  // every node comes before its parent
    if (node >= n) tree.y[node] /= children[node];
    tree.y[tree.parents[node]] += tree.y[node];
    children[tree.parents[node]]++;
  }
  if (count > n) tree.y[count - 1] /= children[count - 1];
  return tree;
};

const readSide = async (side) => {
  const raw = given[side], near = raw.nearest;
  return {
    names: raw.names,
    n: raw.names.length,
    x: Float64Array.from(await unpack(raw.x, Int16Array), (v) => v / 300),
    y: Float64Array.from(await unpack(raw.y, Int16Array), (v) => v / 300),
    columns: await Promise.all(raw.columns.map(readColumn)),
    near: { count: near.count, items: await unpack(near.items, Uint16Array),
      away: Float64Array.from(await unpack(near.away, Uint16Array), (v) => (v / 65535) * near.largest) },
    tree: raw.tree && await readTree(raw.tree, raw.names.length),
  };
};

/** The mass that each of the 256 codes stands for. */
const decoder = ({ least, top }) => Float64Array.from({ length: 256 }, (_, code) =>
  code === 0 ? 0 : least * (top / least) ** ((code - 1) / 254));

const readMass = async (mass) => ({
  start: await unpack(mass.start, Uint32Array),
  index: await unpack(mass.index, Uint16Array),
  known: await unpack(mass.known, Uint8Array),
  samples: { codes: await unpack(mass.samples.codes, Uint8Array), unit: decoder(mass.samples) },
  features: { codes: await unpack(mass.features.codes, Uint8Array), unit: decoder(mass.features) },
});

const readValues = async (values) => values && ({
  ...values, start: await unpack(values.start, Uint32Array), index: await unpack(values.index, Uint16Array),
  codes: await unpack(values.codes, Uint8Array),
});

/** For each item of the other side: mean mass in the chosen histograms, in the rest, log2 of their ratio. */
const compare = (data, side, chosen) => {
  const { start, index, known } = data.mass, { codes, unit } = data.mass[side];
  const total = data[side].n, across = data[OTHER[side]].n;
  const inside = new Float64Array(across), outside = new Float64Array(across);
  const member = new Uint8Array(total);
  for (const item of chosen) member[item] = 1;
  const rows = side === "samples";
  for (let row = 0; row + 1 < start.length; row++) {
    for (let entry = start[row]; entry < start[row + 1]; entry++) {
      const item = rows ? row : index[entry], bin = rows ? index[entry] : row;
      if (member[item]) inside[bin] += unit[codes[entry]];
      else outside[bin] += unit[codes[entry]];
    }
  }
  const floor = given.floor[SIDES.indexOf(side)];
  const ratio = new Float64Array(across);
  // Of features, those whose masses are not in the page count on neither side.
  const counted = rows ? [chosen.length, total - chosen.length] : [0, 0];
  if (!rows) known.forEach((is, item) => { counted[member[item] ? 0 : 1] += is; });
  for (let bin = 0; bin < across; bin++) {
    inside[bin] /= Math.max(1, counted[0]);
    outside[bin] /= Math.max(1, counted[1]);
    ratio[bin] = (rows ? known[bin] : counted[0]) ? Math.log2((inside[bin] + floor) / (outside[bin] + floor)) : NaN;
  }
  return { inside, outside, ratio };
};

/** The values of a feature in all samples, by name, or null. */
const featureValues = (data, name) => {
  const out = new Float64Array(data.samples.n), values = data.values;
  if (values) {
    const k = values.names.indexOf(name);
    if (k < 0) return null;
    for (let e = values.start[k]; e < values.start[k + 1]; e++) out[values.index[e]] = (values.codes[e] / 255) * values.top[k];
    return { values: out, unit: "" };
  }
  const k = data.features.names.indexOf(name), { start, index, known, samples } = data.mass;
  if (k < 0 || !known[k]) return null;
  for (let row = 0; row + 1 < start.length; row++) {
    for (let e = start[row]; e < start[row + 1]; e++) if (index[e] === k) out[row] = 100 * samples.unit[samples.codes[e]];
  }
  return { values: out, unit: `% of each ${WORDS.samples.one}` };
};

const load = async () => ({
  samples: await readSide("samples"), features: await readSide("features"),
  mass: await readMass(given.mass), values: await readValues(given.values),
});
