"use strict";

// Draws the figures from the data in the page, and keeps them in step with the buttons and with light and dark.
// Colours are read from the style sheet: those of a series from its button, the others from the box of the figure.
(() => {
  const root = document.documentElement;
  const darkWanted = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)"); // there, a drag scrolls the page
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const charts = new Map(); // drawn so far, by the box they are in
  const PRINTED = 640; // pixels across a sheet of paper
  const [LEFT, BELOW, UPRIGHT] = [60, 30, 125]; // pixels for the labels of axes; Plotly's own guess costs many redraws
  const [LETTER, LINE, SHORTEST] = [7.5, 17, 8]; // pixels across a letter and down a line; letters in the shortest line
  const WHISKER = { thickness: 1.5, width: 4 };

  // Plotly takes some tags and entities in texts for markup: here they are text.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // A text in lines of at most so many letters, where it has spaces; not more lines than said.
  function lines(text, width, most) {
    const found = [""];
    for (const word of text.split(" ")) {
      const last = found[found.length - 1];
      if (last && last.length + 1 + word.length > width) found.push(word);
      else found[found.length - 1] = last ? `${last} ${word}` : word;
    }
    const cut = found.slice(0, most).map((line) => (line.length > width ? `${line.slice(0, width - 1)}…` : line));
    if (found.length > most) cut[most - 1] += " …";
    return cut.map(plain).join("<br>");
  }

  function shown(value) {
    if (typeof value === "string") return lines(value, 40, 4);
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
      const [digits, power] = value.toExponential(3).split("e");
      return `${Number(digits)} × 10<sup>${Number(power)}</sup>`;
    }
    return value.toLocaleString("en-GB", { maximumSignificantDigits: 5 });
  }

  // What a pointer over a point says.
  function hover(series, place) {
    const range = series.low && series.high ? ` (${shown(series.low[place])} to ${shown(series.high[place])})` : "";
    return `<b>${lines(series.name, 40, 4)}</b><br>x: ${shown(series.x[place])}<br>y: ${shown(series.y[place])}${range}`;
  }

  function whiskers(series, colour) {
    if (!series.low || !series.high) return undefined;
    const above = series.y.map((y, place) => Math.max(series.high[place] - y, 0));
    const below = series.y.map((y, place) => Math.max(y - series.low[place], 0));
    return { type: "data", symmetric: false, array: above, arrayminus: below, color: colour, ...WHISKER };
  }

  class Chart {
    constructor(box) {
      this.box = box;
      this.spec = specs[box.dataset.figure];
      const figure = box.closest("figure");
      this.keys = [...figure.querySelectorAll("[data-series]")];
      this.logs = [...figure.querySelectorAll("[data-log]")];
      this.remark = figure.querySelector(".remark");
      this.reset();
      box.replaceChildren();
      this.draw();
      // The box says what the figure shows; a screen reader has no use for the drawing, nor for Plotly's scratch pad.
      for (const drawing of [...box.children, document.getElementById("js-plotly-tester")]) drawing?.setAttribute("aria-hidden", "true");
      new ResizeObserver(() => this.box.clientWidth !== this.box.layout.width && this.draw()).observe(box);
      box.on("plotly_relayout", () => this.change(() => this.remember()));
      for (const key of this.keys) key.onclick = () => this.change(() => this.toggle(Number(key.dataset.series)));
      for (const button of this.logs) button.onclick = () => this.change(() => this.rescale(button.dataset.log));
      for (const button of figure.querySelectorAll("[data-zoom]"))
        button.onclick = () => this.change(() => this.zoom(button.dataset.zoom === "in" ? 0.5 : 2));
      figure.querySelector("[data-reset]").onclick = () => this.change(() => this.reset());
    }

    change(edit) {
      edit();
      this.draw();
    }

    reset() {
      this.log = { ...this.spec.log };
      this.range = { x: null, y: null };
      this.visible = this.spec.series.map(() => true);
    }

    toggle(place) {
      this.visible[place] = !this.visible[place];
    }

    rescale(axis) {
      this.log[axis] = !this.log[axis];
      this.range[axis] = null;
    }

    zoom(factor) {
      for (const axis of ["x", "y"]) {
        const [low, high] = this.box.layout[`${axis}axis`].range;
        const middle = (low + high) / 2;
        this.range[axis] = [middle + (low - middle) * factor, middle + (high - middle) * factor];
      }
    }

    // A drag or a double click has changed the ranges.
    remember() {
      for (const axis of ["x", "y"]) {
        const { autorange, range } = this.box.layout[`${axis}axis`];
        this.range[axis] = autorange ? null : [...range];
      }
    }

    draw() {
      this.keys.forEach((key, place) => key.setAttribute("aria-pressed", this.visible[place]));
      for (const button of this.logs) button.setAttribute("aria-pressed", this.log[button.dataset.log]);
      this.remark.textContent = this.unseen();
      const config = { displayModeBar: false, showTips: false, typesetMath: false };
      Plotly.react(this.box, this.spec.series.map((series, place) => this.trace(series, place)), this.layout(), config);
      this.box.dataset.drawn = "";
    }

    trace(series, place) {
      const colour = getComputedStyle(this.keys[place].querySelector("svg")).color;
      const common = {
        x: series.x,
        y: series.y,
        name: plain(series.name),
        visible: this.visible[place],
        hoverinfo: "text",
        hovertext: series.x.map((_, point) => hover(series, point)),
        error_y: whiskers(series, series.look === "bars" ? getComputedStyle(this.box).color : colour),
      };
      if (series.look === "bars") return { ...common, type: "bar", marker: { color: colour } };
      return {
        ...common,
        type: "scatter",
        mode: series.look === "points" ? "lines+markers" : "lines",
        line: { color: colour, width: series.look === "points" ? 1.3 : 2, dash: series.look === "dashed" ? "dash" : "solid" },
        marker: { color: colour, size: 8, symbol: series.symbol },
      };
    }

    layout() {
      const style = getComputedStyle(this.box);
      const printing = root.hasAttribute("data-printing");
      const across = this.spec.named ? { ...this.axis("x", style), ...this.names() } : this.axis("x", style);
      return {
        width: printing ? PRINTED : this.box.clientWidth,
        height: this.box.clientHeight,
        margin: { l: LEFT, r: 12, t: 10, b: this.below(across) },
        showlegend: false,
        barmode: "group",
        bargap: 0.2,
        hovermode: "closest",
        dragmode: touched.matches ? false : "zoom",
        font: { family: style.fontFamily, size: 13, color: style.color },
        hoverlabel: { bgcolor: style.backgroundColor, font: { color: style.color }, align: "left" },
        paper_bgcolor: style.backgroundColor,
        plot_bgcolor: style.backgroundColor,
        xaxis: across,
        yaxis: this.axis("y", style),
      };
    }

    // The ends of an axis, in powers of ten where it is logarithmic.
    ends(name) {
      if (this.range[name]) return this.range[name];
      const whisker = (series) => (name === "y" ? [...(series.low ?? []), ...(series.high ?? [])] : []);
      const values = this.spec.series.flatMap((series) => [...series[name], ...whisker(series)]);
      const known = this.log[name] ? values.filter((value) => value > 0).map(Math.log10) : values;
      const [least, most] = [(a, b) => Math.min(a, b), (a, b) => Math.max(a, b)]; // a spread has room for some 100,000 only
      return [known.reduce(least, Infinity), known.reduce(most, -Infinity)];
    }

    // Ticks of a logarithmic axis: powers of ten over many decades, else 1, 2, 5, 10, ..., in full.
    ticks(name) {
      const [low, high] = this.ends(name);
      const decades = high - low;
      if (!this.log[name] || !Number.isFinite(decades)) return { nticks: 8, exponentformat: "power" };
      if (decades > 3.2) return { dtick: Math.ceil(decades / 8), exponentformat: "power", tickfont: { size: 11 } }; // drawn larger
      return { ...(decades > 0.8 ? { dtick: "D2" } : { nticks: 7 }), tickformat: low < -3.5 || high > 6.5 ? "~e" : ",~g" };
    }

    axis(name, style) {
      return {
        ...this.ticks(name),
        type: this.log[name] ? "log" : "linear",
        autorange: this.range[name] === null,
        range: this.range[name] ?? undefined,
        gridcolor: style.borderTopColor,
        linecolor: style.color,
        showline: true,
        ticks: "outside",
        tickcolor: style.color,
        zeroline: name === "y" && this.spec.named && !this.log.y, // where bars begin
        zerolinecolor: style.color,
      };
    }

    // Names below an axis: in lines side by side, or upright where there is no room.
    names() {
      const found = [...new Set(this.spec.series.flatMap((series) => series.x))];
      const room = (this.box.clientWidth - LEFT) / Math.max(found.length, 1);
      const letters = Math.floor(room / LETTER);
      const across = letters >= SHORTEST;
      const ticktext = found.map((name) => (across ? lines(name, letters, 3) : lines(name, 15, room < 2 * LINE ? 1 : 2)));
      return { type: "category", categoryarray: found, tickvals: found, ticktext, tickangle: across ? 0 : -90, showgrid: false };
    }

    below(axis) {
      if (!this.spec.named) return BELOW;
      const most = Math.max(1, ...axis.ticktext.map((text) => text.split("<br>").length));
      return axis.tickangle === 0 ? BELOW + (most - 1) * LINE : UPRIGHT;
    }

    // What a logarithmic axis cannot show, in words.
    unseen() {
      let missing = 0;
      this.spec.series.forEach((series, place) => {
        const lost = (point) => (this.log.y && series.y[point] <= 0) || (this.log.x && !this.spec.named && series.x[point] <= 0);
        if (this.visible[place]) missing += series.x.filter((_, point) => lost(point)).length;
      });
      if (missing === 0) return "";
      return `${missing === 1 ? "One point is" : `${missing} points are`} not shown: a logarithmic axis has positive numbers only.`;
    }
  }

  function dark() {
    return root.style.colorScheme ? root.style.colorScheme === "dark" : darkWanted.matches;
  }

  function recolour() {
    document.getElementById("theme").setAttribute("aria-pressed", dark());
    for (const chart of charts.values()) chart.draw();
  }

  function drawOnce(box) {
    if (!charts.has(box)) charts.set(box, new Chart(box));
  }

  // What base64 of gzip stands for.
  function unpacked(text) {
    const letters = atob(text);
    const packed = new Uint8Array(letters.length);
    for (let place = 0; place < letters.length; place++) packed[place] = letters.charCodeAt(place); // quickest by far
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
  }

  // Plotly is in the page, compressed. As a script element it is subject to the page's policy like any other.
  async function load() {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("library").textContent).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the library did not start");
  }

  // Rows are in the page as compressed files: here they are unpacked on the way.
  function prepareDownloads() {
    if (!("DecompressionStream" in window)) return;
    for (const link of document.querySelectorAll("[data-unpacked]"))
      link.onclick = async (event) => {
        event.preventDefault();
        const file = document.createElement("a");
        file.href = URL.createObjectURL(await unpacked(link.href.slice(link.href.indexOf(",") + 1)).blob());
        file.download = link.dataset.unpacked;
        file.click();
        setTimeout(() => URL.revokeObjectURL(file.href), 60_000); // by then it is saved
      };
  }

  // Those in sight first, the others when there is time for them.
  function drawAll(boxes) {
    const sight = new IntersectionObserver(
      (entries) => {
        for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
          sight.unobserve(target);
          drawOnce(target);
        }
      },
      { rootMargin: "50%" },
    );
    for (const box of boxes) sight.observe(box);
    const later = window.requestIdleCallback ? (task) => requestIdleCallback(task, { timeout: 500 }) : (task) => setTimeout(task, 50);
    const rest = [...boxes];
    const next = () => {
      const box = rest.shift();
      if (rest.length) later(next); // first: what goes wrong with one figure is no matter of the others
      drawOnce(box);
    };
    later(next);
  }

  function prepareTheme() {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.onclick = () => {
      root.style.colorScheme = dark() ? "light" : "dark";
      recolour();
    };
    darkWanted.addEventListener("change", () => {
      root.style.colorScheme = "";
      recolour();
    });
    recolour();
  }

  function preparePrinting(boxes) {
    let chosen = "";
    addEventListener("beforeprint", () => {
      chosen = root.style.colorScheme;
      root.style.colorScheme = "light";
      root.dataset.printing = "";
      boxes.forEach(drawOnce);
      recolour();
    });
    addEventListener("afterprint", () => {
      root.style.colorScheme = chosen;
      delete root.dataset.printing;
      recolour();
    });
  }

  async function start() {
    prepareTheme();
    prepareDownloads();
    const boxes = [...document.querySelectorAll("[data-figure]")];
    if (boxes.length === 0) return;
    try {
      await load();
    } catch {
      for (const box of boxes) box.querySelector(".waiting").textContent = "This browser cannot draw the figure: see its data below.";
      for (const button of document.querySelectorAll(".chart button")) button.disabled = true;
      return;
    }
    preparePrinting(boxes);
    drawAll(boxes);
  }

  start();
})();
