// The transcript browser of a report. Texts of models reach the page as text nodes alone.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const root = byId("browser");
  if (!root) return;
  const index = JSON.parse(byId("debate-index").textContent);
  const entries = index.debates.map((found, number) => {
    const [phase, step, id, question, marks, right, answers] = found;
    return { number, phase, step, id, question, marks: new Set(marks), right, answers };
  });
  const [noun, nouns] = index.nouns;
  const isSingle = noun === "reply";
  const PAGE = 40;
  const SIGNS = { right: "✓", wrong: "✗", unverifiable: "?" };
  // A page that reloads itself opens the debate that the reader chose, not always the newest.
  const reader = window.reportPlace || {};
  const nameOf = (entry) => `${index.phases[entry.phase]}/${entry.step}/${entry.id}`;
  const chosen = entries.findIndex((entry) => nameOf(entry) === reader.debate);
  const state = { shown: entries, open: chosen < 0 ? index.open : chosen, first: 0, search: 0 };

  // Texts: nothing may reorder its surroundings or hide.
  const BIDI = /[\u202a-\u202e\u2066-\u2069]/g;
  const FORBIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\ufdd0-\ufdef\ufffe\uffff]|\p{Surrogate}/gu;
  const clean = (text) =>
    String(text)
      .replace(/\r\n/g, "\n")
      .replace(BIDI, (c) => `[U+${c.charCodeAt(0).toString(16).toUpperCase()}]`)
      .replace(FORBIDDEN, "\ufffd");
  const el = (tag, kind, ...children) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    for (const child of children) {
      if (child === null || child === undefined || child === "") continue;
      made.append(child instanceof Node ? child : clean(child));
    }
    return made;
  };
  const number = (value) => {
    const text = Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    return (value > 0 ? "+" : "") + text.replace("-", "−");
  };

  // Blocks of debates are unpacked when one of theirs is wanted.
  const kept = new Map();
  // Most of them stand after this script, so that the first debate need not wait for them.
  const whole = new Promise((done) => {
    if (document.readyState !== "loading") return done();
    document.addEventListener("DOMContentLoaded", done, { once: true });
  });
  const bytesOf = (text) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const packed = atob(text);
    const bytes = new Uint8Array(packed.length);
    for (let k = 0; k < packed.length; k++) bytes[k] = packed.charCodeAt(k);
    return bytes;
  };
  const unpacked = async (key) => {
    if (!byId(key)) await whole;
    const bytes = bytesOf(byId(key).textContent);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  };
  const unpack = (kind, block) => {
    const key = `${kind}-${block}`;
    if (!kept.has(key)) kept.set(key, unpacked(key));
    return kept.get(key);
  };
  const place = (entry) => [Math.floor(entry.number / index.block), entry.number % index.block];
  const debateOf = async (entry) => {
    const [block, within] = place(entry);
    return (await unpack("texts", block))[within];
  };

  // The list and its filters.
  const asked = (name) => {
    const input = root.querySelector(`[name=${name}]`);
    if (!input) return "";
    return input.type === "checkbox" ? input.checked : input.value;
  };
  const passes = (entry) => {
    const [phase, outcome, source] = ["phase", "outcome", "source"].map(asked);
    if (phase !== "" && entry.phase !== Number(phase)) return false;
    if (outcome === "unknown" && (entry.marks.has("right") || entry.marks.has("wrong"))) return false;
    if (["right", "wrong"].includes(outcome) && !entry.marks.has(outcome)) return false;
    if (source !== "" && entry.marks.has("shown") !== (source === "shown")) return false;
    return ["spoiled", "mended", "errors", "tokens"].every((m) => !asked(m) || entry.marks.has(m));
  };
  const holds = (debate, wanted) =>
    [debate.question, debate.answer, debate.passage, ...debate.turns.map((turn) => turn.text)].some(
      (text) => text && text.toLowerCase().includes(wanted),
    );
  const filter = async () => {
    const mine = ++state.search;
    const wanted = String(asked("search")).trim().toLowerCase();
    let found = entries.filter(passes);
    if (wanted) {
      const kept = [];
      for (const [done, entry] of found.entries()) {
        const listed = `${entry.id} ${entry.question}`.toLowerCase().includes(wanted);
        if (listed || holds(await debateOf(entry), wanted)) kept.push(entry);
        if (mine !== state.search) return;
        if (done % 250) continue;
        byId("found").textContent = `searched ${done} of ${found.length} …`;
        await new Promise((painted) => setTimeout(painted));
      }
      found = kept;
    }
    state.shown = found;
    state.open = 0;
    list();
    await open();
  };
  const list = () => {
    const { shown, open: chosen } = state;
    state.first = Math.floor(chosen / PAGE) * PAGE;
    byId("found").textContent = `${shown.length} of ${entries.length} ${nouns}`;
    const rows = shown.slice(state.first, state.first + PAGE).map((entry, k) => {
      const at = state.first + k;
      const known = entry.marks.has("right") ? "right" : entry.marks.has("wrong") ? "wrong" : "";
      const where = `${index.phases[entry.phase]} ${entry.step}`;
      const button = el(
        "button",
        at === chosen ? "open" : "",
        el("span", `sign ${known}`, SIGNS[known] || "·"),
        el("span", "where", where),
        entry.marks.has("shown") ? el("span", "badge", "demonstration") : null,
        entry.marks.has("spoiled") ? el("span", "badge wrong", "✓→✗") : null,
        entry.marks.has("mended") ? el("span", "badge right", "✗→✓") : null,
        entry.marks.has("errors") ? el("span", "badge", "parse error") : null,
        el("span", "about", entry.question),
      );
      button.type = "button";
      button.addEventListener("click", () => go(at));
      return el("li", "", button);
    });
    byId("debate-list").replaceChildren(...rows);
    byId("earlier").disabled = state.first === 0;
    byId("later").disabled = state.first + PAGE >= shown.length;
    byId("previous").disabled = chosen <= 0;
    byId("next").disabled = chosen >= shown.length - 1;
  };
  const go = async (at) => {
    if (at < 0 || at >= state.shown.length) return;
    state.open = at;
    reader.debate = nameOf(state.shown[at]);
    list();
    await open();
  };

  // One debate.
  const open = async () => {
    const entry = state.shown[state.open];
    const into = byId("debate");
    if (!entry) return into.replaceChildren(el("p", "note", `No ${noun} is like this.`));
    const debate = await debateOf(entry);
    if (state.shown[state.open] !== entry) return;
    const prompts = new Prompts(entry);
    const title = el("h3", "", `${index.phases[entry.phase]}, step ${entry.step}`);
    const note = el("p", "note", `${entry.id} · ${debate.rules}`);
    const what = entry.marks.has("shown")
      ? el("p", "badge", "Demonstration: a script wrote these replies, no model sampled them.")
      : null;
    const rounds = [...new Set(debate.turns.map((turn) => turn.round))];
    into.replaceChildren(
      ...[el("header", "", title, note), what, question(debate), summary(debate, rounds)].filter(Boolean),
      ...rounds.map((round) =>
        el(
          "section",
          "",
          isSingle ? null : el("h4", "", `Round ${round + 1}`),
          el(
            "div",
            "turns",
            ...debate.turns.flatMap((turn, at) =>
              turn.round === round ? [shownTurn(debate, turn, at, prompts)] : [],
            ),
          ),
        ),
      ),
    );
    into.dataset.debate = String(entry.number);
  };
  const text = (content) => {
    const made = el("p", "text", content);
    made.dir = "auto";
    return made;
  };
  const folded = (title, ...children) => el("details", "", el("summary", "", title), ...children);
  const question = (debate) =>
    el(
      "div",
      "question",
      debate.passage ? folded("Passage", text(debate.passage)) : null,
      text(debate.question),
      debate.answer === null ? null : el("p", "", "Answer: ", el("b", "", debate.answer)),
    );
  const verdict = (known) => (known ? el("span", `badge ${known}`, `${SIGNS[known]} ${known}`) : null);
  const summary = (debate, rounds) => {
    const agents = [...new Set(debate.turns.map((turn) => turn.agent))].sort((a, b) => a - b);
    const at = (agent, round) => debate.turns.find((t) => t.agent === agent && t.round === round);
    const head = ["", ...rounds.map((round) => (isSingle ? "answer" : `round ${round + 1}`)), "reward"];
    const rows = agents.map((agent) => {
      const cells = rounds.map((round) => {
        const turn = at(agent, round);
        const answer = turn && turn.answer ? turn.answer.slice(0, 80) : "–";
        return el("td", turn && turn.verdict, turn && SIGNS[turn.verdict] ? `${SIGNS[turn.verdict]} ` : "", answer);
      });
      const earned = debate.returns[agent];
      const reward = earned === null || earned === undefined ? "–" : number(earned);
      return el("tr", "", el("th", "", isSingle ? "" : `Agent ${agent}`), ...cells, el("td", "", reward));
    });
    const decided = debate.decisions.map(([rule, answer, known]) =>
      el("li", "", `${rule}: `, el("b", "", answer), " ", verdict(known)),
    );
    const table = el(
      "table",
      "answers",
      el("thead", "", el("tr", "", ...head.map((cell) => el("th", "", cell)))),
      el("tbody", "", ...rows),
    );
    return el("div", "summary scroll", table, el("ul", "decisions", ...decided));
  };
  const shownTurn = (debate, turn, at, prompts) => {
    const votes = turn.votes.map(([left, op, right, known]) =>
      el("li", "", `Agent ${left} ${op} Agent ${right}`, el("span", known, known ? ` ${SIGNS[known]}` : "")),
    );
    const earned = Object.entries(turn.values).map(([stream, value]) => `${stream} ${number(value)}`);
    const [prompted, sampled] = turn.counts || [0, 0];
    const counts = turn.counts ? `${prompted ? `${prompted} + ` : ""}${sampled} tokens` : "";
    const facts = [earned.length ? `reward: ${earned.join(", ")}` : "", counts].filter(Boolean);
    return el(
      "div",
      turn.failed ? "turn failed" : "turn",
      el("h5", "", isSingle ? "Reply " : `Agent ${turn.agent} `, verdict(turn.verdict)),
      turn.problems.length ? el("p", "badge wrong", turn.problems.join("; ").slice(0, 400)) : null,
      ...sections(debate, turn),
      votes.length ? el("ul", "votes", ...votes) : null,
      facts.length ? el("p", "note", facts.join(" · ")) : null,
      prompts.folded(at),
    );
  };
  // Sections in the colour of their stream; each token by its advantage.
  const JUDGING = new Set(["comparison", "evaluation", "feedback", "critique"]);
  const sections = (debate, turn) => {
    const letters = Array.from(turn.text);
    const tokens = runs(debate, turn, letters.length);
    const bounds = turn.sections.slice().sort((a, b) => a[0] - b[0]);
    const parts = [];
    let from = 0;
    bounds.forEach(([, end, name], k) => {
      const last = k === bounds.length - 1;
      parts.push([from, last ? letters.length : end, name]);
      from = end;
    });
    if (!parts.length) parts.push([0, letters.length, ""]);
    return parts.map(([start, end, name]) => {
      const own = tokens.filter((token) => token.from >= start && token.from < end);
      const body = el("p", "text");
      body.dir = "auto";
      if (own.length) {
        body.append(clean(letters.slice(start, own[0].from).join("").trimStart()));
        own.forEach((token, k) => {
          const stop = k + 1 < own.length ? own[k + 1].from : end;
          body.append(marked(letters.slice(token.from, stop).join(""), token));
        });
      } else body.append(clean(letters.slice(start, end).join("").trim()));
      const first = body.firstChild && (body.firstChild.firstChild || body.firstChild);
      if (first) first.textContent = first.textContent.trimStart();
      const kind = name ? (JUDGING.has(name) ? "judge" : "generator") : "plain";
      return el("div", `section ${kind}`, name ? el("h6", "", name.replace(/_/g, " ")) : null, body);
    });
  };
  const runs = (debate, turn, length) => {
    const starts = turn.starts || [];
    const found = [];
    let at = 0;
    for (const [count, advantage, bits] of turn.tokens || []) {
      const names = debate.streams.filter((_, k) => (bits >> k) & 1).join(", ");
      for (let k = 0; k < count; k++, at++) {
        if (starts[at] < length) found.push({ from: starts[at], advantage, names });
      }
    }
    const most = Math.max(...found.map((token) => Math.abs(token.advantage)), 1e-9);
    return found.map((token) => ({ ...token, share: Math.abs(token.advantage) / most }));
  };
  const marked = (content, token) => {
    const made = el("span", `token${token.advantage > 0 ? " up" : token.advantage < 0 ? " down" : ""}`, content);
    made.style.setProperty("--share", `${Math.round(8 + 40 * token.share)}%`);
    const where = token.names ? ` in ${token.names}` : ", no stream";
    made.dataset.note = `advantage ${number(token.advantage)}${where}`;
    return made;
  };
  class Prompts {
    constructor(entry) {
      this.entry = entry;
    }
    folded(at) {
      const [block, within] = place(this.entry);
      if (block >= index.prompts) return null;
      const made = folded("Prompt");
      made.addEventListener("toggle", async () => {
        if (made.childElementCount > 1) return;
        const messages = (await unpack("prompts", block))[within][at];
        if (made.childElementCount > 1) return;
        made.append(
          ...(messages.length
            ? messages.map(([role, content]) => el("div", "message", el("h6", "", role), text(content)))
            : [el("p", "note", "Not recorded.")]),
        );
      });
      return made;
    }
  }

  // Keys and controls.
  let waiting = 0;
  root.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 200);
  });
  const turnPage = (by) => go(Math.max(0, state.first + by));
  byId("earlier").addEventListener("click", () => turnPage(-PAGE));
  byId("later").addEventListener("click", () => turnPage(PAGE));
  byId("previous").addEventListener("click", () => go(state.open - 1));
  byId("next").addEventListener("click", () => go(state.open + 1));
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey) return;
    if (event.key === "j") go(state.open + 1);
    if (event.key === "k") go(state.open - 1);
  });
  // Links of the page to one of its debates.
  const follow = async () => {
    const linked = /^#debate-(\d+)$/.exec(location.hash);
    if (!linked || !entries[linked[1]]) return;
    state.shown = entries;
    await go(Number(linked[1]));
    byId("debate").scrollIntoView();
  };
  addEventListener("hashchange", follow);
  list();
  open().then(follow).then(() => reader.restore && reader.restore());
})();
