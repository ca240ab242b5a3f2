// ---- charts.js: lines and bars on canvas ------------------------------------------------------------------------
const colours = { stale: true };
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "grid", "panel", "policy", "dead"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  colours.stale = false;
}

// About `count` round numbers from `low` to `high`.
function ticksOf(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) ?? 10);
  const ticks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) ticks.push(Math.abs(value) < step / 1e6 ? 0 : value);
  return ticks;
}
function short(value) {
  if (Math.abs(value) >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (Math.abs(value) >= 1e3) return `${Number((value / 1e3).toPrecision(3))}k`;
  return grouped(value, Number.isInteger(value) ? 0 : Math.abs(value) < 1 ? 2 : 1).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

class Sheet {
  constructor(figure) {
    this.canvas = figure.querySelector("canvas");
    this.caption = figure.querySelector("figcaption");
    this.size = [0, 0];
    this.context = this.canvas.getContext("2d");
    const heading = figure.querySelector("h2");
    heading.id = `${figure.id}-title`;
    this.caption.id = `${figure.id}-words`;
    this.canvas.setAttribute("aria-labelledby", heading.id);
    this.canvas.setAttribute("aria-describedby", this.caption.id);
  }
  measure() { this.size = [this.canvas.clientWidth, this.canvas.clientHeight]; }
  // A clean sheet; null where it has no size.
  begin() {
    const [wide, high] = this.size, ratio = window.devicePixelRatio || 1;
    if (!wide || !high) return null;
    if (this.canvas.width !== Math.round(wide * ratio) || this.canvas.height !== Math.round(high * ratio)) {
      this.canvas.width = Math.round(wide * ratio);
      this.canvas.height = Math.round(high * ratio);
    }
    const c = this.context;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, wide, high);
    c.font = colours.font;
    c.lineWidth = 1;
    c.setLineDash([]);
    return { c, wide, high, left: 36, right: wide - 8, top: 8, bottom: high - 18 };
  }
  tell(text) { if (this.caption.textContent !== text) this.caption.textContent = text; }
}

class LineChart extends Sheet {
  // `series`: [{ line, quantity, colour, width, dash }]; `levels`: [{ at, name }]; `unit` is written at the x axis.
  draw(run, done, { series, levels = [], from = null, to = null, text = short, unit, logWhen = 0 }) {
    const box = this.begin();
    if (!box) return;
    const lines = series.filter(({ name }) => run.lines[name].stretches.length);
    const { c, left, right, top, bottom } = box;
    let low = from ?? Math.min(...lines.map(({ name }) => run.lines[name].low), ...levels.map((l) => l.at));
    let high = to ?? Math.max(...lines.map(({ name }) => run.lines[name].high), ...levels.map((l) => l.at)) * 1.08;
    if (!Number.isFinite(low)) low = 0;
    if (!Number.isFinite(high) || high <= low) high = low + 1;
    const log = logWhen > 0 && high > 20 * logWhen;
    if (log) low = logWhen / 20;
    const height = (value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low));
    const ends = lines.map(({ name }) => run.lines[name].stretches.at(-1).x);
    const begin = unit === "round" ? 1 : 0, end = Math.max(begin + (unit === "round" ? 1 : 1e-9), ...ends);
    const px = (x) => left + ((x - begin) / (end - begin)) * (right - left), py = (y) => bottom - height(y) * (bottom - top);
    this.scale = { px, begin, end, left, right };
    this.frame(box, log ? powers(low, high) : ticksOf(low, high, 4), ticksOf(begin, end, 4), px, py, text, unit);
    c.setLineDash([3, 3]);
    c.strokeStyle = colours.soft;
    for (const { at } of levels) {
      c.beginPath();
      c.moveTo(left, py(at));
      c.lineTo(right, py(at));
      c.stroke();
    }
    c.setLineDash([]);
    c.lineJoin = "round";
    c.save();
    c.beginPath();
    c.rect(left - 1, top - 4, right - left + 6, bottom - top + 5);
    c.clip();
    const clip = done >= run.length ? Infinity : done;
    for (const each of lines) {
      if (clip !== Infinity) this.stroke(run, each, Infinity, px, py, 0.18);
      this.stroke(run, each, clip, px, py, each.alpha ?? 1);
    }
    c.restore();
    // On the left, where a run has hardly begun and its line is seldom in the way.
    c.textAlign = "left";
    c.fillStyle = colours.soft;
    c.strokeStyle = colours.panel;
    c.lineWidth = 3;
    for (const { at, name } of levels) {
      const below = py(at) < top + 12;
      c.textBaseline = below ? "top" : "bottom";
      c.strokeText(name, left + 4, py(at) + (below ? 3 : -2));
      c.fillText(name, left + 4, py(at) + (below ? 3 : -2));
    }
  }
  frame({ c, left, right, bottom }, ys, xs, px, py, text, unit) {
    c.strokeStyle = colours.grid;
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const y of ys) {
      c.beginPath();
      c.moveTo(left, Math.round(py(y)) + 0.5);
      c.lineTo(right, Math.round(py(y)) + 0.5);
      c.stroke();
      c.fillText(text(y), left - 5, py(y));
    }
    c.textBaseline = "top";
    const last = xs.at(-1), [times, name] = unit !== "s" ? [1, ""] : last >= 0.1 ? [1, " s"] : last >= 1e-4 ? [1e3, " ms"] : [1e6, " µs"];
    for (const x of xs) {
      if (unit === "round" && !Number.isInteger(x)) continue;
      c.textAlign = px(x) > right - 16 ? "right" : px(x) < left + 8 ? "left" : "center";
      c.fillText(short(x * times) + (x === last ? name : ""), px(x), bottom + 5);
    }
  }
  // The rounds before `done`, by stretches; the stretch it falls into is drawn round by round.
  stroke(run, { name, colour, width = 2, dash = [] }, done, px, py, alpha) {
    const c = this.context, [x, y] = QUANTITIES[name];
    let drawn = 0, last = null;
    c.beginPath();
    const go = (a, b) => {
      last = [px(a), py(b)];
      drawn++ ? c.lineTo(...last) : c.moveTo(...last);
    };
    for (const s of run.lines[name].stretches) {
      if (s.from >= done) break;
      if (s.to < done) {
        if (s.lowX <= s.highX) { go(s.lowX, s.low); if (s.high !== s.low) go(s.highX, s.high); }
        else { go(s.highX, s.high); go(s.lowX, s.low); }
        if (s.x !== s.lowX && s.x !== s.highX) go(s.x, s.y);
        continue;
      }
      for (let i = s.from; i < done; i++) {
        const row = run.rows[i], value = y(row);
        if (row.undoneBy === Infinity && value !== null) go(x(row), value);
      }
      break;
    }
    c.globalAlpha = alpha;
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.setLineDash(dash);
    c.stroke();
    if (drawn && alpha > 0.5 && width > 1) { // where it has got to
      c.beginPath();
      c.arc(...last, width + 1, 0, 7);
      c.fillStyle = colour;
      c.fill();
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
  }
}
function powers(low, high) {
  const found = [];
  for (let p = Math.ceil(Math.log10(low)); 10 ** p <= high; p++) found.push(10 ** p);
  return found.filter((_, i) => found.length <= 5 || i % 2 === 0);
}

class BalanceChart extends Sheet {
  // Samples used per label, with their mean and the square root of V on both sides of it.
  draw(run, used, limit) {
    const box = this.begin();
    if (!box || !used.length) return;
    const { c, left, right, top, bottom } = box;
    const mean = sum(used) / used.length, spread = Math.sqrt(limit ?? 0);
    const high = Math.max(...used, mean + spread, 1) * 1.06, py = (y) => bottom - (Math.max(0, y) / high) * (bottom - top);
    c.strokeStyle = colours.grid;
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const y of ticksOf(0, high, 4)) {
      c.beginPath();
      c.moveTo(left, Math.round(py(y)) + 0.5);
      c.lineTo(right, Math.round(py(y)) + 0.5);
      c.stroke();
      c.fillText(short(y), left - 5, py(y));
    }
    const step = (right - left) / used.length, width = Math.max(1, step * 0.66);
    c.fillStyle = colours.policy;
    used.forEach((count, i) => c.fillRect(left + i * step + (step - width) / 2, py(count), width, bottom - py(count)));
    c.fillStyle = colours.soft;
    c.globalAlpha = 0.16;
    c.fillRect(left, py(mean + spread), right - left, py(mean - spread) - py(mean + spread));
    c.globalAlpha = 1;
    c.strokeStyle = colours.ink;
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(left, py(mean));
    c.lineTo(right, py(mean));
    c.stroke();
    c.setLineDash([]);
    c.textAlign = "center";
    c.textBaseline = "top";
    const longest = Math.max(...used.map((_, i) => c.measureText(run.labelName(i)).width));
    const every = Math.ceil((Math.min(longest, 60) + 4) / step);
    for (let i = 0; i < used.length; i += every) {
      const name = run.labelName(i);
      c.fillText(name.length > 10 ? name.slice(0, 9) + "…" : name, left + (i + 0.5) * step, bottom + 5);
    }
  }
}
