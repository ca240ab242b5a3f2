"use strict";
// Draws the figures when they come near the screen, and pages through the rounds. All text from the run
// files enters the page as textContent, or through plotly.js as escaped text.
(async () => {
  const PAGE = 50;
  const all = (selector) => [...document.querySelectorAll(selector)];

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function say(trouble) {
    const notice = document.getElementById("trouble");
    notice.textContent = trouble;
    notice.hidden = false;
    for (const plot of all(".plot")) plot.style.height = "auto";
  }

  // ---- rounds -------------------------------------------------------------------------------------------
  const digits = (value, places) =>
    value === null ? "" : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });

  function rowOf(rounds, i) {
    const row = document.createElement("tr");
    const cell = (text, kind = "td", name = "") => {
      const made = document.createElement(kind);
      made.textContent = text;
      if (name) made.className = name;
      if (kind === "th") made.scope = "row";
      row.append(made);
    };
    cell(digits(rounds.round[i], 0), "th");
    cell(digits(rounds.at[i], 2));
    cell(rounds.node[i] === null ? "waits" : rounds.node[i]);
    cell(digits(rounds.samples[i], 0));
    cell(digits(rounds.compute[i], 3));
    cell(digits(rounds.transfer[i], 3));
    cell(digits(rounds.idle[i], 3));
    if (rounds.overhead) cell(digits(rounds.overhead[i], 3));
    cell(digits(rounds.variance[i], 0));
    cell(rounds.tested[i]);
    cell(rounds.reason[i], "td", "text");
    return row;
  }

  function listRounds(rounds) {
    const section = document.getElementById("rounds");
    const body = section.querySelector("tbody"), shown = section.querySelector("[data-shown]");
    const count = rounds.round.length, last = Math.floor((count - 1) / PAGE);
    let page = 0;
    function show(wanted) {
      page = Math.max(0, Math.min(last, wanted));
      const begin = page * PAGE, end = Math.min(count, begin + PAGE);
      body.replaceChildren(...Array.from({ length: end - begin }, (_, i) => rowOf(rounds, begin + i)));
      shown.textContent = `${digits(rounds.round[begin], 0)} to ${digits(rounds.round[end - 1], 0)} of ${digits(count, 0)}`;
      for (const button of section.querySelectorAll("button"))
        button.disabled = ["first", "back"].includes(button.dataset.go) ? page === 0 : page === last;
    }
    const places = { first: () => 0, back: () => page - 1, on: () => page + 1, last: () => last };
    section.addEventListener("click", (event) => {
      const go = event.target.dataset.go;
      if (go) show(places[go]());
    });
    const input = section.querySelector("input");
    input.max = rounds.round[count - 1];
    input.addEventListener("change", () => {
      const at = rounds.round.findIndex((round) => round >= Number(input.value));
      show(Math.floor((at < 0 ? count - 1 : at) / PAGE));
    });
    section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    show(0);
    section.hidden = false;
  }

  // ---- figures ------------------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");

  function themed(layout) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const colours = { gridcolor: of("--grid"), zerolinecolor: of("--line"), linecolor: of("--line") };
    const copy = {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: of("--ink") },
      hoverlabel: { bgcolor: of("--panel"), bordercolor: of("--line"), font: { color: of("--ink") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: of("--soft"), activecolor: of("--ink") },
      // A finger on a figure should scroll the page, not zoom the figure.
      dragmode: touch.matches ? false : layout.dragmode || "zoom",
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) copy[key] = { ...colours, ...layout[key] };
    const grey = (thing) => ({ ...thing, line: { ...thing.line, color: of("--soft") } });
    copy.shapes = (layout.shapes || []).map(grey);
    copy.annotations = (layout.annotations || []).map((a) => ({ ...a, font: { ...a.font, color: of("--soft") } }));
    return copy;
  }

  const config = {
    displaylogo: false, responsive: true,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
    // plotly.js offers to upload a chart unless this is set; a report stays where it is.
    showSendToCloud: false, plotlyServerURL: "",
  };
  const chosen = {}, modes = {}; // by scenario: the run looked into, and what is shown behind the means
  const drawn = new Set();

  function draw(place, plots) {
    const plot = plots[place.dataset.plot];
    const scenario = place.dataset.plot.split("-", 1)[0];
    const view = Math.min(chosen[scenario] || 0, plot.views.length - 1);
    if (plot.words.length) place.parentElement.querySelector("figcaption").textContent = plot.words[view];
    const { data, layout } = plot.views[view];
    const mode = modes[scenario] || "mean";
    Plotly.react(place, data.filter((trace) => !trace.meta || trace.meta === mode), themed(layout), config);
    drawn.add(place);
  }

  function drawWhenNear(plots) {
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        draw(entry.target, plots);
      }
    }, { rootMargin: "400px" });
    const places = all(".plot");
    for (const place of places) near.observe(place);
    addEventListener("beforeprint", () => places.forEach((place) => drawn.has(place) || draw(place, plots)));
    dark.addEventListener("change", () => drawn.forEach((place) => draw(place, plots)));
    for (const select of all("select[data-choose]"))
      select.addEventListener("change", () => {
        chosen[select.dataset.choose] = Number(select.value);
        for (const place of select.closest("section").querySelectorAll(".plot")) if (drawn.has(place)) draw(place, plots);
      });
  }

  function chooseModes(plots) {
    for (const group of all("fieldset.modes")) {
      const scenario = group.querySelector("input").dataset.mode;
      modes[scenario] = group.dataset.first;
      group.addEventListener("change", (event) => {
        modes[scenario] = event.target.value;
        for (const place of group.closest("section").querySelectorAll(".plot")) if (drawn.has(place)) draw(place, plots);
      });
    }
  }

  // ---- lists that can be sorted -------------------------------------------------------------------------
  function makeSortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const value = (row, column) => Number(row.cells[column].textContent.replace(/[^0-9.-]/g, ""));
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        // Counts from the largest down, names from the first on; once more turns it round.
        const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && head.getAttribute("aria-sort") !== "ascending");
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * (value(a, column) - value(b, column))));
      });
    });
  }
  all("table.sortable").forEach(makeSortable);

  if (typeof DecompressionStream === "undefined") {
    say("The figures need a browser of 2023 or later; the tables do not.");
    return;
  }
  try {
    const data = JSON.parse(await unpack("data"));
    if (data.rounds) listRounds(data.rounds);
    const library = document.createElement("script");
    library.textContent = await unpack("library");
    document.head.append(library);
    chooseModes(data.plots);
    drawWhenNear(data.plots);
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    say(`The figures could not be drawn: ${error.message}`);
  }
})();
