"use strict";
/* Shows the values under the pointer, or under the arrow keys, of each chart. The page is complete without it. */
for (const chart of document.querySelectorAll(".chart")) {
  const data = JSON.parse(chart.querySelector("script").textContent);
  const tip = chart.querySelector(".tip");
  for (const svg of chart.querySelectorAll("svg")) {
    const cross = svg.querySelector(".cross");
    const { x0, x1, left, right } = Object.fromEntries(Object.entries(svg.dataset).map(([k, v]) => [k, Number(v)]));
    let at = data.x.length - 1;
    const show = (index) => {
      at = Math.max(0, Math.min(data.x.length - 1, index));
      const px = left + ((data.x[at] - x0) / (x1 - x0)) * (right - left);
      const rows = data.series.filter((s) => s.text[at] !== null).map((s) => `${s.name}  ${s.text[at]}`);
      tip.textContent = [`${data.name} ${data.x[at]}`, ...rows].join("\n");
      tip.hidden = false;
      cross.setAttribute("x1", px);
      cross.setAttribute("x2", px);
      cross.setAttribute("visibility", "visible");
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const room = chart.clientWidth - tip.offsetWidth - 4;
      const beside = px * scale + 12;
      tip.style.left = `${Math.max(4, beside > room ? px * scale - tip.offsetWidth - 12 : beside)}px`;
    };
    const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const x = x0 + ((px - left) / (right - left)) * (x1 - x0);
      let low = 0, high = data.x.length - 1;
      while (high - low > 1) { const mid = (low + high) >> 1; if (data.x[mid] < x) low = mid; else high = mid; }
      show(x - data.x[low] < data.x[high] - x ? low : high);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") hide();
      else if (move) { event.preventDefault(); show(at + move); }
    });
  }
}
