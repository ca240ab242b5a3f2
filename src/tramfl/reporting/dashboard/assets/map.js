// ---- map.js: the sites as stops, the links between them, and the tram -----------------------------------------
const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const STOP = 17; // radius

// Bars as one path, `wide` by `high`, at most 40 of them: neighbours share one beyond that.
function barsPath(counts, wide, high) {
  const bars = Math.min(counts.length, 40), values = new Array(bars).fill(0);
  counts.forEach((count, i) => { values[Math.floor((i * bars) / counts.length)] += count; });
  const most = Math.max(...values) || 1, step = wide / bars, width = Math.max(0.5, step - 1.5);
  return values.map((value, i) => {
    const height = value ? Math.max(1.5, (value / most) * high) : 0;
    return height ? `M${(i * step).toFixed(1)} ${high}v${-height.toFixed(1)}h${width.toFixed(1)}V${high}z` : "";
  }).join("");
}

const MANY = 20; // sites: above this they stand in rows as tiles, for on a ring they would hide each other

const HEADROOM = 16; // above the tiles: the tram on a tile of the first row reaches that far

// Tiles in rows that fill `wide` by `high`: where each has its middle, and how wide it is.
function tilesOf(count, wide, whole) {
  const high = whole - HEADROOM;
  let size = 0;
  for (let columns = 1; columns <= count; columns++) size = Math.max(size, Math.min(wide / columns, high / Math.ceil(count / columns)));
  const columns = Math.max(1, Math.floor(wide / size + 1e-9)), rows = Math.ceil(count / columns);
  const [left, top] = [(wide - columns * size) / 2, HEADROOM + (high - rows * size) / 2];
  const places = Array.from({ length: count }, (_, i) => ({ x: left + (i % columns + 0.5) * size, y: top + (Math.floor(i / columns) + 0.5) * size }));
  return { places, size };
}

// Stops on a ring that fills `wide` by `high` but for the margins.
function placesOf(count, wide, high, side, end) {
  const turn = count === 2 ? 0 : -Math.PI / 2;
  const ring = Array.from({ length: count }, (_, i) => turn + (2 * Math.PI * i) / count).map((a) => [Math.cos(a), Math.sin(a)]);
  const fit = (values, from, to) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return values.map((value) => (high - low < 1e-6 ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from)));
  };
  const xs = fit(ring.map(([x]) => x), side, wide - side), ys = fit(ring.map(([, y]) => y), end, high - end);
  return xs.map((x, i) => ({ x, y: ys[i] }));
}

class TramMap {
  constructor(place) {
    this.place = place;
    this.key = "";
    this.size = [0, 0];
  }
  // Asked for only when it may have changed: asking makes the browser lay the page out.
  measure() { this.size = [this.place.clientWidth, this.place.clientHeight]; }
  // Builds the map anew where its size or its sites have changed.
  build(run) {
    const [wide, high] = this.size, count = run.sites;
    const key = [wide, high, count, run.now.run].join();
    if (key === this.key || !wide || !high) return;
    this.key = key;
    this.shown = "";
    this.roomy = wide >= 560 && count <= 12;
    const told = this.roomy ? 62 : 22; // height of what is written at a stop
    this.tiled = count > MANY;
    const tiles = this.tiled ? tilesOf(count, wide, high) : null;
    this.tile = tiles?.size ?? 0;
    this.stops = tiles?.places ?? placesOf(count, wide, high, this.roomy ? 64 : 36, STOP + told + 4);
    this.middle = { x: wide / 2, y: high / 2 };
    this.svg = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-labelledby": "map-words" });
    this.words = svg("title", { id: "map-words" });
    this.svg.append(this.words, this.tiled ? svg("path", { class: "track" }) : this.tracks(count));
    this.links = this.stops.map(() => svg("path", { class: "link" }));
    this.rail = svg("path", { class: "rail" });
    this.ties = svg("path", { class: "ties" });
    this.sites = this.stops.map((stop, i) => (this.tiled ? this.tileOf(run, stop, i) : this.stopOf(run, stop, i)));
    this.tram = this.tramOf();
    this.fleet = svg("g"); // the models of runs in which every node keeps one
    const sites = this.sites.map((site) => site.group);
    if (this.tiled) this.svg.append(...sites, this.rail, this.ties, this.tram, this.fleet);
    else this.svg.append(...this.links, this.rail, this.ties, ...sites, this.tram, this.fleet);
    this.place.replaceChildren(this.svg);
    this.place.parentElement.classList.toggle("tiled", this.tiled);
  }
  tracks(count) {
    const pairs = [];
    for (let i = 0; i < count; i++)
      for (let j = i + 1; j < count; j++) if (count <= 12 || j === i + 1 || (i === 0 && j === count - 1)) pairs.push(this.path(i, j));
    return svg("path", { class: "track", d: pairs.join("") });
  }
  // A server beside the sites stands in their middle.
  stop(i) { return this.stops[i] ?? this.middle; }
  // From one stop to another, bent towards the middle.
  bend(i, j) {
    const [a, b] = [this.stop(i), this.stop(j)];
    const mid = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    return { x: mid.x + 0.35 * (this.middle.x - mid.x), y: mid.y + 0.35 * (this.middle.y - mid.y) };
  }
  path(i, j) {
    const [a, b, bend] = [this.stop(i), this.stop(j), this.bend(i, j)];
    return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}Q${bend.x.toFixed(1)} ${bend.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`;
  }
  along(i, j, share) {
    const [a, b, bend] = [this.stop(i), this.stop(j), this.bend(i, j)], rest = 1 - share;
    const mix = (axis) => rest * rest * a[axis] + 2 * rest * share * bend[axis] + share * share * b[axis];
    return { x: mix("x"), y: mix("y") };
  }
  // A site as a tile: how deep its colour is says how much compute is free, a bar at its foot how fast its link is.
  tileOf(run, { x, y }, i) {
    const side = this.tile - Math.max(2, this.tile * 0.08), half = side / 2;
    const group = svg("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    const box = { x: -half, y: -half, width: side, height: side, rx: Math.min(6, side / 6) };
    const fill = svg("rect", { class: "tile-fill", ...box }), bar = svg("rect", { class: "tile-link", x: -half + 3, y: half - 5, width: 0, height: 3, rx: 1.5 });
    const number = svg("text", { class: "tile-number", "font-size": Math.max(8, Math.min(14, side * 0.38)).toFixed(1) }), words = svg("title");
    number.textContent = i;
    words.textContent = run.siteName(i);
    group.append(svg("rect", { class: "tile", ...box }), fill, bar, number, words);
    return { group, fill, bar, room: side - 6, load: null, link: null };
  }
  stopOf(run, { x, y }, i) {
    const above = y < this.middle.y - 1, ring = 2 * Math.PI * STOP;
    const group = svg("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    const arc = svg("circle", { class: "ring", r: STOP, transform: "rotate(-90)", "stroke-dasharray": `0 ${ring}` });
    const number = svg("text", { class: "number" });
    number.textContent = i;
    const d = STOP * 0.34;
    group.append(svg("circle", { class: "pulse", r: STOP }), svg("circle", { class: "ring-back", r: STOP }), arc,
      svg("circle", { class: "stop", r: STOP - 5 }), number, svg("path", { class: "cross", d: `M${-d} ${-d}L${d} ${d}M${d} ${-d}L${-d} ${d}` }));
    const held = run.now.sites[i]?.held, text = (dy, name = "") => {
      const made = svg("text", { y: dy, class: name });
      group.append(made);
      return made;
    };
    const full = run.siteName(i), short = full.length > 18 ? full.slice(0, 17) + "…" : full;
    let load = null, link = null;
    if (this.roomy) {
      const top = above ? -STOP - 62 : STOP + 7; // the block of text, from its upper edge
      text(top + 12).textContent = short;
      load = text(top + 26, "small");
      link = text(top + 39, "small");
      if (held?.length) group.append(svg("path", { class: "bars", transform: `translate(-36 ${top + 44})`, d: barsPath(held, 72, 14) }),
        svg("line", { class: "base", x1: -37, x2: 37, y1: top + 58.5, y2: top + 58.5 }));
    } else if (this.stops.length <= 12) text(above ? -STOP - 9 : STOP + 18).textContent = short;
    return { group, arc, ring, load, link };
  }
  tramOf() {
    const tram = svg("g", { class: "tram" });
    tram.append(
      svg("path", { class: "tram-line", d: "M-5 -27L0 -22L5 -27M0 -22V-18" }),
      svg("circle", { class: "tram-wheel", cx: -10, cy: 1, r: 3.2 }), svg("circle", { class: "tram-wheel", cx: 10, cy: 1, r: 3.2 }),
      svg("rect", { class: "tram-body", x: -21, y: -19, width: 42, height: 20, rx: 6 }),
      svg("path", { class: "tram-glass", d: "M-16 -14.5h8v7h-8zM-5 -14.5h10v7h-10zM8 -14.5h6a2 2 0 0 1 2 2v5h-8z" }));
    return tram;
  }
  draw(run, scene, still) {
    this.build(run);
    if (!this.svg) return;
    this.drawTram(scene, still);
    this.drawFleet(scene, still);
    const key = [scene.row?.index, scene.phase, scene.from, scene.to, scene.holder, scene.flops, scene.bandwidth, scene.alive, scene.doing].join("|");
    if (key === this.shown) return;
    this.shown = key;
    this.drawLinks(run, scene);
    this.sites.forEach((site, i) => {
      const dead = !scene.alive[i], busy = i === scene.to || i === scene.from || (scene.trams && ["training", "exchanging"].includes(scene.doing[i]));
      site.group.setAttribute("class", dead ? "dead" : busy ? `busy ${scene.phase}` : "");
      const share = scene.flops[i] && run.mostFlops ? Math.max(0.02, scene.flops[i] / Math.max(run.mostFlops, scene.flops[i])) : 0;
      if (this.tiled) {
        const link = scene.bandwidth[i] && run.mostBandwidth ? Math.min(1, scene.bandwidth[i] / run.mostBandwidth) : 0;
        site.fill.style.opacity = busy ? 1 : (0.75 * share).toFixed(2);
        site.bar.setAttribute("width", (link * site.room).toFixed(1));
        return;
      }
      site.arc.setAttribute("stroke-dasharray", `${(share * site.ring).toFixed(1)} ${site.ring.toFixed(1)}`);
      site.arc.style.visibility = share ? "visible" : "hidden";
      if (!site.load) return;
      site.load.textContent = dead ? "does not report" : scene.flops[i] ? flopsText(scene.flops[i]) : "";
      const score = scene.scores?.[i];
      if (scene.trams) site.link.textContent = dead || score === undefined || score === null ? "" : `model: ${run.valueText(score)}`;
      else site.link.textContent = dead ? "" : i === scene.from && i === scene.to ? "has the model"
        : scene.bandwidth[i] ? linkText(scene.bandwidth[i]) : i === scene.linksOf && scene.from === scene.to ? "sent the model" : "";
    });
  }
  drawLinks(run, scene) {
    const { linksOf: holder, from, to } = scene;
    if (!this.tiled) this.links.forEach((link, i) => {
      const bandwidth = scene.bandwidth[i];
      link.setAttribute("d", bandwidth && holder !== null && i !== holder ? this.path(holder, i) : "");
      if (bandwidth) link.setAttribute("stroke-width", (1 + 6 * (bandwidth / Math.max(run.mostBandwidth, bandwidth))).toFixed(1));
    });
    const moves = scene.trams ?? (from !== null ? [{ from, to }] : []);
    const d = moves.filter((move) => move.from !== move.to).map((move) => this.path(move.from, move.to)).join("");
    this.rail.setAttribute("d", d);
    this.ties.setAttribute("d", d);
  }
  // The tram stands on its stop, or glides along the rail; with `still` it leaps.
  drawTram({ phase, from, to, progress }, still) {
    this.tram.style.visibility = from === null ? "hidden" : "visible";
    if (from === null) return;
    const share = from === to ? 0 : still || progress === null ? 0.5 : progress;
    const eased = share < 0.5 ? 2 * share * share : 1 - 2 * (1 - share) * (1 - share);
    const { x, y } = from === to ? this.stops[from] : this.along(from, to, eased);
    // At a stop it stands on the inner side, clear of what is written there; on its way it rides on the rail.
    const near = Math.max(0, 1 - 4 * eased), there = Math.max(0, 4 * eased - 3);
    const beside = from === to ? this.beside(from) : near * this.beside(from) + there * this.beside(to) + 9 * (1 - near - there);
    // Among tiles it is small and rides above the number of its tile.
    const scale = this.tiled ? Math.max(0.45, Math.min(1, this.tile / 60)) : 1, lift = this.tiled ? -this.tile * 0.32 : beside;
    this.tram.setAttribute("transform", `translate(${x.toFixed(1)} ${(y + lift).toFixed(1)}) scale(${scale.toFixed(2)})`);
    this.tram.dataset.phase = phase;
  }
  // Several models at once: one tram at every stop, or one on every link that carries something.
  drawFleet({ phase, progress, trams }, still) {
    while (this.fleet.childElementCount < (trams?.length ?? 0)) this.fleet.append(this.tramOf());
    const scale = this.tiled ? Math.max(0.3, Math.min(0.6, this.tile / 90)) : 0.62;
    [...this.fleet.children].forEach((tram, place) => {
      const move = trams?.[place];
      tram.style.visibility = move ? "visible" : "hidden";
      if (!move) return;
      const stays = move.from === move.to, share = stays ? 0 : still || progress === null ? 0.5 : progress;
      const { x, y } = stays ? this.stop(move.from) : this.along(move.from, move.to, share);
      const lift = this.tiled ? -this.tile * 0.2 : stays ? this.beside(move.from) : 6;
      tram.setAttribute("transform", `translate(${x.toFixed(1)} ${(y + lift).toFixed(1)}) scale(${scale})`);
      tram.dataset.phase = phase;
    });
  }
  beside(i) { return this.tiled ? 0 : this.stops[i].y < this.middle.y - 1 ? STOP + 32 : -STOP - 7; }
  tell(run, scene) {
    if (!this.words) return;
    const parts = scene.alive.map((alive, i) => {
      const load = scene.flops[i] ? `, ${flopsText(scene.flops[i])} free` : "";
      const link = scene.bandwidth[i] ? `, ${linkText(scene.bandwidth[i])} from the holder` : "";
      return `${run.siteName(i)}${alive ? load + link : " does not report"}`;
    });
    const told = parts.length <= MANY ? `${parts.join("; ")}.` : `${parts.length} sites; the table below has each.`;
    this.words.textContent = `${scene.what} ${told}`;
  }
}
