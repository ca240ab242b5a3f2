// ---- watch.js: brings data in, and the page up to date ---------------------------------------------------------------
const $ = (id) => document.getElementById(id);
const NOTHING = { run: "", title: "", policy: "", seed: null, status: "preparing", clock: "virtual", sites: [], labels: [], targets: [],
  message: "", variance_limit: null, model_bits: null, holder: null, receiver: null, round: null };
let run = new Run(NOTHING), version = -1, contact = "wait", caughtUp = false, dirty = true, frame = 0, drawnAt = 0;
const player = new Player(), map = new TramMap($("map"));
const still = matchMedia("(prefers-reduced-motion: reduce)");
const charts = Object.fromEntries(["metric", "loss", "rate", "variance"].map((name) => [name, new LineChart($(`c-${name}`))]));
const balance = new BalanceChart($("c-balance"));
const log = new Log($("log"), { newer: $("log-newer"), older: $("log-older"), shown: $("log-shown"), go: (at) => moveTo(at) });
const cost = { frames: 0, spent: 0, whole: null }; // of drawing, in milliseconds, for benchmarks

// ---- from the server ------------------------------------------------------------------------------------------------
const token = new URLSearchParams(location.search).get("token");
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function ask() {
  const query = new URLSearchParams({ run: run.now.run, after: run.length, version });
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(`/changes?${query}`, { headers, cache: "no-store", signal: AbortSignal.timeout(45000) });
  if (response.status === 403) throw new Error("refused");
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

function take(answer) {
  const { now } = answer;
  if (now.run !== run.now.run) {
    run = new Run(now);
    player.reset();
    caughtUp = false;
  }
  const ended = run.now.status === "running" && now.status !== "running";
  run.now = now;
  run.metric = answer.metric;
  version = answer.version;
  document.documentElement.style.setProperty("--policy", answer.colour);
  colours.stale = true;
  if (answer.after === run.length) run.add(answer.rows);
  player.suit(run);
  if (!caughtUp && run.length >= answer.total) {
    // What was there when the page came is not played; a run under way shows its newest round.
    caughtUp = true;
    const live = isRunning();
    player.at = live ? Math.max(0, run.length - 1) : run.length;
    player.following = live;
  }
  if (ended && player.following && player.at >= run.length) player.following = false;
  contact = "held";
  describe();
  redraw();
}

async function listen() {
  for (let failures = 0; ; ) {
    try {
      take(await ask());
      failures = 0;
    } catch (error) {
      contact = error.message === "refused" ? "refused" : "lost";
      failures += 1;
      describe();
      redraw();
      await pause(Math.min(3000, 300 * failures));
    }
  }
}

const isRunning = () => run.now.status === "running" || run.now.status === "preparing";

// ---- what seldom changes --------------------------------------------------------------------------------------------
function describe() {
  const { now } = run;
  const name = now.title || "A run";
  if ($("title").textContent !== name) $("title").textContent = name;
  document.title = `${name} · tramfl watch`;
  const facts = [now.policy && ["policy", now.policy], now.seed !== null && ["", `seed ${now.seed}`], run.sites && ["", `${run.sites} sites`],
    run.length && ["", run.clock === "real" ? "real time" : "simulated"], now.regret && ["", `regret: ${now.regret}`]].filter(Boolean);
  if ($("facts").textContent !== facts.map(([, text]) => text).join("")) $("facts").replaceChildren(...facts.map(([kind, text]) => {
    const item = document.createElement("li");
    item.className = kind;
    item.textContent = text;
    return item;
  }));
  const states = { preparing: ["wait", "Preparing"], running: ["live", "Running"], finished: ["done", "Finished"],
    interrupted: ["odd", "Interrupted"], stopped: ["odd", "Stopped"] };
  const [kind, text] = { held: states[now.status], wait: ["wait", "Connecting"], lost: ["lost", "Lost contact"], refused: ["lost", "Refused"] }[contact];
  $("status").dataset.kind = kind;
  if ($("status").textContent !== text) $("status").textContent = text;
  const trouble = contact === "lost" ? "No contact with tramfl watch. What is shown may be out of date; this page tries again by itself."
    : contact === "refused" ? "tramfl watch refuses this page: open the whole address that it printed."
    : now.message || (now.status === "stopped" && run.length ? "Nobody is at work on this run, and it did not come to its end." : "");
  $("trouble").hidden = !trouble;
  if ($("trouble").textContent !== trouble) $("trouble").textContent = trouble;
  for (const place of document.querySelectorAll("[data-metric]")) place.textContent = `Test ${run.metric}`;
  $("n-clock-name").textContent = capital(run.seconds);
  $("c-variance").querySelector("h2").textContent = now.variance_limit === null ? "Label variance" : "Label variance against V";
  document.querySelector(".k-holder").hidden = Boolean(run.length && run.rows[0].models);
  $("n-limit").textContent = now.variance_limit === null ? "" : `of V = ${short(now.variance_limit)}`;
  for (const part of document.querySelectorAll("[data-needs]"))
    part.hidden = (part.dataset.needs === "test") !== run.measured;
  $("scrub").max = run.length;
  $("live").hidden = !isRunning();
  listSpeeds();
}

function listSpeeds() {
  const select = $("speed");
  if (!select.options.length) select.append(...SPEEDS.map((speed) => new Option(`${speed} ×`, speed)));
  if (document.activeElement !== select) select.value = player.speed;
}

// ---- what changes with every moment ------------------------------------------------------------------------------------
function sceneNow() {
  const atEnd = player.at >= run.length;
  if (player.following && atEnd && contact === "held" && isRunning() && saysWhatItDoes(run.now)) return sceneFromNow(run);
  if (!run.length) return sceneBefore(run);
  const done = Math.floor(player.at), share = player.at - done;
  const resting = atEnd || (share === 0 && done > 0 && !player.playing && !player.following);
  const scene = sceneFromRows(run, done, share, resting);
  if (atEnd && player.following && isRunning()) {
    scene.what = `Round ${grouped(scene.round + 1)} is being worked out.`;
    scene.more = "";
  }
  return scene;
}

const steps = [...document.querySelectorAll(".steps li")];
let cardKey = "", siteKey = "", saidAt = -1e9, said = "";

function drawCard(scene) {
  $("now-what").textContent !== scene.what && ($("now-what").textContent = scene.what);
  $("now-more").textContent !== scene.more && ($("now-more").textContent = scene.more);
  const bar = $("now-bar"), progress = scene.progress ?? 0;
  const shown = still.matches && progress > 0 && progress < 1 ? 0.5 : progress;
  bar.firstElementChild.style.transform = `scaleX(${shown.toFixed(4)})`;
  if (scene.progress === null) bar.removeAttribute("aria-valuenow");
  else if (bar.getAttribute("aria-valuenow") !== String(Math.round(10 * shown) * 10)) bar.setAttribute("aria-valuenow", Math.round(10 * shown) * 10);
  const key = [scene.phase, scene.row?.index].join();
  if (key === cardKey) return;
  cardKey = key;
  for (const step of steps) step.toggleAttribute("data-on", step.dataset.step === scene.phase);
  const parts = scene.row ? partsOf(scene.row) : [];
  $("now-spent").replaceChildren(...parts.filter(([, time]) => time > 0).map(([kind, time]) => {
    const part = document.createElement("i");
    part.style.flexGrow = time;
    part.style.background = PARTS[kind];
    return part;
  }));
  $("now-spent").setAttribute("aria-label", scene.row ? `Where this round's time goes: ${timesOf(scene.row)}` : "Where this round's time goes");
}

function drawNumbers(scene, done) {
  const row = done ? run.rows[done - 1] : null;
  const set = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
  set("n-round", grouped(scene.round));
  set("n-planned", run.now.rounds_planned ? `of ${grouped(run.now.rounds_planned)} at most` : "");
  set("n-clock", scene.clock > 0 && scene.clock < 0.1 ? seconds(scene.clock) : `${digits(scene.clock)} s`);
  set("n-samples", grouped(row ? row.all : 0));
  set("n-rate", row && row.total > 0 ? grouped(row.all / row.total) : "–");
  set("n-variance", grouped(row ? row.variance : 0));
  $("n-variance").classList.toggle("over", row !== null && run.now.variance_limit !== null && row.variance > run.now.variance_limit * (1 + 1e-9));
  const measured = lastWith("tested", done);
  set("n-metric", measured ? run.valueText(measured.tested) : "–");
}

// The newest of the first `done` rounds in which something was measured.
function lastWith(quantity, done) {
  for (let i = done - 1; i >= Math.max(0, done - 500); i--) if (run.rows[i][quantity] !== null) return run.rows[i];
  return null;
}

function siteRow(i) {
  const row = document.createElement("tr");
  const cell = (kind = "td", name = "") => {
    const made = document.createElement(kind);
    if (name) made.className = name;
    row.append(made);
    return made;
  };
  const gauge = (place) => {
    const outer = document.createElement("span"), inner = document.createElement("i"), text = document.createElement("span");
    outer.className = "gauge";
    outer.append(inner);
    place.append(outer, text);
    return { inner, text };
  };
  const name = cell("th");
  name.scope = "row";
  name.textContent = run.siteName(i);
  name.title = run.siteName(i);
  const parts = { row, doing: cell(), flops: gauge(cell()), link: gauge(cell()) };
  const held = cell("td", "held"), counts = run.now.sites[i]?.held;
  if (counts?.length) {
    const drawing = svg("svg", { viewBox: "0 0 120 20", role: "img", preserveAspectRatio: "none" }), words = svg("title");
    words.textContent = counts.map((count, c) => (count ? `${run.labelName(c)}: ${grouped(count)}` : "")).filter(Boolean).slice(0, 60).join(", ");
    drawing.append(words, svg("path", { d: barsPath(counts, 120, 20) }));
    held.append(drawing);
  } else held.textContent = "unknown";
  parts.trained = cell();
  return parts;
}

let siteRows = [];
function drawSites(scene, done) {
  const key = [run.now.run, run.sites, run.now.sites.map((site) => site.name)].join();
  if (key !== siteKey) {
    siteKey = key;
    siteRows = Array.from({ length: run.sites }, (_, i) => siteRow(i));
    $("sites").replaceChildren(...siteRows.map(({ row }) => row));
    document.querySelector(".sites").classList.toggle("many", run.sites > MANY);
    order = "";
  }
  const trained = done ? run.rows[done - 1].trained : null, all = trained ? sum(trained) : 0;
  const set = (place, text) => { if (place.textContent !== text) place.textContent = text; };
  siteRows.forEach(({ row, doing, flops, link, trained: cell }, i) => {
    const alive = scene.alive[i];
    row.className = !alive ? "dead" : i === scene.to || i === scene.from ? "busy" : "";
    set(doing, alive ? scene.doing[i] || "" : "does not report");
    const load = scene.flops[i], bandwidth = scene.bandwidth[i];
    flops.inner.style.transform = `scaleX(${load ? (load / Math.max(run.mostFlops, load)).toFixed(3) : 0})`;
    set(flops.text, load ? flopsText(load) : "–");
    link.inner.style.transform = `scaleX(${bandwidth ? (bandwidth / Math.max(run.mostBandwidth, bandwidth)).toFixed(3) : 0})`;
    set(link.text, alive && i === scene.holder ? "the holder" : bandwidth ? linkText(bandwidth) : alive && i === scene.linksOf ? "sent the model" : "–");
    const count = trained ? trained[i] : 0;
    set(cell, `${grouped(count)}${all ? ` (${Math.round((100 * count) / all)} %)` : ""}`);
    siteRows[i].values = [i, scene.doing[i] || "", load ?? -1, bandwidth ?? -1, sum(run.now.sites[i]?.held ?? []), count];
  });
  $("link-head").firstChild.textContent = scene.linksOf === null || scene.linksOf === scene.holder ? "Link from holder" : `Link from ${run.siteName(scene.linksOf)}`;
  sortSites();
}

// The order of the sites' table: by their number, or by the column that the reader chose.
let sorted = { column: 0, up: true }, order = "";
function sortSites() {
  const { column, up } = sorted, key = (i) => siteRows[i].values[column];
  const compare = (a, b) => (typeof key(a) === "string" ? key(a).localeCompare(key(b)) : key(a) - key(b)) * (up ? 1 : -1) || a - b;
  const wanted = siteRows.map((_, i) => i).sort(compare);
  if (wanted.join() === order) return;
  order = wanted.join();
  $("sites").append(...wanted.map((i) => siteRows[i].row));
}
document.querySelectorAll(".sites thead th").forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
  sorted = { column, up: sorted.column === column ? !sorted.up : column < 2 };
  for (const other of document.querySelectorAll(".sites thead th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
  sortSites();
}));

function drawCharts(done) {
  if (colours.stale) readColours();
  const limit = run.now.variance_limit, row = done ? run.rows[done - 1] : null, soft = colours.soft;
  if (run.measured) {
    const levels = run.now.targets.map((at) => ({ at, name: run.valueText(at) }));
    const scale = run.isShare ? { from: 0, to: 1, text: (y) => `${Math.round(100 * y)}%` } : { from: run.lines.tested.low < 0 ? null : 0 };
    charts.metric.draw(run, done, { series: [{ name: "tested", colour: colours.policy }], unit: "s", levels, ...scale });
    charts.loss.draw(run, done, { series: [{ name: "validation", colour: soft, width: 1, alpha: 0.6 }, { name: "loss", colour: colours.policy }], from: 0, unit: "round" });
  } else charts.rate.draw(run, done, { series: [{ name: "rate", colour: colours.policy }], from: 0, to: usualRate(), unit: "s" });
  charts.variance.draw(run, done, { series: [{ name: "variance", colour: colours.policy }], from: 0, unit: "round", logWhen: limit ?? 0,
    levels: limit === null ? [] : [{ at: limit, name: "V" }] });
  balance.draw(run, row ? row.used : run.length ? run.rows[0].used.map(() => 0) : run.now.labels.map(() => 0), limit);
}

// The first rounds, with hardly any time gone by, may have a rate beyond all that follow; it need not be seen.
function usualRate() {
  const stretches = run.lines.rate.stretches, later = stretches.slice(Math.floor(stretches.length / 10));
  return 1.3 * Math.max(0, ...later.map((s) => s.high)) || null;
}

// In words, also for those who do not see the figures.
function tellFigures(done) {
  const row = done ? run.rows[done - 1] : null, over = run.clock === "real" ? "seconds" : "virtual seconds";
  const tested = lastWith("tested", done), better = run.isShare ? "" : ` ${run.now.lower_is_better ? "Lower" : "Higher"} is better.`, lossy = lastWith("loss", done);
  const which = !tested?.models ? "" : tested.models.scores.length ? ", the mean over the nodes' models" : ", the model that all agree on";
  charts.metric.tell((tested ? `${run.valueText(tested.tested)}${which}${which && ","} after ${seconds(tested.total)}; over ${over}.` : `Over ${over}.`) + better);
  charts.loss.tell(lossy ? `Test loss ${digits(lossy.loss)}; grey: at the site that trained.` : "Over rounds.");
  charts.rate.tell(`Of the whole run, over ${over}.`);
  charts.variance.tell(row ? `${grouped(row.variance)} at round ${grouped(row.round)}, over rounds.` : "Over rounds.");
  const grey = run.now.variance_limit === null ? "mean" : "mean ± √V";
  balance.tell(row ? `${grouped(Math.min(...row.used))} to ${grouped(Math.max(...row.used))}; grey: ${grey}.` : `Grey: ${grey}.`);
}

// Whether it is time again; if not, there will be a frame when it is.
let waiting = 0;
function everySo(at, last, milliseconds) {
  if (at - last >= milliseconds) return true;
  waiting ||= setTimeout(() => { waiting = 0; redraw(false); }, milliseconds - (at - last));
  return false;
}

function sayNewest(end, at) {
  const key = `${run.now.run} ${end}`;
  if (!end || said === key || !everySo(at, saidAt, 4000)) return;
  [said, saidAt] = [key, at];
  const row = run.rows[end - 1];
  $("said").textContent = `Round ${row.round}. ${row.events.map(({ text }) => text).join(" ")} ${row.reason}`;
}

function drawPlayer(scene, done) {
  const scrub = $("scrub");
  if (scrub.max !== String(run.length)) scrub.max = run.length;
  if (scrub.value !== String(done)) scrub.value = done;
  const place = `${grouped(done)} / ${grouped(run.length)}`;
  if ($("place").textContent !== place) {
    $("place").textContent = place;
    scrub.setAttribute("aria-valuetext", `${grouped(done)} of ${grouped(run.length)} rounds, ${seconds(scene.clock)}`);
  }
  const moving = player.playing || (player.following && isRunning());
  if ($("play").hasAttribute("data-playing") !== moving) {
    $("play").toggleAttribute("data-playing", moving);
    $("play").setAttribute("aria-label", moving ? "Pause" : "Play");
  }
  $("live").setAttribute("aria-pressed", String(player.following && isRunning()));
}

const CHARTS_EVERY = 120; // milliseconds
let chartKey = "", chartsAt = -1e9;
let shown = { rows: 0, at: 0, playing: false, following: false }; // what the page shows: a key or a click moves the player first
function draw(at) {
  frame = 0;
  const begun = performance.now();
  const elapsed = drawnAt ? Math.min(0.25, (at - drawnAt) / 1000) : 0;
  player.tick(run, elapsed, isRunning());
  drawnAt = player.moves(run) ? at : 0;
  const scene = sceneNow(), done = Math.min(run.length, Math.floor(player.at));
  const end = scene.row ? Math.max(done, scene.row.index + 1) : done;
  map.draw(run, scene, still.matches);
  drawCard(scene);
  drawPlayer(scene, done);
  drawNumbers(scene, done);
  drawSites(scene, done);
  log.draw(run, end);
  const key = [run.now.run, run.length, done, version].join();
  // Nobody sees more than a few steps of a chart in a second, and charts are what costs most.
  if (dirty || (key !== chartKey && everySo(at, chartsAt, CHARTS_EVERY))) {
    [chartKey, chartsAt] = [key, at];
    drawCharts(done);
    tellFigures(done);
    map.tell(run, scene);
  }
  sayNewest(end, at);
  dirty = false;
  shown = { rows: run.length, at: player.at, playing: player.playing, following: player.following };
  const spent = performance.now() - begun;
  cost.frames += 1;
  cost.spent += spent;
  if (caughtUp) cost.whole ??= performance.now();
  if (player.moves(run)) redraw(false);
  document.documentElement.dataset.ready = "true";
}

function redraw(everything = true) {
  dirty ||= everything;
  if (!frame) frame = requestAnimationFrame(draw);
}

// ---- from the reader ------------------------------------------------------------------------------------------------
function moveTo(at) {
  player.playing = false;
  player.go(run, at);
  redraw();
}
function toggle() {
  if (player.playing || (player.following && isRunning())) player.pause();
  else player.play(run);
  redraw();
}
const roundsDone = () => Math.min(run.length, Math.floor(player.at));
$("play").addEventListener("click", toggle);
$("back").addEventListener("click", () => moveTo(Math.ceil(player.at) - 1));
$("on").addEventListener("click", () => moveTo(roundsDone() + 1));
$("live").addEventListener("click", () => { player.follow(run); redraw(); });
$("scrub").addEventListener("input", (event) => {
  player.go(run, Number(event.target.value));
  redraw();
});
$("speed").addEventListener("change", (event) => {
  player.speed = Number(event.target.value);
  player.chosen = true;
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button, input, select, a, summary, [tabindex='0']")) return;
  const keys = { " ": toggle, ArrowLeft: () => moveTo(Math.ceil(player.at) - 1), ArrowRight: () => moveTo(roundsDone() + 1) };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
for (const [name, chart] of Object.entries(charts))
  chart.canvas.addEventListener("click", (event) => {
    if (!chart.scale || !run.length) return;
    const { begin, end, left, right } = chart.scale;
    const wanted = begin + ((event.offsetX - left) / (right - left)) * (end - begin), x = QUANTITIES[name][0];
    let [low, high] = [0, run.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x(run.rows[middle]) < wanted) low = middle + 1;
      else high = middle;
    }
    moveTo(low + 1);
  });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours.stale = true; redraw(); });
still.addEventListener("change", () => redraw());
const sized = [map, balance, ...Object.values(charts)];
const resized = new ResizeObserver(() => {
  for (const each of sized) each.measure();
  redraw();
});
for (const place of [$("map"), ...document.querySelectorAll("canvas")]) resized.observe(place);

// For benchmarks and the curious; reading it changes nothing.
window.tramfl = { cost, state: () => ({ ...shown, speed: player.speed, status: run.now.status, contact, run: run.now.run }) };
describe();
listen();
