// ---- scene.js: what is going on at one moment, whatever its source -------------------------------------------
// A scene is all that the map, the card and the table show: { round, phase, progress, holder, from, to, doing[],
// alive[], flops[], bandwidth[], what, more, row }.
const GATHER = 0.12; // of a round on screen: gathering takes no time in a simulation
const LEAST = 0.2; // of a round on screen: what takes any time at all can be seen

// The stretches of a round on screen, in order: lost attempts, sending, then training or waiting.
function stretchesOf(row) {
  const times = [["lost", row.lost], ["sending", row.transfer], ["training", row.compute], ["waiting", row.idle]]
    .filter(([kind, time]) => time > 0 || (kind === "training" && row.node !== null));
  const whole = sum(times.map(([, time]) => time)) || 1;
  const shares = times.map(([, time]) => Math.max(time / whole, LEAST));
  const scale = (1 - GATHER) / (sum(shares) || 1);
  let end = GATHER;
  return [{ kind: "gathering", begin: 0, end: GATHER, time: row.overhead },
    ...times.map(([kind, time], i) => ({ kind, time, begin: end, end: (end += shares[i] * scale) }))];
}

function stretchAt(row, share) {
  const stretches = stretchesOf(row);
  const found = stretches.find(({ end }) => share < end) ?? stretches.at(-1);
  return { ...found, progress: Math.min(1, Math.max(0, (share - found.begin) / (found.end - found.begin || 1))) };
}

// The moment at which `done` rounds and `share` of the next one have been played.
function sceneFromRows(run, done, share, resting) {
  const row = run.rows[resting ? done - 1 : done];
  if (row.models && (row.models.trained.length > 1 || row.models.sent.length > 1)) return sceneOfSeveral(run, row, share, resting);
  const names = (i) => run.siteName(i), first = (i) => run.siteFirst(i);
  const doing = new Array(run.sites).fill("resting");
  const common = { row, round: row.round, holder: row.holder, linksOf: row.holder, alive: row.flops.map((flops) => flops !== null),
    flops: row.flops, bandwidth: row.bandwidth, trained: row.trained, doing };
  if (resting) {
    const at = row.node ?? row.holder;
    const done = row.node === null ? `${first(at)} waited in round ${grouped(row.round)}.`
      : `${first(at)} trained ${samples(row.count)} in round ${grouped(row.round)}.`;
    // The links that are known are those of the holder that decided the round; the model may be elsewhere by now.
    // The next round knows the new holder's links: they are shown where it is in the record already.
    const next = run.rows[row.index + 1], known = next && next.holder === at && next.undoneBy === Infinity ? next : row;
    const linksOf = at === row.holder || known === next ? at : row.holder;
    return { ...common, holder: at, linksOf, flops: known.flops, alive: known.flops.map((flops) => flops !== null),
      bandwidth: known.bandwidth, phase: "done", progress: 1, from: at, to: at, what: done, more: timesOf(row), clock: row.total };
  }
  const { kind, progress, begin, end, time } = stretchAt(row, share);
  const spent = sum(stretchesOf(row).filter((s) => s.end <= begin).map((s) => s.time)) + progress * time;
  const clock = row.total - row.duration + spent;
  const moving = kind === "sending" && row.node !== row.holder;
  const there = kind === "training" ? row.node ?? row.holder : row.holder;
  const scene = { ...common, phase: kind, progress, clock, from: moving ? row.holder : there, to: moving ? row.node : there };
  if (kind === "gathering") {
    doing.fill("reporting");
    doing[row.holder] = "gathering";
    scene.what = `${first(row.holder)} asks every site what it can spare.`;
    scene.more = `Round ${grouped(row.round)}`;
  } else if (kind === "sending") {
    doing[row.holder] = "sending";
    doing[row.node] = "receiving";
    scene.what = `${first(row.holder)} sends the model to ${names(row.node)}.`;
    const link = row.bandwidth[row.node];
    const size = run.now.model_bits ? `${scaled(run.now.model_bits, "bit")} ` : "";
    scene.more = `${size}${link ? `at ${linkText(link)}, ` : ""}${seconds(row.transfer)}`;
  } else if (kind === "training") {
    doing[there] = "training";
    scene.what = `${first(there)} trains ${samples(row.count)}.`;
    scene.more = `${row.flops[there] ? `at ${flopsText(row.flops[there])}, ` : ""}${seconds(row.compute)}`;
  } else if (kind === "waiting") {
    doing[row.holder] = "waiting";
    scene.what = `${first(row.holder)} waits for better times.`;
    scene.more = seconds(row.idle);
  } else {
    doing[row.holder] = "trying again";
    scene.what = "An attempt fails and its time is lost.";
    scene.more = seconds(row.lost);
  }
  return scene;
}

// Every node has a model of its own: each trains, then models, or what they say, cross the links side by side.
function sceneOfSeveral(run, row, share, resting) {
  const { trained, sent, scores, worst, consensus, transfers } = row.models;
  const cut = Math.min(0.75, Math.max(0.25, row.compute / (row.compute + row.transfer || 1)));
  const phase = resting ? "done" : row.node === null ? "waiting" : share < cut || !row.transfer ? "training" : "sending";
  const progress = resting ? 1 : phase === "training" ? Math.min(1, share / cut) : (share - cut) / (1 - cut);
  const spent = phase === "training" ? progress * row.compute : phase === "sending" ? row.compute + progress * row.transfer : share * row.duration;
  const doing = new Array(run.sites).fill("has a model");
  if (phase === "training") for (const [node] of trained) doing[node] = "training";
  if (phase === "sending") for (const [from] of sent) if (from < run.sites) doing[from] = "exchanging";
  const count = new Set(trained.map(([node]) => node)).size; // a node that waits for nobody may train more than once
  const nodes = count === 1 ? "One node trains" : `${count} nodes train`;
  const what = { done: `${count} ${count === 1 ? "node" : "nodes"} trained ${samples(row.count)} in round ${grouped(row.round)}.`,
    training: `${nodes}, each its own model.`, sending: transfers === 1 ? "One transfer crosses a link." : `${grouped(transfers)} transfers cross the links.`, waiting: "No node that is needed reports." }[phase];
  const found = [worst === null ? null : `worst node ${run.valueText(worst)}`, consensus === null ? null : `consensus ${run.valueText(consensus)}`].filter(Boolean);
  const moving = phase === "sending" ? sent.slice(0, MOST_TRAMS).map(([from, to]) => ({ from, to })) : [];
  return { row, round: row.round, holder: null, linksOf: null, from: null, to: null, alive: row.flops.map((flops) => flops !== null),
    flops: row.flops, bandwidth: row.flops.map(() => null), trained: row.trained, doing, phase, progress, what,
    more: resting ? [timesOf(row), ...found].join(" · ") : `Round ${grouped(row.round)}`,
    clock: resting ? row.total : row.total - row.duration + spent, scores,
    trams: moving.length ? moving : row.flops.map((_, node) => ({ from: node, to: node })) };
}
const MOST_TRAMS = 60; // moving at once: the eye cannot follow more

const partsOf = (row) => [["sending", row.transfer], ["training", row.compute], ["waiting", row.idle], ["lost", row.lost],
  ["overhead", row.overhead]];

function timesOf(row) {
  return partsOf(row).filter(([, time]) => time > 0).map(([name, time]) => `${seconds(time)} ${name}`).join(" · ");
}

// Before the first round: the sites are known, and nothing else.
function sceneBefore(run) {
  const nobody = new Array(run.sites).fill(null);
  const what = { preparing: "The run is being prepared.", running: "Waiting for the first round." }[run.now.status];
  return { row: null, round: 0, phase: "none", progress: 0, holder: null, linksOf: null, from: null, to: null, alive: nobody.map(() => true),
    flops: nobody, bandwidth: nobody, doing: nobody.map(() => ""), what: what ?? "There is no round in this run.", more: "",
    clock: 0, trained: nobody.map(() => 0) };
}

const PHASES = { gathering: "gathering", deciding: "gathering", sending: "sending", training: "training",
  storing: "training", waiting: "waiting" };

// A source that says what its sites are doing is believed.
function sceneFromNow(run) {
  const { now } = run, last = run.rows.at(-1);
  const holder = now.holder ?? (last ? last.node ?? last.holder : null);
  const site = now.sites[holder];
  const phase = (site && site.alive && PHASES[site.doing]) || "none";
  const names = (i) => run.siteName(i), first = (i) => run.siteFirst(i);
  const to = phase === "sending" && now.receiver !== null ? now.receiver : holder;
  const usual = {
    gathering: `${first(holder)} asks every site what it can spare.`,
    sending: `${first(holder)} sends the model to ${to === holder ? "another site" : names(to)}.`,
    training: `${first(holder)} trains.`,
    waiting: `${first(holder)} waits for better times.`,
  };
  const special = { deciding: `${first(holder)} decides who trains next.`, storing: `${first(holder)} stores what it has trained.` };
  return {
    row: null, round: now.round ?? (last ? last.round : 0), phase, progress: site?.progress ?? null, holder, linksOf: holder, from: holder, to,
    alive: now.sites.map((s) => s.alive),
    flops: now.sites.map((s, i) => (s.alive ? s.flops ?? last?.flops[i] ?? null : null)),
    bandwidth: now.sites.map((s, i) => (i === holder || !s.alive ? null : s.bandwidth ?? null)),
    doing: now.sites.map((s) => (s.doing === "unknown" ? "" : s.doing)),
    trained: last ? last.trained : now.sites.map(() => 0),
    what: special[site?.doing] ?? usual[phase] ?? (holder === null ? "Nobody holds the model." : !site?.alive ? `${first(holder)} holds the model and does not answer.` : `${first(holder)} holds the model.`),
    more: now.round === null ? "" : `Round ${grouped(now.round)}`, clock: last ? last.total : 0,
  };
}
const saysWhatItDoes = (now) => now.sites.some((site) => site.doing !== "unknown" || !site.alive);
