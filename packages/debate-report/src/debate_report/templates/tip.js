// What is under the pointer or a finger, or in focus, in words: values of a chart, the advantage of a token.
"use strict";
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const show = (event) => {
    const at = event.target.closest ? event.target.closest("[data-note]") : null;
    tip.hidden = !at;
    if (!at) return;
    tip.textContent = at.dataset.note;
    const box = at.getBoundingClientRect();
    const inside = (value, most) => `${Math.max(4, Math.min(value, most - 4))}px`;
    tip.style.left = inside(box.right + 6 + tip.offsetWidth > innerWidth ? box.left - tip.offsetWidth - 6 : box.left, innerWidth - tip.offsetWidth);
    const under = box.height < 60 ? box.bottom + 6 : box.top + 8;
    tip.style.top = inside(under, innerHeight - tip.offsetHeight);
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, show);
  addEventListener("scroll", () => (tip.hidden = true), { passive: true, capture: true });
})();
