"use strict";
function attach(root) {
  for (const svg of root.querySelectorAll("svg.chart")) follow(svg);
}
function follow(svg) {
  const data = JSON.parse(svg.dataset.lines), cross = svg.querySelector(".cross"), figure = svg.closest("figure");
  const tip = figure.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
  const hide = () => { cross.style.visibility = tip.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const at = (event.clientX - box.left) * scale;
    let best = 0;
    data.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(data.x[best] - at)) best = k; });
    cross.setAttribute("x1", data.x[best]); cross.setAttribute("x2", data.x[best]);
    tip.replaceChildren(...["at " + data.steps[best], ...data.lines.map(l => l.name + "  " + l.text[best])]
      .map(text => Object.assign(document.createElement("div"), { textContent: text })));
    const outer = figure.getBoundingClientRect(), left = box.left - outer.left + data.x[best] / scale;
    tip.style.left = (left + tip.offsetWidth + 24 > outer.width ? left - tip.offsetWidth - 12 : left + 12) + "px";
    tip.style.top = event.clientY - outer.top - 12 + "px";
    cross.style.visibility = tip.style.visibility = "visible";
  });
}
attach(document);
