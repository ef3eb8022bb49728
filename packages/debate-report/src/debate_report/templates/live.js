// The page of a run that goes on: reloads itself, and puts the reader back where they were.
"use strict";
(() => {
  const live = document.getElementById("following");
  const KEY = "debate-report-place";
  const read = () => {
    try {
      return JSON.parse(sessionStorage.getItem(KEY)) || {};
    } catch {
      return {};
    }
  };
  const stored = read();
  const place = (window.reportPlace = { debate: stored.debate });
  const sections = () => [...document.querySelectorAll("main > section[id]")];
  const folds = () => [...document.querySelectorAll("main details")];
  const nameOf = (fold) => `${fold.closest("section[id]").id}/${fold.querySelector("summary").textContent}`;
  history.scrollRestoration = "manual";

  // Sections grow while a run goes on: a place is the section under the top edge, and how far in.
  place.restore = () => {
    for (const fold of folds()) if ((stored.open || []).includes(nameOf(fold))) fold.open = true;
    const section = stored.section && document.getElementById(stored.section);
    if (section) scrollBy(0, section.getBoundingClientRect().top - stored.top);
    else if (stored.y) scrollTo(0, stored.y);
    place.restore = null;
  };
  const keep = () => {
    const above = sections().filter((section) => section.getBoundingClientRect().top <= 0);
    const section = above[above.length - 1];
    const open = folds().filter((fold) => fold.open).map(nameOf);
    const kept = { debate: place.debate, open, y: scrollY };
    if (section) Object.assign(kept, { section: section.id, top: section.getBoundingClientRect().top });
    try {
      sessionStorage.setItem(KEY, JSON.stringify(kept));
    } catch {
      // Without a store the page opens at its top.
    }
  };

  // Who searches, chooses or marks text is not interrupted.
  const isBusy = () =>
    document.hidden ||
    String(getSelection()) !== "" ||
    [...document.querySelectorAll(".filters input, .filters select")].some(
      (input) => input === document.activeElement || (input.type === "checkbox" ? input.checked : input.value),
    );
  const age = () => Math.round(Date.now() / 1000 - live.dataset.written);
  const interval = Number(live.dataset.interval);
  const late = Math.max(120, 6 * interval);
  setInterval(() => {
    const stale = age() > late ? ` Not written for ${Math.round(age() / 60)} min: the run is between two steps, or debate report --follow has ended.` : "";
    live.lastElementChild.textContent = isBusy() ? " Reloads when nothing is searched or marked." : stale;
  }, 1000);
  const reload = () => {
    if (isBusy()) return setTimeout(reload, 1000);
    keep();
    location.reload();
  };
  setTimeout(reload, 1000 * interval);
  if (!document.getElementById("browser")) place.restore();
})();
