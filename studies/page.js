"use strict";

// Draws the figures when they come into sight, and keeps them in step with their buttons and with light and dark.
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const templates = JSON.parse(document.getElementById("templates").textContent);
  const boxes = [...document.querySelectorAll(".plot")];
  const darkWanted = matchMedia("(prefers-color-scheme: dark)");
  const mode = () => root.style.colorScheme || (darkWanted.matches ? "dark" : "light");
  const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // on a phone, a drag scrolls the page
  const config = { displaylogo: false, showTips: false, typesetMath: false, toImageButtonOptions: { format: "svg" } };

  const drawn = () => boxes.filter((box) => "drawn" in box.dataset);
  const printing = () => "printing" in root.dataset;
  const size = (box) => ({ width: printing() ? 640 : box.clientWidth, height: box.clientHeight }); // 640: a sheet of paper

  function draw(box) {
    const { data, layout } = JSON.parse(document.getElementById(`${box.id}-data`).textContent);
    box.querySelector(".waiting")?.remove();
    Plotly.react(box, data, { ...layout, ...size(box), dragmode, template: templates[mode()] }, config);
    // The box says what the figure shows; a screen reader has no use for the drawing, nor for Plotly's scratch pad.
    for (const part of [...box.children, document.getElementById("js-plotly-tester")]) part?.setAttribute("aria-hidden", "true");
    for (const button of box.closest("figure").querySelectorAll("[data-initial]"))
      button.setAttribute("aria-pressed", button.dataset.initial);
    box.dataset.drawn = "";
  }

  function recolour() {
    theme.setAttribute("aria-pressed", mode() === "dark");
    for (const box of drawn()) Plotly.relayout(box, { ...size(box), template: templates[mode()] });
  }

  function zoomed(box, factor) {
    const ends = {};
    for (const name of ["xaxis", "yaxis"]) {
      const [low, high] = box._fullLayout[name].range;
      const middle = (low + high) / 2;
      ends[`${name}.range`] = [middle + (low - middle) * factor, middle + (high - middle) * factor];
    }
    return ends;
  }

  function press(button) {
    const box = button.closest("figure").querySelector(".plot");
    const { series, log, zoom } = button.dataset;
    if (!("drawn" in box.dataset) || "reset" in button.dataset) draw(box);
    if (zoom) Plotly.relayout(box, zoomed(box, Number(zoom)));
    if (!series && !log) return;
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", pressed);
    if (series) Plotly.restyle(box, { visible: pressed }, [Number(series)]);
    else Plotly.relayout(box, { [`${log}axis.type`]: pressed ? "log" : "linear", [`${log}axis.autorange`]: true });
  }

  for (const button of document.querySelectorAll("figure button")) button.onclick = () => press(button);
  theme.hidden = false;
  theme.onclick = () => {
    root.style.colorScheme = mode() === "dark" ? "light" : "dark";
    recolour();
  };
  darkWanted.addEventListener("change", () => {
    root.style.colorScheme = "";
    recolour();
  });
  let chosen = "";
  addEventListener("beforeprint", () => {
    chosen = root.style.colorScheme;
    root.style.colorScheme = "light";
    root.dataset.printing = "";
    for (const box of boxes.filter((each) => !("drawn" in each.dataset))) draw(box);
    recolour();
  });
  addEventListener("afterprint", () => {
    root.style.colorScheme = chosen;
    delete root.dataset.printing;
    recolour();
  });
  theme.setAttribute("aria-pressed", mode() === "dark");
  const sight = new IntersectionObserver(
    (entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        sight.unobserve(target);
        if (!("drawn" in target.dataset)) draw(target);
      }
    },
    { rootMargin: "100%" },
  );
  const resized = new ResizeObserver(() => {
    for (const box of drawn()) if (box.clientWidth !== box._fullLayout.width) Plotly.relayout(box, size(box));
  });
  for (const box of boxes) {
    sight.observe(box);
    resized.observe(box);
  }
})();
