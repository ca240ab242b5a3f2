// ---- run.js: the rounds as they came, and what follows from them -------------------------------------------
const FIELDS = ["round", "epoch", "holder", "node", "compute", "transfer", "idle", "lost", "total", "samples", "used",
  "variance", "flops", "bandwidth", "tested", "loss", "validation", "reason", "predicted", "diverged", "actual", "models", "overhead"];
const KEEP = 250; // points of a line, whatever the length of the run

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// A line that never grows beyond 2 * KEEP stretches of rounds; the least and the greatest of each survive.
class Line {
  constructor() {
    this.stretches = [];
    this.width = 1;
    this.low = Infinity;
    this.high = -Infinity;
  }
  add(index, x, y) {
    this.low = Math.min(this.low, y);
    this.high = Math.max(this.high, y);
    const last = this.stretches.at(-1);
    if (last && last.count < this.width) {
      last.count += 1;
      last.to = index;
      if (y < last.low) [last.low, last.lowX] = [y, x];
      if (y > last.high) [last.high, last.highX] = [y, x];
      [last.x, last.y] = [x, y];
    } else this.stretches.push({ from: index, to: index, count: 1, low: y, lowX: x, high: y, highX: x, x, y });
    if (this.stretches.length > 2 * KEEP) this.halve();
  }
  halve() {
    const halved = [];
    for (let i = 0; i < this.stretches.length; i += 2) {
      const [a, b] = [this.stretches[i], this.stretches[i + 1]];
      if (!b) halved.push(a);
      else {
        const low = a.low <= b.low ? a : b, high = a.high >= b.high ? a : b;
        halved.push({ from: a.from, to: b.to, count: a.count + b.count, low: low.low, lowX: low.lowX,
          high: high.high, highX: high.highX, x: b.x, y: b.y });
      }
    }
    this.stretches = halved;
    this.width *= 2;
  }
}

const QUANTITIES = {
  tested: [(row) => row.total, (row) => row.tested], // what the targets are of
  loss: [(row) => row.round, (row) => row.loss],
  validation: [(row) => row.round, (row) => row.validation],
  rate: [(row) => row.total, (row) => (row.total > 0 ? row.all / row.total : null)],
  variance: [(row) => row.round, (row) => row.variance],
};

class Run {
  constructor(now) {
    this.now = now;
    this.rows = [];
    this.reached = new Set();
    this.metric = "accuracy"; // as people write it
    this.measured = false; // whether any row has a test result
    this.mostFlops = 0;
    this.mostBandwidth = 0;
    this.clear();
  }
  clear() {
    this.lines = Object.fromEntries(Object.keys(QUANTITIES).map((name) => [name, new Line()]));
  }
  get length() { return this.rows.length; }
  get sites() { return Math.max(this.now.sites.length, this.rows.length ? this.rows[0].flops.length : 0); }
  get seconds() { return this.clock === "real" ? "time" : "virtual time"; }
  get clock() { return this.now.clock; }
  // What the targets are of: accuracy in per cent, any other metric as a plain number.
  get isShare() { return (this.now.metric ?? "accuracy") === "accuracy"; }
  isAt(value, target) { return this.now.lower_is_better ? value <= target : value >= target; }
  valueText(value) { return this.isShare ? percent(value) : String(Number(value.toPrecision(4))); }
  siteName(i) { return this.now.sites[i]?.name ?? `node ${i}`; }
  // At the beginning of a sentence: a name stays as its owner wrote it.
  siteFirst(i) { return this.siteName(i).replace(/^node (?=\d+$)/, "Node "); }
  // A policy knows nodes by their numbers only.
  withNames(reason) {
    return reason.replace(/\bnode (\d+)\b/gi, (found, i) => (found[0] === "N" ? this.siteFirst(i) : this.siteName(i)));
  }
  labelName(i) { return this.now.labels[i] ?? String(i); }

  add(list) {
    let undone = false;
    for (const values of list) {
      const row = Object.fromEntries(FIELDS.map((name, i) => [name, values[i]]));
      const index = this.rows.length, before = this.rows[index - 1];
      row.index = index;
      row.all = sum(row.used);
      row.count = sum(row.samples);
      row.reason = this.withNames(row.reason);
      row.duration = row.compute + row.transfer + row.idle + row.lost + row.overhead;
      row.undoneBy = Infinity; // the row that does this round again
      // After a takeover, rounds that were lost with a site are done again.
      let base = index - 1;
      for (; base >= 0 && (this.rows[base].round >= row.round || this.rows[base].undoneBy < index); base--)
        if (this.rows[base].undoneBy > index) {
          this.rows[base].undoneBy = index;
          undone = true;
        }
      row.events = this.eventsOf(row, before);
      for (const value of row.flops) if (value > this.mostFlops) this.mostFlops = value;
      for (const value of row.bandwidth) if (value > this.mostBandwidth) this.mostBandwidth = value;
      if (row.tested !== null || row.loss !== null) this.measured = true;
      // What each site has trained up to and with this round; shared with the row before where nothing was trained.
      row.trained = base >= 0 ? this.rows[base].trained : new Array(row.flops.length).fill(0);
      if (row.models) {
        const [trained, sent, scores, worst, consensus, transfers] = row.models;
        row.models = { trained, sent, scores, worst, consensus, transfers };
      }
      if (row.node !== null) {
        row.trained = row.trained.slice();
        for (const [node, count] of row.models?.trained ?? [[row.node, row.count]]) row.trained[node] += count;
      }
      this.rows.push(row);
      if (!undone) this.draw(row);
    }
    if (undone) {
      this.clear();
      for (const row of this.rows) if (row.undoneBy === Infinity) this.draw(row);
    }
  }
  draw(row) {
    for (const [name, [x, y]] of Object.entries(QUANTITIES)) {
      const value = y(row);
      if (value !== null) this.lines[name].add(row.index, x(row), value);
    }
  }
  eventsOf(row, before) {
    const events = [];
    const tell = (kind, text) => events.push({ kind, text });
    const name = (i) => this.siteName(i);
    const was = before ? before.flops : row.flops.map(() => 1);
    row.flops.forEach((flops, i) => {
      if (flops === null && was[i] !== null) tell("bad", `${this.siteFirst(i)} no longer reports.`);
      if (flops !== null && was[i] === null) tell("good", `${this.siteFirst(i)} is back.`);
    });
    if (before && row.epoch > before.epoch) {
      const holder = before.node ?? before.holder;
      const from = holder === row.holder ? "" : ` from ${name(holder)}`;
      tell("bad", `Takeover: ${name(row.holder)} took the model over${from} (epoch ${row.epoch}).`);
      if (row.round <= before.round) {
        const lost = before.round - row.round + 1;
        tell("bad", `${lost === 1 ? "One round was" : `${lost} rounds were`} lost and ${lost === 1 ? "is" : "are"} done again.`);
      }
    }
    if (row.diverged) tell("bad", "The training of this round diverged: its loss was not a finite number.");
    if (row.lost > 0) tell("bad", `${seconds(row.lost)} were lost on attempts that failed.`);
    for (const target of this.now.targets)
      if (row.tested !== null && this.isAt(row.tested, target) && !this.reached.has(target)) {
        this.reached.add(target);
        tell("good", `${this.isShare ? `${this.valueText(target)} test accuracy` : `test ${this.metric} of ${this.valueText(target)}`} reached after ${seconds(row.total)}.`);
      }
    return events;
  }
}

// ---- figures as people read them ---------------------------------------------------------------------------
const formats = [0, 1, 2].map((places) => new Intl.NumberFormat("en", { minimumFractionDigits: places, maximumFractionDigits: places }));
const grouped = (value, places = 0) => formats[places].format(value);
const samples = (count) => `${grouped(count)} ${count === 1 ? "sample" : "samples"}`;
const digits = (value) => (value < 10 ? grouped(value, 2) : value < 1000 ? grouped(value, 1) : grouped(value));
const percent = (share) => `${Number((100 * share).toFixed(1))} %`;
function seconds(value) {
  if (value >= 7200) return `${grouped(value / 3600, 1)} h`;
  if (value > 0 && value < 1e-4) return `${grouped(1e6 * value, 1)} µs`;
  return value > 0 && value < 0.995 ? `${grouped(1000 * value, value < 0.01 ? 1 : 0)} ms` : `${digits(value)} s`;
}
function scaled(value, unit) {
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [factor, letter] = steps.find(([size]) => value >= size) ?? [1, ""];
  const number = value / factor;
  return `${grouped(number, number < 10 ? 2 : number < 100 ? 1 : 0)} ${letter}${unit}`;
}
const flopsText = (value) => scaled(value, "FLOPS");
const linkText = (value) => scaled(value, "bit/s");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
