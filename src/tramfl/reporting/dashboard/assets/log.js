// ---- log.js: the newest decisions, a window of them at a time -------------------------------------------------------
const WINDOW = 40;

// What the round took, the loads of the node that trained, and what was predicted of each, where these differ.
function foreseen(row) {
  const [flops, bandwidth] = row.actual ?? [null, null];
  const parts = [["took", row.duration, row.predicted, seconds], ["compute", flops, row.flops[row.node], flopsText],
    ["link", bandwidth, row.bandwidth[row.node], linkText]];
  return parts.filter(([, actual, predicted]) => actual && predicted && Math.abs(predicted - actual) > 0.005 * actual)
    .map(([what, actual, predicted, text]) => ` · ${what} ${text(actual)}, predicted ${text(predicted)}`).join("");
}

class Log {
  constructor(list, { newer, older, shown, go }) {
    this.list = list;
    this.buttons = { newer, older };
    this.shownText = shown;
    this.pinned = null; // the newest entry shown, where the reader has turned back
    this.top = this.bottom = 0; // the entries shown: bottom <= index < top
    this.run = null;
    newer.addEventListener("click", () => this.turn(WINDOW));
    older.addEventListener("click", () => this.turn(-WINDOW));
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) go(Number(button.dataset.index) + 1);
    });
  }
  turn(by) {
    const wanted = Math.max(Math.min(WINDOW, this.end), this.top + by);
    this.pinned = wanted >= this.end ? null : wanted;
    this.list.scrollTop = 0;
    this.draw(this.run, this.end);
  }
  // The entries before `end`, newest first.
  draw(run, end) {
    if (run !== this.run) { this.pinned = null; this.top = this.bottom = 0; this.list.replaceChildren(); }
    this.run = run;
    this.end = end;
    if (this.pinned !== null && this.pinned >= end) this.pinned = null;
    const top = this.pinned ?? end, bottom = Math.max(0, top - WINDOW);
    const onward = top >= this.top && top - this.top < WINDOW && this.top > 0;
    if (!onward) {
      this.list.replaceChildren();
      this.top = this.bottom = bottom;
    }
    for (let i = this.top; i < top; i++) this.list.prepend(this.entry(run, run.rows[i]));
    while (this.list.childElementCount > top - bottom) this.list.lastElementChild.remove();
    [this.top, this.bottom] = [top, bottom];
    for (const entry of this.list.children) entry.classList.toggle("undone", run.rows[entry.dataset.index].undoneBy < end);
    this.buttons.newer.disabled = this.pinned === null;
    this.buttons.older.disabled = bottom === 0;
    this.shownText.textContent = end ? `${grouped(bottom + 1)}–${grouped(top)} of ${grouped(end)}` : "";
  }
  entry(run, row) {
    const item = document.createElement("li");
    item.dataset.index = row.index;
    for (const { kind, text } of row.events) {
      const event = document.createElement("p");
      event.className = `event ${kind}`;
      event.textContent = text;
      item.append(event);
    }
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.index = row.index;
    button.textContent = grouped(row.round);
    button.setAttribute("aria-label", `Show round ${grouped(row.round)}`);
    const text = document.createElement("p"), times = document.createElement("small");
    text.textContent = `${row.reason} `;
    times.textContent = `${seconds(row.total)}${row.tested === null ? "" : ` · ${run.valueText(row.tested)}`}${foreseen(row)}`;
    text.append(times);
    item.append(button, text);
    return item;
  }
}
